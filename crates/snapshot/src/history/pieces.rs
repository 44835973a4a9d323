//! Pieces that segments are cut into, in use or free, each linked to its neighbours.

use super::NONE;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Contiguous part of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentPiece {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) region: u32,
    /// Allocation that occupies the piece, or [`NONE`] if it is free.
    pub(super) allocation: u32,
    before: u32,
    after: u32,
}

impl SegmentPiece {
    pub(super) fn is_free(&self) -> bool {
        self.allocation == NONE
    }

    fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }
}

/// All pieces, by address. The index of a piece stays valid for as long as the piece exists.
#[derive(Default)]
pub(super) struct Pieces {
    table: Vec<SegmentPiece>,
    unused: Vec<u32>,
    by_address: HashMap<u64, u32, FxBuildHasher>,
}

impl Pieces {
    /// Returns the piece that begins at `addr`.
    #[inline]
    pub(super) fn find(&self, addr: u64) -> Option<u32> {
        self.by_address.get(&addr).copied().filter(|&place| self.table[place as usize].addr == addr)
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> &SegmentPiece {
        &self.table[place as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SegmentPiece> {
        self.by_address.values().map(|&place| &self.table[place as usize])
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Adds a piece after `before` (or [`NONE`]), linked to the piece that followed it.
    pub(super) fn add(&mut self, addr: u64, size: u64, region: u32, allocation: u32, before: u32) -> u32 {
        let after = if before == NONE { NONE } else { self.table[before as usize].after };
        let piece = SegmentPiece { addr, size, region, allocation, before, after };
        let place = match self.unused.pop() {
            Some(place) => {
                self.table[place as usize] = piece;
                place
            }
            None => {
                self.table.push(piece);
                self.table.len() as u32 - 1
            }
        };
        self.link(before, place);
        self.link(place, after);
        self.by_address.insert(addr, place);
        place
    }

    /// Gives a free piece to an allocation; the unused rest stays free behind it.
    #[inline]
    pub(super) fn take(&mut self, place: u32, size: u64, allocation: u32) {
        let piece = &mut self.table[place as usize];
        let (rest, region) = (piece.size - size, piece.region);
        piece.allocation = allocation;
        piece.size = size;
        if rest > 0 {
            let addr = piece.end();
            self.add(addr, rest, region, NONE, place);
        }
    }

    /// Cuts a free piece in two at `addr`, which is inside it, and returns the second part.
    pub(super) fn cut(&mut self, place: u32, addr: u64) -> u32 {
        let piece = &mut self.table[place as usize];
        let (first, region) = (addr - piece.addr, piece.region);
        let rest = piece.size - first;
        piece.size = first;
        self.add(addr, rest, region, NONE, place)
    }

    /// Frees a piece and merges it with free neighbours. Returns its size then, the number of merged
    /// neighbours and their bytes.
    #[inline]
    pub(super) fn free(&mut self, place: u32) -> (u64, i64, u64) {
        let (mut count, mut bytes) = (0, 0_u64);
        self.table[place as usize].allocation = NONE;
        let SegmentPiece { before, after, .. } = self.table[place as usize];
        let mut joined = place;
        if before != NONE && self.table[before as usize].is_free() {
            count += 1;
            bytes = bytes.saturating_add(self.table[before as usize].size);
            self.absorb(before, place);
            joined = before;
        }
        if after != NONE && self.table[after as usize].is_free() {
            count += 1;
            bytes = bytes.saturating_add(self.table[after as usize].size);
            self.absorb(joined, after);
        }
        (self.table[joined as usize].size, count, bytes)
    }

    /// Extends `place` by the piece behind it, which is removed.
    fn absorb(&mut self, place: u32, behind: u32) {
        let absorbed = self.table[behind as usize];
        let piece = &mut self.table[place as usize];
        piece.size = piece.size.saturating_add(absorbed.size);
        self.link(place, absorbed.after);
        self.forget(behind);
    }

    /// Removes a piece; its neighbours are no longer linked there.
    pub(super) fn remove(&mut self, place: u32) {
        let SegmentPiece { before, after, .. } = self.table[place as usize];
        if before != NONE {
            self.table[before as usize].after = NONE;
        }
        if after != NONE {
            self.table[after as usize].before = NONE;
        }
        self.forget(place);
    }

    /// Adds a free piece between the adjacent pieces of the same region, merged with those that are free.
    /// Searches all pieces.
    pub(super) fn insert(&mut self, addr: u64, size: u64, region: u32) {
        let in_front = self
            .by_address
            .values()
            .copied()
            .find(|&place| {
                self.table[place as usize].region == region && self.table[place as usize].end() == addr
            })
            .filter(|&place| self.table[place as usize].after == NONE);
        let place = self.add(addr, size, region, NONE, in_front.unwrap_or(NONE));
        if let Some(behind) = self.find(addr.saturating_add(size))
            && behind != place
            && self.table[behind as usize].region == region
            && self.table[behind as usize].before == NONE
        {
            self.link(place, behind);
        }
        self.free(place);
    }

    fn forget(&mut self, place: u32) {
        let addr = self.table[place as usize].addr;
        // Two blocks of a damaged file may claim one address; the newer one owns the entry.
        if self.by_address.get(&addr) == Some(&place) {
            self.by_address.remove(&addr);
        }
        self.unused.push(place);
    }

    fn link(&mut self, first: u32, second: u32) {
        if first != NONE {
            self.table[first as usize].after = second;
        }
        if second != NONE {
            self.table[second as usize].before = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(pieces: &Pieces) -> Vec<(u64, u64, bool)> {
        let mut shape: Vec<_> =
            pieces.iter().map(|piece| (piece.addr, piece.size, piece.is_free())).collect();
        shape.sort_unstable();
        shape
    }

    #[test]
    fn pieces_split_and_join_like_the_blocks_of_a_segment() {
        let mut pieces = Pieces::default();
        let first = pieces.add(0, 100, 0, NONE, NONE);
        pieces.take(first, 10, 1);
        let second = pieces.find(10).expect("the rest");
        pieces.take(second, 20, 2);
        assert_eq!(shape(&pieces), [(0, 10, false), (10, 20, false), (30, 70, true)]);
        assert_eq!(pieces.free(first), (10, 0, 0));
        assert_eq!(pieces.free(second), (100, 2, 80));
        assert_eq!(shape(&pieces), [(0, 100, true)]);
    }

    #[test]
    fn mapped_pages_merge_with_free_neighbours_on_both_sides() {
        let mut pieces = Pieces::default();
        pieces.insert(0, 20, 0);
        pieces.insert(40, 20, 0);
        pieces.insert(60, 20, 1);
        pieces.insert(20, 20, 0);
        assert_eq!(shape(&pieces), [(0, 60, true), (60, 20, true)]);
        let whole = pieces.find(0).expect("joined");
        let middle = pieces.cut(whole, 20);
        pieces.cut(middle, 40);
        pieces.remove(middle);
        assert_eq!(shape(&pieces), [(0, 20, true), (40, 20, true), (60, 20, true)]);
    }
}
