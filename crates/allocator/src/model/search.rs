//! Which free block a request gets.

use super::free_list::{Entry, FreeList, Place};
use super::{Found, Model, NONE, State, World};
use crate::rules::Tie;

/// Blocks of equal size that are looked through for one at a guessed address.
const MOST_TIED: usize = 32;

impl<W: World> Model<W> {
    /// Looks for a free block, and counts the search.
    #[inline]
    pub(super) fn search(&mut self, list: u32, size: u64, expandable: bool) -> Option<Found> {
        if self.world.collects() {
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
        Some(Found { block, place: Some(place) })
    }

    /// The free block that a request gets: the smallest that is large enough, with PyTorch's exceptions.
    #[inline]
    fn candidate(&self, list: u32, size: u64, expandable: bool) -> Option<(Place, Entry)> {
        let free = &self.lists[list as usize].free;
        let mut place = free.first_from(size);
        let mut entry = *free.get(place)?;
        if self.blocks.get(entry.block).is_expandable() {
            if expandable {
                if let Some(known) = self.known_to_be_taken(free, place) {
                    return Some(known);
                }
                // Among those, one that could grow further is kept for later.
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

    /// How far the last block of an expandable segment can grow hangs on the size of the card. Where that is not known, the
    /// world may know which block is taken.
    #[cold]
    fn known_to_be_taken(&self, free: &FreeList, first: Place) -> Option<(Place, Entry)> {
        if self.world.knows_ranges() {
            return None;
        }
        let mut place = first;
        while let Some(entry) = free.get(place) {
            let row = self.blocks.get(entry.block);
            if self.world.takes(row.addr) {
                return Some((place, *entry));
            }
            let can_grow = row.next != NONE && self.blocks.get(row.next).state == State::Unmapped;
            // Beyond a block that cannot grow the search never goes.
            if !row.is_expandable() || !can_grow {
                return None;
            }
            place = free.after(place);
        }
        None
    }

    /// Up to 2.11 the lower address wins among equal sizes; a guessed one may have it wrong.
    #[inline]
    fn note_tie(&mut self, list: u32, place: Place, entry: &Entry) {
        let free = &self.lists[list as usize].free;
        let chosen = self.blocks.get(entry.block);
        let mut at = free.after(place);
        for _ in 0..MOST_TIED {
            let Some(other) = free.get(at).filter(|other| other.size == entry.size) else { return };
            let other = self.blocks.get(other.block);
            if other.segment != chosen.segment && (chosen.guessed || other.guessed) {
                self.counts.guessed_ties += 1;
                return;
            }
            at = free.after(at);
        }
        // Not looked further: it may be one.
        self.counts.guessed_ties += 1;
    }

    /// From 2.12 on the older block or segment wins among equal sizes. Of those that were there before the recording the
    /// ages are not known: the world may know which one it was.
    fn older(&self, list: u32, place: Place, entry: &Entry) -> (Place, u32) {
        let free = &self.lists[list as usize].free;
        let mut at = free.after(place);
        while let Some(other) = free.get(at)
            && other.size == entry.size
            && self.is_of_unknown_age(entry)
            && self.is_of_unknown_age(other)
        {
            if self.world.takes(self.blocks.get(other.block).addr) {
                return (at, other.block);
            }
            at = free.after(at);
        }
        (place, entry.block)
    }

    /// Whether a block was there before the recording, so that its age is anybody's guess where it counts.
    pub(super) fn is_of_unknown_age(&self, entry: &Entry) -> bool {
        self.rules.tie != Tie::Address && self.blocks.get(entry.block).age <= self.made_before
    }
}
