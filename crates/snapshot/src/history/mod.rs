//! State of the allocator at any event of a recorded history.
//!
//! A trace holds the bytes that the program *requested*. The size of the block that PyTorch *took* for a
//! request is missing, and so is everything allocated before the recording began. Both follow from the
//! rest: [`start`] reconstructs the state before the first event, then [`replay`] applies every event to
//! the segments. An allocation always takes the low end of a free piece, so the piece found at its
//! address and PyTorch's rule for splitting give the block size without a search.

mod consistency;
mod cursor;
mod pieces;
mod replay;
mod start;
mod stats;

pub use cursor::{Counters, Cursor};
pub use stats::{Metric, PoolClass, Stat, Stats};

use crate::bytes::Bytes;
use crate::snapshot::Snapshot;
use crate::stacks::StackId;
use crate::tables::{Action, PoolId};
use std::ops::Range;

/// History of one device, with the block sizes that PyTorch took.
pub struct History {
    /// Device ordinal.
    pub device: u32,
    /// Rows of the device in [`Snapshot::events`].
    pub rows: Range<usize>,
    /// Whether the history begins with an empty allocator, so that nothing precedes it.
    pub complete: bool,
    /// Every allocation, in order of its allocation event. An address that is reused has one row per
    /// allocation.
    pub allocations: Vec<Allocation>,
    /// Every segment that existed; all expandable memory of a pool and stream shares one row.
    pub regions: Vec<Region>,
    /// Segments before the first event, by address.
    pub segments_at_start: Vec<SegmentAtStart>,
    /// `torch.cuda.memory_stats()`, recomputed.
    pub stats: Stats,
    /// Highest allocated bytes and the first event that reached them.
    pub allocated_peak: Peak,
    /// Highest reserved bytes and the first event that reached them.
    pub reserved_peak: Peak,
    /// Counters after the last event.
    pub end: Counters,
    /// Counters after the last event for each row of `regions`.
    pub region_ends: Vec<Counters>,
    /// Allocated bytes before the first event.
    pub start: Bytes,
    /// Highest allocated bytes of each run of [`History::samples_every`] events, for a memory timeline.
    pub samples: Vec<Bytes>,
    /// Events per sample.
    pub samples_every: usize,
    /// Uncertainties of the numbers, with their reasons.
    pub caveats: Vec<String>,
    /// Row of `allocations` or `regions` that each event is about.
    subjects: Vec<u32>,
    /// Allocations whose free was not recorded: the event that shows they had ended, and their row in
    /// `allocations`.
    implied_ends: Vec<(u32, u32)>,
}

/// Maximum of a counter and the moment it was first reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// Value of the maximum.
    pub bytes: Bytes,
    /// Number of events applied at that moment; 0 if the maximum was reached before the first event.
    pub position: usize,
    /// All counters at that moment.
    pub counters: Counters,
}

impl Peak {
    /// Index of the event that reached the peak; also 0 if the peak precedes the first event.
    pub fn event(&self) -> usize {
        self.position.saturating_sub(1)
    }
}

const NONE: u32 = u32::MAX;
/// Event number of everything before the first event.
const BEFORE: u32 = u32::MAX - 1;

/// One allocation of an address, from its allocation event to its free event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes taken, rounding included.
    pub size: Bytes,
    /// Bytes requested by the program.
    pub requested: Bytes,
    /// Stack of the allocation; empty for allocations made before the recording and freed during it.
    pub stack: StackId,
    /// Row of [`History::regions`], or [`u32::MAX`] if the segment is unknown.
    pub region: u32,
    alloc_event: u32,
    free_event: u32,
    completed_event: u32,
}

impl Allocation {
    /// Event that allocated the block; `None` if that was before the recording.
    pub fn alloc_event(&self) -> Option<usize> {
        (self.alloc_event != NONE).then_some(self.alloc_event as usize)
    }

    /// Event in which the program freed the block; `None` while it is allocated. A block that was already
    /// waiting for another stream when the history begins counts as freed by the first event.
    pub fn free_event(&self) -> Option<usize> {
        match self.free_event {
            NONE => None,
            BEFORE => Some(0),
            event => Some(event as usize),
        }
    }

    /// Event from which the memory could be reused; `None` while the block is active.
    pub fn completed_event(&self) -> Option<usize> {
        (self.completed_event != NONE).then_some(self.completed_event as usize)
    }

