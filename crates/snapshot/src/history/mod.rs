//! The state of the allocator at any event of a recorded history.
//!
//! A trace holds the bytes that the program *asked for*; what PyTorch *took* for them (the block) is not in it,
//! and neither is what was allocated before the recording began. Both follow from the rest: [`start`] works
//! out the state before the first event, [`replay`] then follows every event through the segments. An
//! allocation always takes the low end of a free piece, so the piece found at its address and PyTorch's rule for
//! splitting give the block's size without any search.

mod cursor;
mod pieces;
mod replay;
mod start;
mod stats;
mod verdict;

pub use cursor::{Counters, Cursor};
pub use stats::{Metric, PoolClass, Stat, Stats};

use crate::bytes::Bytes;
use crate::snapshot::Snapshot;
use crate::stacks::StackId;
use crate::tables::{Action, PoolId};
use std::ops::Range;

/// Everything that one device's history says, with the sizes that PyTorch took.
pub struct History {
    /// Device ordinal.
    pub device: u32,
    /// Its rows in [`Snapshot::events`].
    pub rows: Range<usize>,
    /// Whether the history begins with an empty allocator, so that nothing is missing before it.
    pub complete: bool,
    /// One row per block that was ever in use: its birth and its death. An address that is used again is
    /// another row.
    pub lives: Vec<Life>,
    /// The segments that ever existed; one row stands for all expandable memory of a pool and stream.
    pub regions: Vec<Region>,
    /// The segments before the first event, by address.
    pub segments_at_start: Vec<SegmentAtStart>,
    /// `torch.cuda.memory_stats()`, recomputed.
    pub stats: Stats,
    /// Highest allocated bytes and the first event that reached them.
    pub allocated_peak: Peak,
    /// Highest reserved bytes and the first event that reached them.
    pub reserved_peak: Peak,
    /// The counters after the last event.
    pub end: Counters,
    /// The same for each row of `regions`.
    pub region_ends: Vec<Counters>,
    /// Allocated bytes before the first event.
    pub start: Bytes,
    /// Highest allocated bytes of each run of [`History::samples_every`] events, for a picture of the course.
    pub samples: Vec<Bytes>,
    /// Events per sample.
    pub samples_every: usize,
    /// What is uncertain about the numbers, and why.
    pub caveats: Vec<String>,
    /// For each event the row of `lives` or `regions` that it is about.
    subjects: Vec<u32>,
    /// Blocks whose end was not recorded, with the event that shows they had ended.
    implied_ends: Vec<(u32, u32)>,
}

/// A maximum and where it was reached first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// The bytes.
    pub bytes: Bytes,
    /// How many events had happened: 0 if it was that high before the first one.
    pub position: usize,
    /// All counters at that moment.
    pub counters: Counters,
}

impl Peak {
    /// Index of the event that reached it; 0 also where it was that high before.
    pub fn event(&self) -> usize {
        self.position.saturating_sub(1)
    }
}

const NONE: u32 = u32::MAX;
/// In place of an event: before the first one.
const BEFORE: u32 = u32::MAX - 1;

/// One block from its allocation to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes that it takes, rounding included.
    pub size: Bytes,
    /// Bytes that the program asked for.
    pub requested: Bytes,
    /// Stack of the allocation; empty where it was made before the recording began and freed during it.
    pub stack: StackId,
    /// Row of [`History::regions`], or [`u32::MAX`] where the segment is unknown.
    pub region: u32,
    born: u32,
    freed: u32,
    completed: u32,
}

impl Life {
    /// The event that allocated it; `None` if that was before the recording.
    pub fn born(&self) -> Option<usize> {
        (self.born != NONE).then_some(self.born as usize)
    }

    /// The event with which the program gave it back; `None` while it is allocated. A block that was already
    /// waiting for another stream when the history begins counts as freed by the first event.
    pub fn freed(&self) -> Option<usize> {
        match self.freed {
            NONE => None,
            BEFORE => Some(0),
            event => Some(event as usize),
        }
    }

