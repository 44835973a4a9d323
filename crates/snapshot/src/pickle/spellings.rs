//! Stacks by the bytes that spell them.

use crate::stacks::StackId;
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use std::ops::Range;

/// Spellings that are kept, and the longest of them.
const MOST: usize = 8 << 10;
const LONGEST: usize = 1 << 10;

/// The same call path is written with the same references to the memo each time; this remembers which stack
/// those bytes mean.
#[derive(Default)]
pub(super) struct Spellings {
    bytes: Vec<u8>,
    entries: Vec<(Range<usize>, StackId)>,
    index: HashTable<u32>,
}

impl Spellings {
    pub(super) fn find(&self, spelling: &[u8]) -> Option<StackId> {
        let hash = FxBuildHasher.hash_one(spelling);
        let same = |&entry: &u32| self.bytes[self.entries[entry as usize].0.clone()] == *spelling;
        self.index.find(hash, same).map(|&entry| self.entries[entry as usize].1)
    }

    pub(super) fn add(&mut self, spelling: &[u8], stack: StackId) {
        // Call paths are few; those of a file that has more are looked up frame by frame.
        if self.entries.len() == MOST || spelling.len() > LONGEST {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(spelling);
        self.entries.push((start..self.bytes.len(), stack));
        let (bytes, entries) = (&self.bytes, &self.entries);
        self.index.insert_unique(FxBuildHasher.hash_one(spelling), entries.len() as u32 - 1, |&entry| {
            FxBuildHasher.hash_one(&bytes[entries[entry as usize].0.clone()])
        });
    }
}
