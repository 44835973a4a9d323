//! Moves through a history in either direction and knows the counters at every event.

use super::{BEFORE, History, Life, NONE, Region};
use crate::bytes::Bytes;
use crate::snapshot::Snapshot;
use crate::tables::Action;
use std::ops::AddAssign;

/// The memory of a device, or of a part of it, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Blocks that the program holds, with rounding: `torch.cuda.memory_allocated()`.
    pub allocated: Bytes,
    /// Blocks in use, those that wait for another stream included.
    pub active: Bytes,
    /// What the program asked for, of the active blocks.
    pub requested: Bytes,
    /// Segments and mapped pages: `torch.cuda.memory_reserved()`.
    pub reserved: Bytes,
    /// Free pieces of ordinary segments that are partly in use, and so cannot be returned.
    pub inactive_split: Bytes,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.allocated += other.allocated;
        self.active += other.active;
        self.requested += other.requested;
        self.reserved += other.reserved;
        self.inactive_split += other.inactive_split;
    }
}

/// A position in a history. It stands after the first `position()` events.
pub struct Cursor<'a> {
    history: &'a History,
    snapshot: &'a Snapshot,
    position: usize,
    total: Counters,
    regions: Vec<Counters>,
    /// Blocks and segments that the trace mentions without ever saying where they lie.
    elsewhere: Counters,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(history: &'a History, snapshot: &'a Snapshot) -> Cursor<'a> {
        let mut cursor = Cursor {
            history,
            snapshot,
            position: 0,
            total: Counters::default(),
            regions: vec![Counters::default(); history.regions.len()],
            elsewhere: Counters::default(),
        };
        for (index, region) in history.regions.iter().enumerate() {
            if region.from_start {
                cursor.reserve(index as u32, region.size, true);
            }
        }
        for life in history.lives.iter().take_while(|life| life.born().is_none()) {
            cursor.activate(life, true);
            if life.freed != BEFORE {
                cursor.allocate(life, true);
            }
        }
        cursor
    }

    /// How many events have been applied.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The counters of the whole device.
    pub fn total(&self) -> Counters {
        self.total
    }

    /// The counters of each region, in the order of [`History::regions`]: sum those of a stream or a pool to
    /// get its counters.
    pub fn regions(&self) -> impl Iterator<Item = (&'a Region, Counters)> {
        self.history.regions.iter().zip(self.regions.iter().copied())
    }

    /// Moves to where `position` events have been applied, forwards or backwards.
    pub fn seek(&mut self, position: usize) {
        let position = position.min(self.history.len());
        while self.position < position {
            self.apply(self.position, true);
            self.position += 1;
        }
        while self.position > position {
            self.position -= 1;
            self.apply(self.position, false);
        }
    }

    /// Applies an event, or takes it back.
    fn apply(&mut self, index: usize, forwards: bool) {
        let history = self.history;
        if !history.implied_ends.is_empty() {
            let first = history.implied_ends.partition_point(|&(event, _)| (event as usize) < index);
            let implied =
                history.implied_ends[first..].iter().take_while(|&&(event, _)| event as usize == index);
            for &(_, life) in implied {
                let life = &history.lives[life as usize];
                self.activate(life, !forwards);
                if life.freed as usize == index {
                    self.allocate(life, !forwards);
                }
            }
        }
        let subject = history.subjects[index];
        if subject == NONE {
            return;
        }
        let event = self.snapshot.events.get(history.rows.start + index);
        match event.action {
            Action::Alloc => {
                let life = &history.lives[subject as usize];
                self.allocate(life, forwards);
                self.activate(life, forwards);
            }
            Action::FreeRequested => self.allocate(&history.lives[subject as usize], !forwards),
            Action::FreeCompleted => {
                let life = &history.lives[subject as usize];
                self.activate(life, !forwards);
                if life.freed as usize == index {
                    // The request itself was not recorded.
                    self.allocate(life, !forwards);
                }
            }
            Action::SegmentAlloc | Action::SegmentMap => self.reserve(subject, event.size, forwards),
            Action::SegmentFree => self.reserve(subject, history.regions[subject as usize].size, !forwards),
            Action::SegmentUnmap => self.reserve(subject, event.size, !forwards),
            Action::Snapshot | Action::Oom | Action::Annotate | Action::Other(_) => {}
        }
    }

    fn allocate(&mut self, life: &Life, on: bool) {
        self.change(life.region, |counters| shift(&mut counters.allocated, life.size, on));
    }

    fn activate(&mut self, life: &Life, on: bool) {
        self.change(life.region, |counters| {
            shift(&mut counters.active, life.size, on);
            shift(&mut counters.requested, life.requested, on);
        });
    }

    fn reserve(&mut self, region: u32, size: Bytes, on: bool) {
        self.change(region, |counters| shift(&mut counters.reserved, size, on));
    }

    /// Changes a region's counters and the total with them. The free part of an ordinary segment is split off
    /// exactly while something in it is active.
    fn change(&mut self, region: u32, change: impl Fn(&mut Counters)) {
        let ordinary = self.history.regions.get(region as usize).is_some_and(|region| !region.expandable);
        let counters = self.regions.get_mut(region as usize).unwrap_or(&mut self.elsewhere);
        let before = counters.inactive_split;
        change(counters);
        if ordinary {
            counters.inactive_split = match counters.active {
                Bytes::ZERO => Bytes::ZERO,
                active => counters.reserved.saturating_sub(active),
            };
        }
        let after = counters.inactive_split;
        change(&mut self.total);
        shift(&mut self.total.inactive_split, after, true);
        shift(&mut self.total.inactive_split, before, false);
    }
}

/// Wraps around where a damaged file has sizes beyond all memory, so that going back undoes it.
fn shift(value: &mut Bytes, by: Bytes, up: bool) {
    value.0 = if up { value.0.wrapping_add(by.0) } else { value.0.wrapping_sub(by.0) };
}
