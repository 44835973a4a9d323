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

/// The blocks in use, moved from one position to later ones.
pub(crate) struct Alive<'a> {
    history: &'a History,
    index: &'a Index,
    /// Rows of [`History::lives`], oldest first.
    pub(crate) rows: Vec<u32>,
    /// Rows that were born by then.
    born: usize,
    /// For each class, how many of its rows those are.
    passed: Vec<usize>,
}

impl<'a> Alive<'a> {
    pub(crate) fn at(history: &'a History, index: &'a Index, position: usize) -> Alive<'a> {
        let passed = vec![0; index.starts.len() - 1];
        let mut alive = Alive { history, index, rows: Vec::new(), born: 0, passed };
        alive.advance(position);
        alive
    }

    /// Goes on to a later position.
    pub(crate) fn advance(&mut self, position: usize) {
        let history = self.history;
        self.rows.retain(|&row| history.lives[row as usize].is_active_at(position));
        let kept = self.rows.len();
        let born = history.first_born_from(position);
        for (class, passed) in self.passed.iter_mut().enumerate() {
            let rows = &self.index.rows[self.index.starts[class]..self.index.starts[class + 1]];
            let most = (*passed + (born - self.born)).min(rows.len());
            let new = &rows[*passed..most];
            let new = &new[..new.partition_point(|&row| (row as usize) < born)];
            *passed += new.len();
            // A use of this class is shorter than twice its power of two: what began earlier has ended.
            let since = (position + 1).saturating_sub(2 << class);
            let has_ended = |row: &u32| history.lives[*row as usize].born().unwrap_or(0) < since;
            let recent = &new[new.partition_point(has_ended)..];
            self.rows
                .extend(recent.iter().filter(|row| history.lives[**row as usize].is_active_at(position)));
        }
        self.rows[kept..].sort_unstable();
        self.born = born;
    }
}

/// The rows of blocks that the program holds at a position, oldest first.
pub(crate) fn allocated(history: &History, index: &Index, position: usize) -> Vec<u32> {
    let mut rows = Alive::at(history, index, position).rows;
    rows.retain(|&row| history.lives[row as usize].is_allocated_at(position));
    rows
}
