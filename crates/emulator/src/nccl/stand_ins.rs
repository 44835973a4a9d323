//! Ranks of a communicator that do not run, and which running rank stands in for each of them.
//!
//! oomph's Python part knows the ranks of each process group, and which of them run. It writes the list into
//! the folder of the communicator before the communicator is opened.

use std::fs;
use std::path::Path;

/// Name of the list in the folder of a communicator: a number of four bytes for each rank.
const FILE_NAME: &str = "stand-ins";

pub(super) struct StandIns(Option<Vec<usize>>);

impl StandIns {
    /// Reads the list; without one, or with one that leaves out this rank, every rank stands for itself.
    pub(super) fn read(directory: &Path, own: usize, size: usize) -> StandIns {
        let list: Option<Vec<usize>> = fs::read(directory.join(FILE_NAME)).ok().map(|bytes| {
            bytes
                .chunks_exact(4)
                .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize)
                .collect()
        });
        let is_valid = |list: &Vec<usize>| {
            list.len() == size
                && list.iter().all(|&rank| list.get(rank) == Some(&rank))
                && list.get(own) == Some(&own)
        };
        StandIns(list.filter(is_valid))
    }

    /// The running rank whose messages count as those of `rank`.
    pub(super) fn of(&self, rank: usize) -> usize {
        self.0.as_ref().and_then(|list| list.get(rank)).copied().unwrap_or(rank)
    }

    /// The ranks that run, of a communicator with `size` ranks.
    pub(super) fn present(&self, size: usize) -> impl Iterator<Item = usize> {
        (0..size).filter(|&rank| self.of(rank) == rank)
    }
}