    /// The event from which its memory could be used again; `None` while it is active.
    pub fn completed(&self) -> Option<usize> {
        (self.completed != NONE).then_some(self.completed as usize)
    }

    /// Whether the program holds it once `position` events have happened.
    pub fn is_allocated_at(&self, position: usize) -> bool {
        self.has_begun(position)
            && self.freed != BEFORE
            && (self.freed == NONE || self.freed as usize >= position)
    }

    /// The part of a stretch of positions at which the program holds it.
    pub fn allocated_within(&self, positions: Range<usize>) -> Range<usize> {
        let from = self.born().map_or(0, |born| born + 1).max(positions.start);
        let until = match self.freed {
            NONE => positions.end,
            BEFORE => from,
            event => (event as usize + 1).min(positions.end),
        };
        from..until.max(from)
    }

    /// Whether its memory is in use once `position` events have happened: allocated, or freed and waiting for
    /// another stream.
    pub fn is_active_at(&self, position: usize) -> bool {
        self.has_begun(position) && (self.completed == NONE || self.completed as usize >= position)
    }

    fn has_begun(&self, position: usize) -> bool {
        self.born == NONE || (self.born as usize) < position
    }
}

/// A segment, or a mapped run of expandable memory, before the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentAtStart {
    /// Address of its first byte.
    pub addr: u64,
    /// Reserved bytes.
    pub size: u64,
    /// The stream that it serves.
    pub stream: u64,
    /// Its pool, where that can be told.
    pub pool: PoolId,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Whether it is expandable memory.
    pub expandable: bool,
}

/// A segment, or all expandable memory of one pool and stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Address of its first byte; for expandable memory the lowest one seen.
    pub addr: u64,
    /// Reserved bytes; for expandable memory those mapped at the start of the history.
    pub size: Bytes,
    /// The stream that it serves.
    pub stream: u64,
    /// Its pool, where the trace or the final segments tell; otherwise the default pool.
    pub pool: PoolId,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Whether it is expandable memory.
    pub expandable: bool,
    /// Whether it was there before the first event.
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

    /// Whether no event was recorded.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A cursor before the first event.
    pub fn cursor<'a>(&'a self, snapshot: &'a Snapshot) -> Cursor<'a> {
        Cursor::new(self, snapshot)
    }

    /// The row of `lives` that an event with this action is about; `None` for events about segments and for those
    /// that fit no block.
    pub fn life_of(&self, event: usize, action: Action) -> Option<usize> {
        let is_about_a_block =
            matches!(action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted);
        (is_about_a_block && self.subjects[event] != NONE).then_some(self.subjects[event] as usize)
    }

    /// Blocks whose end was not recorded: the event that shows they had ended, and their row in `lives`, by event.
    pub fn implied_ends(&self) -> &[(u32, u32)] {
        &self.implied_ends
    }

    /// The row of `regions` that an event with this action reserves or returns.
    pub fn region_of(&self, event: usize, action: Action) -> Option<usize> {
        let is_about_a_segment = matches!(
            action,
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap
        );
        (is_about_a_segment && self.subjects[event] != NONE).then_some(self.subjects[event] as usize)
    }

    /// Whether a block's free had to wait for another stream, so that its memory stayed in use for a while. An ordinary
    /// free is requested and completed by one call; a deferred one is completed by a later call, with its own stack.
    #[inline]
    pub fn is_deferred(&self, snapshot: &Snapshot, life: &Life) -> bool {
        if life.freed >= BEFORE || life.freed == life.completed {
            return false;
        }
        let stack = |event: u32| snapshot.events.stack(self.rows.start + event as usize);
        life.completed != life.freed + 1 || stack(life.freed) != stack(life.completed)
    }

    /// The row of `lives` of the first block that was allocated by this event or a later one.
    pub fn first_born_from(&self, event: usize) -> usize {
        self.lives.partition_point(|life| life.has_begun(event))
    }

    /// The blocks that the program holds once `position` events have happened.
    pub fn allocated_at(&self, position: usize) -> impl Iterator<Item = &Life> {
        self.lives[..self.first_born_from(position)].iter().filter(move |life| life.is_allocated_at(position))
    }
}
