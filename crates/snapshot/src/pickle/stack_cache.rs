//! Cache of call stacks by the bytes that encode them.

use crate::stacks::StackId;
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use std::ops::Range;

/// Maximum number of cached encodings.
const MAX_ENTRIES: usize = 8 << 10;
/// Maximum length of a cached encoding, in bytes.
const MAX_ENCODING_BYTES: usize = 1 << 10;

/// Stacks by their encoding. The same call path is encoded with the same memo references each time.
/// Training repeats itself, so the encoding that followed last time is tried first.
#[derive(Default)]
pub(super) struct StackCache {
    bytes: Vec<u8>,
    entries: Vec<CachedStack>,
    index: HashTable<u32>,
    last: usize,
}

struct CachedStack {
    bytes: Range<usize>,
    stack: StackId,
    /// CachedStack that was looked up after this one the last time.
    next: u32,
}

impl StackCache {
    #[inline]
    pub(super) fn find(&mut self, encoding: &[u8]) -> Option<StackId> {
        let expected = self.entries.get(self.last)?.next as usize;
        let found = match self.entries.get(expected) {
            Some(entry) if self.bytes[entry.bytes.clone()] == *encoding => expected,
            _ => self.search(encoding)?,
        };
        self.entries[self.last].next = found as u32;
        self.last = found;
        Some(self.entries[found].stack)
    }

    #[inline(never)]
    fn search(&self, encoding: &[u8]) -> Option<usize> {
        let hash = FxBuildHasher.hash_one(encoding);
        let same = |&entry: &u32| self.bytes[self.entries[entry as usize].bytes.clone()] == *encoding;
        self.index.find(hash, same).map(|&entry| entry as usize)
    }

    pub(super) fn add(&mut self, encoding: &[u8], stack: StackId) {
        // Call paths are few; a file with more has them looked up frame by frame.
        if self.entries.len() == MAX_ENTRIES || encoding.len() > MAX_ENCODING_BYTES {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(encoding);
        self.entries.push(CachedStack { bytes: start..self.bytes.len(), stack, next: 0 });
        let (bytes, entries) = (&self.bytes, &self.entries);
        self.index.insert_unique(FxBuildHasher.hash_one(encoding), entries.len() as u32 - 1, |&entry| {
            FxBuildHasher.hash_one(&bytes[entries[entry as usize].bytes.clone()])
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_is_found_in_any_order() {
        let mut stack_cache = StackCache::default();
        assert_eq!(stack_cache.find(b"a"), None);
        for (place, text) in ["a", "bb", "", "ccc"].iter().enumerate() {
            stack_cache.add(text.as_bytes(), StackId(place as u32));
        }
        for (text, place) in
            [("a", 0), ("ccc", 3), ("a", 0), ("bb", 1), ("", 2), ("a", 0), ("bb", 1), ("a", 0)]
        {
            assert_eq!(stack_cache.find(text.as_bytes()), Some(StackId(place)), "{text}");
        }
        assert_eq!(stack_cache.find(b"d"), None);
    }
}
