//! A cursor that moves through a history in either direction and knows the counters at every event.

use super::{Allocation, BEFORE, History, NONE, Region};
use crate::bytes::Bytes;
use crate::snapshot::Snapshot;
use crate::tables::Action;
use std::ops::AddAssign;

/// Memory counters of a device, or of a part of it, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes in blocks that the program holds, rounding included: `torch.cuda.memory_allocated()`.
    pub allocated: Bytes,
    /// Bytes in blocks in use, including freed blocks that wait for another stream.
    pub active: Bytes,
    /// Bytes that the program requested for the active blocks.
    pub requested: Bytes,
    /// Bytes in segments and mapped pages: `torch.cuda.memory_reserved()`.
    pub reserved: Bytes,
    /// Bytes in free pieces of partly used ordinary segments, which cannot be released.
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

/// Position in a history, after the first `position()` events.
pub struct Cursor<'a> {
    history: &'a History,
    snapshot: &'a Snapshot,
    position: usize,
    total: Counters,
    regions: Vec<Counters>,
    /// Counters of blocks and segments whose region is unknown to the trace.
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
        for allocation in
            history.allocations.iter().take_while(|allocation| allocation.alloc_event().is_none())
        {
            cursor.activate(allocation, true);
            if allocation.free_event != BEFORE {
                cursor.allocate(allocation, true);
            }
        }
        cursor
    }

    /// Number of events applied so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the counters of the whole device.
    pub fn total(&self) -> Counters {
        self.total
    }

    /// Iterates over the counters of each region, in the order of [`History::regions`]. The counters of a
    /// stream or pool are the sum over its regions.
    pub fn regions(&self) -> impl Iterator<Item = (&'a Region, Counters)> {
        self.history.regions.iter().zip(self.regions.iter().copied())
    }

    /// Moves forwards or backwards to the state after `position` events.
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

    /// Applies an event, or reverts it.
    fn apply(&mut self, index: usize, forwards: bool) {
        let history = self.history;
        if !history.implied_ends.is_empty() {
            let first = history.implied_ends.partition_point(|&(event, _)| (event as usize) < index);
            let implied =
                history.implied_ends[first..].iter().take_while(|&&(event, _)| event as usize == index);
            for &(_, allocation) in implied {
                let allocation = &history.allocations[allocation as usize];
                self.activate(allocation, !forwards);
                if allocation.free_event as usize == index {
                    self.allocate(allocation, !forwards);
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
                let allocation = &history.allocations[subject as usize];
                self.allocate(allocation, forwards);
                self.activate(allocation, forwards);
            }
            Action::FreeRequested => self.allocate(&history.allocations[subject as usize], !forwards),
            Action::FreeCompleted => {
                let allocation = &history.allocations[subject as usize];
                self.activate(allocation, !forwards);
                if allocation.free_event as usize == index {
                    // The free request itself was not recorded.
                    self.allocate(allocation, !forwards);
                }
            }
            Action::SegmentAlloc | Action::SegmentMap => self.reserve(subject, event.size, forwards),
            Action::SegmentFree => self.reserve(subject, history.regions[subject as usize].size, !forwards),
            Action::SegmentUnmap => self.reserve(subject, event.size, !forwards),
            Action::Snapshot | Action::Oom | Action::Annotate | Action::Other(_) => {}
        }
    }

    fn allocate(&mut self, allocation: &Allocation, on: bool) {
        self.change(allocation.region, |counters| shift(&mut counters.allocated, allocation.size, on));
    }

    fn activate(&mut self, allocation: &Allocation, on: bool) {
        self.change(allocation.region, |counters| {
            shift(&mut counters.active, allocation.size, on);
            shift(&mut counters.requested, allocation.requested, on);
        });
    }

    fn reserve(&mut self, region: u32, size: Bytes, on: bool) {
        self.change(region, |counters| shift(&mut counters.reserved, size, on));
    }

    /// Changes the counters of a region and the total. The free part of an ordinary segment counts as
    /// inactive split only while something in the segment is active.
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

/// Adds or subtracts with wrap-around, so that reverting also works for the impossible sizes of a damaged
/// file.
fn shift(value: &mut Bytes, by: Bytes, up: bool) {
    value.0 = if up { value.0.wrapping_add(by.0) } else { value.0.wrapping_sub(by.0) };
}