    /// Returns whether the program holds the block after `position` events.
    pub fn is_allocated_at(&self, position: usize) -> bool {
        self.has_begun(position)
            && self.free_event != BEFORE
            && (self.free_event == NONE || self.free_event as usize >= position)
    }

    /// Returns the part of a range of positions in which the program holds the block.
    pub fn allocated_within(&self, positions: Range<usize>) -> Range<usize> {
        let from = self.alloc_event().map_or(0, |born| born + 1).max(positions.start);
        let until = match self.free_event {
            NONE => positions.end,
            BEFORE => from,
            event => (event as usize + 1).min(positions.end),
        };
        from..until.max(from)
    }

    /// Returns whether the memory is in use after `position` events: allocated, or freed and waiting for
    /// another stream.
    pub fn is_active_at(&self, position: usize) -> bool {
        self.has_begun(position)
            && (self.completed_event == NONE || self.completed_event as usize >= position)
    }

    fn has_begun(&self, position: usize) -> bool {
        self.alloc_event == NONE || (self.alloc_event as usize) < position
    }
}

/// Segment, or mapped run of expandable memory, before the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentAtStart {
    /// Address of its first byte.
    pub addr: u64,
    /// Reserved bytes.
    pub size: u64,
    /// Stream that it serves.
    pub stream: u64,
    /// Owning pool, if known.
    pub pool: PoolId,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Whether it is expandable memory.
    pub expandable: bool,
}

/// Segment, or all expandable memory of one pool and stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Address of its first byte; the lowest seen for expandable memory.
    pub addr: u64,
    /// Reserved bytes; for expandable memory those mapped at the start of the history.
    pub size: Bytes,
    /// Stream that it serves.
    pub stream: u64,
    /// Owning pool if the trace or the final segments name it, otherwise the default pool.
    pub pool: PoolId,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Whether it is expandable memory.
    pub expandable: bool,
    /// Whether it existed before the first event.
    pub from_start: bool,
}

impl History {
    /// Rebuilds the history of `device`.
    pub fn new(snapshot: &Snapshot, device: u32) -> History {
        replay::replay(snapshot, device, start::start(snapshot, device))
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether no event was recorded.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns a cursor before the first event.
    pub fn cursor<'a>(&'a self, snapshot: &'a Snapshot) -> Cursor<'a> {
        Cursor::new(self, snapshot)
    }

    /// Row of `allocations` that an event with this action is about; `None` for segment events and for events
    /// that match no block.
    pub fn allocation_of(&self, event: usize, action: Action) -> Option<usize> {
        let is_about_a_block =
            matches!(action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted);
        (is_about_a_block && self.subjects[event] != NONE).then_some(self.subjects[event] as usize)
    }

    /// Allocations whose free was not recorded: the event that shows they had ended and their row in
    /// `allocations`, by event.
    pub fn implied_ends(&self) -> &[(u32, u32)] {
        &self.implied_ends
    }

    /// Row of `regions` that an event with this action reserves or releases.
    pub fn region_of(&self, event: usize, action: Action) -> Option<usize> {
        let is_about_a_segment = matches!(
            action,
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap
        );
        (is_about_a_segment && self.subjects[event] != NONE).then_some(self.subjects[event] as usize)
    }

    /// Returns whether the free of a block had to wait for another stream, so that its memory stayed in
    /// use for a while. An ordinary free is requested and completed by one call; a deferred one is
    /// completed by a later call with its own stack.
    #[inline]
    pub fn is_deferred(&self, snapshot: &Snapshot, allocation: &Allocation) -> bool {
        if allocation.free_event >= BEFORE || allocation.free_event == allocation.completed_event {
            return false;
        }
        let stack = |event: u32| snapshot.events.stack(self.rows.start + event as usize);
        allocation.completed_event != allocation.free_event + 1
            || stack(allocation.free_event) != stack(allocation.completed_event)
    }

    /// Row of `allocations` of the first block allocated by this event or a later one.
    pub fn first_allocated_from(&self, event: usize) -> usize {
        self.allocations.partition_point(|allocation| allocation.has_begun(event))
    }

    /// Iterates over the blocks that the program holds after `position` events.
    pub fn allocated_at(&self, position: usize) -> impl Iterator<Item = &Allocation> {
        self.allocations[..self.first_allocated_from(position)]
            .iter()
            .filter(move |allocation| allocation.is_allocated_at(position))
    }
}
