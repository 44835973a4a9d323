//! Which blocks are in use at a moment, without looking at all that ever were.
//!
//! Blocks are sorted by how long they are in use, in powers of two. Of those that last less than 2^k events only the ones that
//! were born less than 2^k events ago can be in use: a short list for short lives, and long lives are few.

use snapshot::{History, Life};

/// The rows of [`History::lives`], by the length of their use.
pub(crate) struct Index {
    /// Rows in ascending order within each class.
    rows: Vec<u32>,
    /// Where the rows of each class begin; one more than there are classes.
    starts: Vec<usize>,
}

impl Index {
    pub(crate) fn new(history: &History) -> Index {
        let class_of = |life: &Life| {
            let end = life.completed().unwrap_or(history.len());
            (end.saturating_sub(life.born().unwrap_or(0)) + 1).ilog2() as usize
        };
        let mut starts = vec![0; 34];
        for life in &history.lives {
            starts[class_of(life) + 1] += 1;
        }
        for class in 1..starts.len() {
            starts[class] += starts[class - 1];
        }
        let mut next = starts.clone();
        let mut rows = vec![0; history.lives.len()];
        for (row, life) in history.lives.iter().enumerate() {
            let place = &mut next[class_of(life)];
            rows[*place] = row as u32;
            *place += 1;
        }
        Index { rows, starts }
    }
}

/// A block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Row of [`History::lives`].
    pub(crate) row: u32,
    /// The first position at which the program has given it back.
    held_until: u32,
    /// The first position at which its memory can be used again.
    used_until: u32,
    pub(crate) size: u64,
}

impl Block {
    fn new(row: u32, life: &Life) -> Block {
        let after = |event: Option<usize>| event.map_or(u32::MAX, |event| event as u32 + 1);
        // What waited for another stream when the history began was given back before it.
        let was_freed = life.born().is_none() && !life.is_allocated_at(0);
        let held_until = if was_freed { 0 } else { after(life.freed()) };
        Block { row, held_until, used_until: after(life.completed()), size: life.size.0 }
    }

    /// Whether the program holds it at a position at which it is in use.
    pub(crate) fn is_held_at(&self, position: usize) -> bool {
        position < self.held_until as usize
    }

    fn is_used_at(&self, position: usize) -> bool {
        position < self.used_until as usize
    }
}

/// The blocks in use, moved from one position to later ones.
pub(crate) struct Alive<'a> {
    history: &'a History,
    index: &'a Index,
    /// Oldest first.
    pub(crate) blocks: Vec<Block>,
    /// What the last moves have taken away (`false`) and brought (`true`).
    pub(crate) changes: Vec<(Block, bool)>,
    /// Rows that were born by then.
    born: usize,
    /// For each class, how many of its rows those are.
    passed: Vec<usize>,
}

impl<'a> Alive<'a> {
    pub(crate) fn at(history: &'a History, index: &'a Index, position: usize) -> Alive<'a> {
        let passed = vec![0; index.starts.len() - 1];
        let mut alive = Alive { history, index, blocks: Vec::new(), changes: Vec::new(), born: 0, passed };
        alive.advance(position);
        alive
    }

    /// Goes on to a later position.
    pub(crate) fn advance(&mut self, position: usize) {
        let Alive { history, index, blocks, changes, .. } = self;
        blocks.retain(|block| {
            let stays = block.is_used_at(position);
            if !stays {
                changes.push((*block, false));
            }
            stays
        });
        let kept = blocks.len();
        let born = history.first_born_from(position);
        for (class, passed) in self.passed.iter_mut().enumerate() {
            let rows = &index.rows[index.starts[class]..index.starts[class + 1]];
            let most = (*passed + (born - self.born)).min(rows.len());
            let new = &rows[*passed..most];
            let new = &new[..new.partition_point(|&row| (row as usize) < born)];
            *passed += new.len();
            // A use of this class is shorter than twice its power of two: what began earlier has ended.
            let since = (position + 1).saturating_sub(2 << class);
            let has_ended = |row: &u32| history.lives[*row as usize].born().unwrap_or(0) < since;
            let recent = new[new.partition_point(has_ended)..].iter();
            let recent = recent.map(|&row| Block::new(row, &history.lives[row as usize]));
            blocks.extend(recent.filter(|block| block.is_used_at(position)));
        }
        blocks[kept..].sort_unstable_by_key(|block| block.row);
        changes.extend(blocks[kept..].iter().map(|block| (*block, true)));
        self.born = born;
    }
}

/// The rows of blocks that the program holds at a position, oldest first.
pub(crate) fn allocated(history: &History, index: &Index, position: usize) -> Vec<u32> {
    let alive = Alive::at(history, index, position);
    alive.blocks.iter().filter(|block| block.is_held_at(position)).map(|block| block.row).collect()
}
