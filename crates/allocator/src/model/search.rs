//! Search for the free block that a request gets.

use super::free_list::{FreeBlock, FreeList, FreeListPosition};
use super::{BlockMatch, Environment, Model, ModelBlockState, NONE};
use crate::rules::Tie;

/// Maximum number of blocks of equal size that are searched for a guessed address.
const MAX_TIED_BLOCKS: usize = 32;

impl<W: Environment> Model<W> {
    /// Finds a free block, and counts the search.
    #[inline]
    pub(super) fn search(&mut self, list: u32, size: u64, expandable: bool) -> Option<BlockMatch> {
        if self.environment.collects() {
            let class = usize::from(!self.lists[list as usize].small);
            let pool = self.pool_of(list);
            self.searches[pool][class] += 1;
        }
        let (place, entry) = self.candidate(list, size, expandable)?;
        let (place, block) = match self.rules.tie {
            Tie::Address => {
                if self.guesses {
                    self.note_tie(list, place, &entry);
                }
                (place, entry.block)
            }
            Tie::Block | Tie::Segment => self.older(list, place, &entry),
        };
        Some(BlockMatch { block, place: Some(place) })
    }

    /// Returns the free block that a request gets: the smallest that is large enough, with PyTorch's
    /// exceptions.
    #[inline]
    pub(super) fn candidate(
        &self,
        list: u32,
        size: u64,
        expandable: bool,
    ) -> Option<(FreeListPosition, FreeBlock)> {
        let free = &self.lists[list as usize].free;
        let mut place = free.first_from(size);
        let mut entry = *free.get(place)?;
        if self.blocks.get(entry.block).is_expandable() {
            if expandable {
                if let Some(known) = self.known_to_be_taken(free, place) {
                    return Some(known);
                }
                // Among those, a block that could grow further is kept for later.
                while self.blocks.get(entry.block).is_expandable() {
                    let after = free.after(place);
                    match free.get(after) {
                        Some(next) if self.reach(next.block) < self.reach(entry.block) => {
                            (place, entry) = (after, *next);
                        }
                        _ => break,
                    }
                }
            } else {
                while self.blocks.get(entry.block).is_expandable() {
                    place = free.after(place);
                    entry = *free.get(place)?;
                }
            }
        }
        let conf = &self.conf;
        if conf.max_split.is_some() {
            if !conf.is_oversize(size) && conf.is_oversize(entry.size) {
                return None;
            }
            if conf.is_oversize(size) && entry.size >= size.saturating_add(conf.non_split_rounding) {
                return None;
            }
        }
        Some((place, entry))
    }

    /// Returns the block that the environment knows to be taken. How far the last block of an expandable
    /// segment can grow depends on the size of the card, which may be unknown.
    #[cold]
    fn known_to_be_taken(
        &self,
        free: &FreeList,
        first: FreeListPosition,
    ) -> Option<(FreeListPosition, FreeBlock)> {
        if self.environment.knows_ranges() {
            return None;
        }
        let mut place = first;
        while let Some(entry) = free.get(place) {
            let row = self.blocks.get(entry.block);
            if self.environment.takes(row.addr) {
                return Some((place, *entry));
            }
            let can_grow = row.next != NONE && self.blocks.get(row.next).state == ModelBlockState::Unmapped;
            // The search never goes beyond a block that cannot grow.
            if !row.is_expandable() || !can_grow {
                return None;
            }
            place = free.after(place);
        }
        None
    }

    /// Counts a tie that a guessed address may decide wrongly: up to torch 2.11 the lower address wins among
    /// equal sizes.
    #[inline]
    fn note_tie(&mut self, list: u32, place: FreeListPosition, entry: &FreeBlock) {
        let free = &self.lists[list as usize].free;
        let chosen = self.blocks.get(entry.block);
        let mut at = free.after(place);
        for _ in 0..MAX_TIED_BLOCKS {
            let Some(other) = free.get(at).filter(|other| other.size == entry.size) else { return };
            let other = self.blocks.get(other.block);
            if other.segment != chosen.segment && (chosen.guessed || other.guessed) {
                self.counts.guessed_ties += 1;
                return;
            }
            at = free.after(at);
        }
        // The search is cut off here: there may be one.
        self.counts.guessed_ties += 1;
    }

    /// Returns the block that wins among equal sizes from torch 2.12 on: the older block or segment. Ages
    /// before the recording are unknown, but the environment may know which one it was.
    fn older(&self, list: u32, place: FreeListPosition, entry: &FreeBlock) -> (FreeListPosition, u32) {
        let free = &self.lists[list as usize].free;
        let mut at = free.after(place);
        while let Some(other) = free.get(at)
            && other.size == entry.size
            && self.is_of_unknown_age(entry)
            && self.is_of_unknown_age(other)
        {
            if self.environment.takes(self.blocks.get(other.block).addr) {
                return (at, other.block);
            }
            at = free.after(at);
        }
        (place, entry.block)
    }

    /// Returns whether a block was created before the recording, so that its age is unknown where it decides
    /// ties.
    pub(super) fn is_of_unknown_age(&self, entry: &FreeBlock) -> bool {
        self.rules.tie != Tie::Address && self.blocks.get(entry.block).age <= self.made_before
    }
}
