//! From a recorder's counts of allocations to positions in the history.

use crate::trace::order::Order;
use recording::{Recording, SettingsMark, StepMark};
use snapshot::Snapshot;
use std::ops::RangeInclusive;

/// Positions in the history by a recorder's counts. Counting goes back from the end, since a history may have
/// lost its beginning.
pub(crate) struct Counted {
    /// The events that allocate.
    alloc_events: Vec<usize>,
    /// The count at the end.
    end: u64,
    len: usize,
}

/// A count of allocations at the end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MarkCount {
    Reliable(u64),
    /// The program reset its statistics afterwards.
    BeforeReset,
    /// A recorder does not count at the end of every step.
    NotCounted,
}

impl Counted {
    /// `None` where the recording does not say how many there were in the end.
    pub(crate) fn new(order: &Order<'_>, recording: &Recording) -> Option<Counted> {
        let end = recording.allocations.of(order.device)?;
        let alloc_events = order.allocations(0..order.len()).map(|(event, _)| event).collect();
        Some(Counted { alloc_events, end, len: order.len() })
    }

    /// The events that allocate, in order.
    pub(crate) fn alloc_events(&self) -> &[usize] {
        &self.alloc_events
    }

    /// How many of the allocations that the history has had been made at a count; `None` before the history.
    pub(crate) fn place(&self, count: u64) -> Option<usize> {
        let later = usize::try_from(self.end.checked_sub(count)?).ok()?;
        self.alloc_events.len().checked_sub(later)
    }

    /// How many of the last `counts` are reliable: a count that is higher than a later one was made before
    /// the program reset its statistics.
    pub(crate) fn reliable(&self, counts: impl DoubleEndedIterator<Item = u64>) -> usize {
        let mut limit = self.end;
        let believed = |&count: &u64| {
            let fits = count <= limit;
            limit = limit.min(count);
            fits
        };
        counts.rev().take_while(believed).count()
    }

    /// How far the count at the end of each step can be trusted.
    pub(crate) fn of_marks<'a>(
        &self,
        marks: &'a [StepMark],
        device: u32,
    ) -> impl Iterator<Item = (&'a StepMark, MarkCount)> {
        let count_of = move |mark: &StepMark| mark.allocations.of(device);
        let counts: Vec<u64> = marks.iter().filter_map(count_of).collect();
        let mut unreliable = counts.len() - self.reliable(counts.iter().copied());
        marks.iter().map(move |mark| {
            let count = match count_of(mark) {
                None => MarkCount::NotCounted,
                Some(_) if unreliable > 0 => {
                    unreliable -= 1;
                    MarkCount::BeforeReset
                }
                Some(count) => MarkCount::Reliable(count),
            };
            (mark, count)
        })
    }

    /// Where a moment is: between the allocations that its count names, by the clock.
    pub(crate) fn position(&self, count: u64, by_clock: usize) -> Option<usize> {
        self.at(count).map(|range| by_clock.clamp(*range.start(), *range.end()))
    }

    /// Positions at which exactly `count` allocations had been made; `None` before the history.
    pub(crate) fn at(&self, count: u64) -> Option<RangeInclusive<usize>> {
        let made = self.place(count)?;
        let from = made.checked_sub(1).map_or(0, |last| self.alloc_events[last] + 1);
        Some(from..=self.alloc_events.get(made).copied().unwrap_or(self.len))
    }
}

/// Returns how many events of a device precede each change of the allocator settings; 0 if it precedes the
/// history.
pub fn events_before_changes(
    snapshot: &Snapshot,
    recording: &Recording,
    device: u32,
    changes: &[SettingsMark],
) -> Vec<usize> {
    // A device without a count had allocated nothing.
    let count = |change: &SettingsMark| Some(change.allocations.of(device).unwrap_or(0));
    let moments = changes.iter().map(|change| (change.time_us, count(change)));
    events_before(snapshot, recording, device, &moments.collect::<Vec<_>>())
}

/// How many events of a device precede each moment, given by its time and its count of allocations; 0 if it
/// precedes the history.
pub(crate) fn events_before(
    snapshot: &Snapshot,
    recording: &Recording,
    device: u32,
    moments: &[(i64, Option<u64>)],
) -> Vec<usize> {
    let order = Order::new(snapshot, device);
    let counted = Counted::new(&order, recording);
    let counts: Vec<u64> = moments.iter().filter_map(|(_, count)| *count).collect();
    let reliable = counted.as_ref().map_or(0, |counted| counted.reliable(counts.iter().copied()));
    let mut unreliable = counts.len() - reliable;
    let place = |&(time_us, count): &(i64, Option<u64>)| {
        let by_clock = order.position_at(time_us);
        match (&counted, count) {
            (Some(counted), Some(count)) if unreliable == 0 => counted.position(count, by_clock).unwrap_or(0),
            (_, count) => {
                unreliable = unreliable.saturating_sub(usize::from(count.is_some()));
                by_clock
            }
        }
    };
    moments.iter().map(place).collect()
}
