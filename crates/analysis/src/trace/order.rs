//! The order in which a program's code allocates: what steps and `backward()` are found from. It needs the
//! recorded events alone, so it can be read while the history is being rebuilt.

use snapshot::{Bytes, Snapshot, StackId};
use std::ops::Range;

/// The allocations of one device.
#[derive(Clone)]
pub(crate) struct Order<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) device: u32,
    rows: Range<usize>,
}

impl<'a> Order<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot, device: u32) -> Order<'a> {
        Order { snapshot, device, rows: snapshot.rows(device) }
    }

    /// Number of events.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The allocations among `events`: which event, and whose stack.
    pub(crate) fn allocations(
        &self,
        events: Range<usize>,
    ) -> impl Iterator<Item = (usize, StackId)> + use<'a> {
        let first = events.start;
        let rows = self.rows.start + events.start..self.rows.start + events.end;
        self.snapshot.events.allocations(rows).map(move |(at, stack)| (first + at, stack))
    }

    /// The number of an event's context.
    pub(crate) fn context(&self, event: usize) -> u32 {
        self.snapshot.events.get(self.rows.start + event).context
    }

    /// The stack of an event.
    pub(crate) fn stack(&self, event: usize) -> StackId {
        self.snapshot.events.stack(self.rows.start + event)
    }

    /// The bytes that an event asks for.
    pub(crate) fn size(&self, event: usize) -> Bytes {
        self.snapshot.events.get(self.rows.start + event).size
    }

    /// When an event happened, in microseconds.
    pub(crate) fn time_us(&self, event: usize) -> i64 {
        self.snapshot.events.get(self.rows.start + event).time_us
    }

    /// Number of events that had happened at a time, in microseconds.
    pub(crate) fn position_at(&self, time_us: i64) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.time_us(middle) <= time_us {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
