//! Free blocks in the order in which PyTorch searches them: by size, then by the tie-breaker of the release.
//!
//! A sorted array in chunks: lists are short in nearly every run (tens to hundreds of blocks), so moving a
//! few entries is faster than a tree; chunks bound the bytes moved in a list of a million blocks.

/// Free block as the search sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeBlock {
    pub(crate) size: u64,
    /// Tie-breaker between equal sizes: the lower one goes first, and it is unique.
    pub(crate) rank: u64,
    pub(crate) block: u32,
}

impl FreeBlock {
    /// Both parts in one number: one comparison without a branch.
    #[inline]
    fn key(&self) -> u128 {
        key(self.size, self.rank)
    }
}

#[inline]
fn key(size: u64, rank: u64) -> u128 {
    u128::from(size) << 64 | u128::from(rank)
}

/// Position of an entry, or where one would be inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeListPosition {
    chunk: usize,
    index: usize,
}

/// Sorted entries. No chunk is ever empty.
#[derive(Clone, Default)]
pub(crate) struct FreeList {
    chunks: Vec<Vec<FreeBlock>>,
}

/// Maximum number of entries in a chunk.
const MAX_CHUNK_ENTRIES: usize = 256;

impl FreeList {
    /// Position of the first entry of at least this size.
    #[inline]
    pub(crate) fn first_from(&self, size: u64) -> FreeListPosition {
        self.lower_bound(key(size, 0))
    }

    #[inline]
    pub(crate) fn get(&self, place: FreeListPosition) -> Option<&FreeBlock> {
        self.chunks.get(place.chunk)?.get(place.index)
    }

    /// Position after this one; [`FreeList::get`] returns `None` at the end.
    pub(crate) fn after(&self, place: FreeListPosition) -> FreeListPosition {
        let in_chunk = self.chunks.get(place.chunk).map_or(0, Vec::len);
        if place.index + 1 < in_chunk {
            FreeListPosition { index: place.index + 1, ..place }
        } else {
            FreeListPosition { chunk: place.chunk + 1, index: 0 }
        }
    }

    /// Position before this one.
    pub(crate) fn before(&self, place: FreeListPosition) -> Option<FreeListPosition> {
        if place.index > 0 {
            return Some(FreeListPosition { index: place.index - 1, ..place });
        }
        let chunk = place.chunk.checked_sub(1)?;
        Some(FreeListPosition { chunk, index: self.chunks.get(chunk)?.len() - 1 })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FreeBlock> {
        self.chunks.iter().flatten()
    }

    pub(crate) fn insert(&mut self, entry: FreeBlock) {
        let place = self.lower_bound(entry.key());
        if self.chunks.is_empty() {
            self.chunks.push(vec![entry]);
            return;
        }
        // Behind the last chunk means at its end.
        let chunk_index = place.chunk.min(self.chunks.len() - 1);
        let chunk = &mut self.chunks[chunk_index];
        let index = if place.chunk == chunk_index { place.index } else { chunk.len() };
        chunk.insert(index, entry);
        if chunk.len() > MAX_CHUNK_ENTRIES {
            let upper = chunk.split_off(MAX_CHUNK_ENTRIES / 2);
            self.chunks.insert(chunk_index + 1, upper);
        }
    }

    /// Position of an entry that is in the list.
    #[inline]
    pub(crate) fn find(&self, entry: FreeBlock) -> FreeListPosition {
        let place = self.lower_bound(entry.key());
        debug_assert_eq!(self.get(place), Some(&entry), "the entry is in the list");
        place
    }

    /// Removes the entry at a position.
    #[inline]
    pub(crate) fn remove(&mut self, place: FreeListPosition) {
        let Some(chunk) = self.chunks.get_mut(place.chunk) else { return };
        chunk.remove(place.index);
        if chunk.is_empty() {
            self.chunks.remove(place.chunk);
        }
    }

    /// Replaces an entry by `new`. Usually they are close in size: most of a free block stays free after a
    /// split, and a block that grows by a merge rarely passes many others.
    pub(crate) fn replace(&mut self, place: FreeListPosition, new: FreeBlock) {
        let (is_first, is_last) = (place.chunk == 0, place.chunk + 1 == self.chunks.len());
        let Some(chunk) = self.chunks.get_mut(place.chunk) else { return };
        let (low, high) = chunk.split_at_mut(place.index);
        let key = new.key();
        if low.last().is_some_and(|entry| entry.key() > key) {
            let to = low.partition_point(|entry| entry.key() < key);
            if to > 0 || is_first {
                chunk.copy_within(to..place.index, to + 1);
                chunk[to] = new;
                return;
            }
        } else if high.get(1).is_some_and(|entry| entry.key() < key) {
            let to = high[1..].partition_point(|entry| entry.key() < key);
            if place.index + to + 1 < chunk.len() || is_last {
                chunk.copy_within(place.index + 1..=place.index + to, place.index);
                chunk[place.index + to] = new;
                return;
            }
        } else if (is_first || place.index > 0) && (is_last || place.index + 1 < chunk.len()) {
            chunk[place.index] = new;
            return;
        }
        self.remove(place);
        self.insert(new);
    }

    #[inline]
    fn lower_bound(&self, key: u128) -> FreeListPosition {
        let chunk = match self.chunks.len() {
            0 | 1 => 0,
            _ => self.chunks.partition_point(|chunk| chunk[chunk.len() - 1].key() < key),
        };
        let index =
            self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(|entry| entry.key() < key));
        FreeListPosition { chunk, index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Deterministic pseudorandom number generator.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    #[test]
    fn a_free_list_behaves_like_a_sorted_map() {
        let mut random = Random(7);
        let mut list = FreeList::default();
        let mut map: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        let as_entry = |(&(size, rank), &block): (&(u64, u64), &u32)| FreeBlock { size, rank, block };
        for round in 0..40_000u32 {
            let new = FreeBlock { size: random.below(300), rank: u64::from(round), block: round };
            let some = random.below(map.len() as u64 + 1) as usize;
            let old = map.iter().nth(some).map(as_entry);
            // Grows to some two thousand entries, then shrinks.
            match (random.below(if round < 20_000 { 4 } else { 6 }), old) {
                (0 | 1, _) | (_, None) => {
                    list.insert(new);
                    map.insert((new.size, new.rank), new.block);
                }
                (2, Some(old)) => {
                    list.replace(list.find(old), new);
                    map.remove(&(old.size, old.rank));
                    map.insert((new.size, new.rank), new.block);
                }
                (_, Some(old)) => {
                    list.remove(list.find(old));
                    map.remove(&(old.size, old.rank));
                }
            }
            let size = random.below(310);
            let mut from = map.range((size, 0)..).map(as_entry);
            let place = list.first_from(size);
            let expected = from.next();
            assert_eq!(list.get(place).copied(), expected);
            if expected.is_some() {
                assert_eq!(list.get(list.after(place)).copied(), from.next());
            }
            let before = list.before(place).and_then(|place| list.get(place)).copied();
            assert_eq!(before, map.range(..(size, 0)).next_back().map(as_entry));
        }
        assert!(list.iter().copied().eq(map.iter().map(as_entry)));
    }
}
