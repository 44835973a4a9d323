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
/// those bytes mean. Training repeats itself, so the spelling that followed last time is tried first.
#[derive(Default)]
pub(super) struct Spellings {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    last: usize,
}

struct Entry {
    bytes: Range<usize>,
    stack: StackId,
    /// The entry that was asked for next, the last time.
    next: u32,
}

impl Spellings {
    #[inline]
    pub(super) fn find(&mut self, spelling: &[u8]) -> Option<StackId> {
        let expected = self.entries.get(self.last)?.next as usize;
        let found = match self.entries.get(expected) {
            Some(entry) if self.bytes[entry.bytes.clone()] == *spelling => expected,
            _ => self.search(spelling)?,
        };
        self.entries[self.last].next = found as u32;
        self.last = found;
        Some(self.entries[found].stack)
    }

    #[inline(never)]
    fn search(&self, spelling: &[u8]) -> Option<usize> {
        let hash = FxBuildHasher.hash_one(spelling);
        let same = |&entry: &u32| self.bytes[self.entries[entry as usize].bytes.clone()] == *spelling;
        self.index.find(hash, same).map(|&entry| entry as usize)
    }

    pub(super) fn add(&mut self, spelling: &[u8], stack: StackId) {
        // Call paths are few; those of a file that has more are looked up frame by frame.
        if self.entries.len() == MOST || spelling.len() > LONGEST {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(spelling);
        self.entries.push(Entry { bytes: start..self.bytes.len(), stack, next: 0 });
        let (bytes, entries) = (&self.bytes, &self.entries);
        self.index.insert_unique(FxBuildHasher.hash_one(spelling), entries.len() as u32 - 1, |&entry| {
            FxBuildHasher.hash_one(&bytes[entries[entry as usize].bytes.clone()])
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_found_in_any_order() {
        let mut spellings = Spellings::default();
        assert_eq!(spellings.find(b"a"), None);
        for (place, text) in ["a", "bb", "", "ccc"].iter().enumerate() {
            spellings.add(text.as_bytes(), StackId(place as u32));
        }
        for (text, place) in
            [("a", 0), ("ccc", 3), ("a", 0), ("bb", 1), ("", 2), ("a", 0), ("bb", 1), ("a", 0)]
        {
            assert_eq!(spellings.find(text.as_bytes()), Some(StackId(place)), "{text}");
        }
        assert_eq!(spellings.find(b"d"), None);
    }
}
