//! Blocks in use at a position, found without a search through all allocations.
//!
//! Allocations are classed by how long they are in use, in powers of two. Of those that last less than 2^k
//! events, only the ones made less than 2^k events ago can be in use: a short list for short uses, and long
//! uses are few.

use snapshot::{Allocation, History};

/// Rows of [`History::allocations`] by the length of their use.
pub(crate) struct LiveIndex {
    /// Rows in ascending order within each class.
    rows: Vec<u32>,
    /// First row of each class, and the end of the last.
    starts: Vec<usize>,
}

impl LiveIndex {
    pub(crate) fn new(history: &History) -> LiveIndex {
        let class_of = |allocation: &Allocation| {
            let end = allocation.completed_event().unwrap_or(history.len());
            (end.saturating_sub(allocation.alloc_event().unwrap_or(0)) + 1).ilog2() as usize
        };
        let mut starts = vec![0; 34];
        for allocation in &history.allocations {
            starts[class_of(allocation) + 1] += 1;
        }
        for class in 1..starts.len() {
            starts[class] += starts[class - 1];
        }
        let mut next = starts.clone();
        let mut rows = vec![0; history.allocations.len()];
        for (row, allocation) in history.allocations.iter().enumerate() {
            let next = &mut next[class_of(allocation)];
            rows[*next] = row as u32;
            *next += 1;
        }
        LiveIndex { rows, starts }
    }
}

/// A block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LiveBlock {
    /// Row of [`History::allocations`].
    pub(crate) row: u32,
    /// First position at which the program has freed it.
    held_until: u32,
    /// First position at which its memory can be used again.
    used_until: u32,
    pub(crate) size: u64,
}

impl LiveBlock {
    fn new(row: u32, allocation: &Allocation) -> LiveBlock {
        let after = |event: Option<usize>| event.map_or(u32::MAX, |event| event as u32 + 1);
        // A block that waited for another stream when the history began was freed before it.
        let was_freed = allocation.alloc_event().is_none() && !allocation.is_allocated_at(0);
        let held_until = if was_freed { 0 } else { after(allocation.free_event()) };
        LiveBlock {
            row,
            held_until,
            used_until: after(allocation.completed_event()),
            size: allocation.size.0,
        }
    }

    /// Whether the program holds it at a position at which it is in use.
    pub(crate) fn is_held_at(&self, position: usize) -> bool {
        position < self.held_until as usize
    }

    fn is_used_at(&self, position: usize) -> bool {
        position < self.used_until as usize
    }
}

/// Blocks in use at a position that moves forward.
pub(crate) struct LiveBlocks<'a> {
    history: &'a History,
    index: &'a LiveIndex,
    /// Oldest first.
    pub(crate) blocks: Vec<LiveBlock>,
    /// Blocks removed (`false`) and added (`true`) since the list was cleared.
    pub(crate) changes: Vec<(LiveBlock, bool)>,
    /// Rows allocated before the position.
    allocated: usize,
    /// How many of them each class has.
    passed: Vec<usize>,
}

impl<'a> LiveBlocks<'a> {
    pub(crate) fn at(history: &'a History, index: &'a LiveIndex, position: usize) -> LiveBlocks<'a> {
        let passed = vec![0; index.starts.len() - 1];
        let mut live =
            LiveBlocks { history, index, blocks: Vec::new(), changes: Vec::new(), allocated: 0, passed };
        live.advance(position);
        live
    }

    /// Moves to a later position.
    pub(crate) fn advance(&mut self, position: usize) {
        let LiveBlocks { history, index, blocks, changes, .. } = self;
        blocks.retain(|block| {
            let stays = block.is_used_at(position);
            if !stays {
                changes.push((*block, false));
            }
            stays
        });
        let kept = blocks.len();
        let allocated = history.first_allocated_from(position);
        for (class, passed) in self.passed.iter_mut().enumerate() {
            let rows = &index.rows[index.starts[class]..index.starts[class + 1]];
            let most = (*passed + (allocated - self.allocated)).min(rows.len());
            let new = &rows[*passed..most];
            let new = &new[..new.partition_point(|&row| (row as usize) < allocated)];
            *passed += new.len();
            // A use of this class is shorter than twice its power of two: earlier ones have ended.
            let since = (position + 1).saturating_sub(2 << class);
            let has_ended = |row: &u32| history.allocations[*row as usize].alloc_event().unwrap_or(0) < since;
            let recent = new[new.partition_point(has_ended)..].iter();
            let recent = recent.map(|&row| LiveBlock::new(row, &history.allocations[row as usize]));
            blocks.extend(recent.filter(|block| block.is_used_at(position)));
        }
        blocks[kept..].sort_unstable_by_key(|block| block.row);
        changes.extend(blocks[kept..].iter().map(|block| (*block, true)));
        self.allocated = allocated;
    }
}

/// Returns the rows of blocks allocated at a position, oldest first.
pub(crate) fn allocated(history: &History, index: &LiveIndex, position: usize) -> Vec<u32> {
    let live = LiveBlocks::at(history, index, position);
    live.blocks.iter().filter(|block| block.is_held_at(position)).map(|block| block.row).collect()
}
