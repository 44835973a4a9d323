//! Expandable segments: a long range of addresses in which whole pages get memory as they are needed.

use super::blocks::{Block, NONE, State};
use super::{Deed, Model, SMALL_SEGMENT, World};
use crate::start::AMPLE_RANGE;
use snapshot::Action;

/// The addresses of one expandable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    base: u64,
    page: u64,
}

impl<W: World> Model<W> {
    /// Bytes that a free block could offer if its unmapped neighbour had memory.
    pub(super) fn reach(&self, block: u32) -> u64 {
        let row = self.blocks.get(block);
        let behind = (row.next != NONE).then(|| self.blocks.get(row.next));
        row.size + behind.filter(|next| next.state == State::Unmapped).map_or(0, |next| next.size)
    }

    /// Maps pages until a free block of `size` bytes is there. On failure, pages mapped on the way stay.
    pub(super) fn grow_expandable(&mut self, list: u32, size: u64) -> Option<u32> {
        let mut block = self.first_with_room(list, size)?;
        if self.blocks.get(block).state == State::Unmapped && !self.map_block(block, size) {
            return None;
        }
        while self.blocks.get(block).size < size {
            let row = *self.blocks.get(block);
            if row.next == NONE || !self.map_block(row.next, size - row.size) {
                return None;
            }
            // The mapped part has absorbed the free one before it.
            block = row.next;
        }
        Some(block)
    }

    /// The first free part, mapped or not, from which on `size` bytes lie free; a new segment if there is none.
    fn first_with_room(&mut self, list: u32, size: u64) -> Option<u32> {
        let is_idle = |block: &Block| matches!(block.state, State::Free | State::Unmapped);
        for &(addr, unmapped) in &self.lists[list as usize].unmapped {
            let prev = self.blocks.get(unmapped).prev;
            let start = if prev != NONE && is_idle(self.blocks.get(prev)) { prev } else { unmapped };
            let (mut room, mut at) = (0u64, start);
            while room < size && at != NONE && is_idle(self.blocks.get(at)) {
                let row = self.blocks.get(at);
                if row.next == NONE {
                    // The end of the addresses is the world's business.
                    let Range { base, page } = self.ranges[row.range as usize];
                    let length = row.addr - base + (size - room);
                    room = if self.world.reaches(page, length, addr) { size } else { 0 };
                    break;
                }
                room = room.saturating_add(row.size);
                at = row.next;
            }
            if room >= size {
                return Some(start);
            }
        }
        let page = if self.lists[list as usize].small { SMALL_SEGMENT } else { self.conf.large_segment };
        let (base, bytes) = self.world.reserve(page)?;
        Some(self.add_range(list, base, page, bytes))
    }

    /// A new expandable segment: one block without memory.
    fn add_range(&mut self, list: u32, base: u64, page: u64, bytes: u64) -> u32 {
        self.ranges.push(Range { base, page });
        let block = self.add_segment(list, base, bytes, false);
        let range = self.ranges.len() as u32 - 1;
        let row = self.blocks.get_mut(block);
        row.range = range;
        row.state = State::Unmapped;
        self.lists[list as usize].unmapped.insert((base, block));
        block
    }

    /// Puts memory behind the first pages of an unmapped block, up to `wanted` bytes, and joins them with what is free
    /// around them.
    fn map_block(&mut self, block: u32, wanted: u64) -> bool {
        let Block { addr, size, list, range, .. } = *self.blocks.get(block);
        let got = wanted.min(size).next_multiple_of(self.ranges[range as usize].page);
        if !self.world.map(addr, got) {
            return false;
        }
        self.lists[list as usize].unmapped.remove(&(addr, block));
        self.blocks.get_mut(block).state = State::Free;
        if got < size {
            self.split_off(block, got, State::Unmapped);
        }
        let Block { prev, next, .. } = *self.blocks.get(block);
        for (neighbour, is_before) in [(prev, true), (next, false)] {
            if neighbour == NONE || self.blocks.get(neighbour).state != State::Free {
                continue;
            }
            self.unlist(neighbour);
            if is_before {
                self.blocks.absorb_prev(block);
            } else {
                self.blocks.absorb_next(block);
            }
        }
        self.list_free(block);
        self.reserve(got);
        self.tell(Deed { action: Action::SegmentMap, addr, size: got, stream: 0 }, block);
        true
    }

    /// Cuts a block after `keep` bytes; the rest is a new block, in no list yet.
    pub(crate) fn cut(&mut self, block: u32, keep: u64) -> u32 {
        let row = *self.blocks.get(block);
        let age = self.age(Some(row.age));
        let rest =
            self.blocks.add(Block { addr: row.addr + keep, size: row.size - keep, requested: 0, age, ..row });
        self.blocks.link_after(rest, block);
        self.blocks.get_mut(block).size = keep;
        rest
    }

    /// Cuts a block after `keep` bytes; the rest is a new block in `state`, in the set that belongs to it.
    fn split_off(&mut self, block: u32, keep: u64, state: State) -> u32 {
        let rest = self.cut(block, keep);
        let row = self.blocks.get_mut(rest);
        row.state = state;
        if state == State::Unmapped {
            let Block { addr, list, .. } = *row;
            self.lists[list as usize].unmapped.insert((addr, rest));
        } else {
            self.list_free(rest);
        }
        rest
    }

    /// Puts a free block into its list.
    pub(crate) fn list_free(&mut self, block: u32) {
        let list = self.blocks.get(block).list as usize;
        let searches = self.searches_of(list);
        let row = self.blocks.get_mut(block);
        row.free_since = searches;
        let listed = self.entry(block);
        self.lists[list].free.insert(listed);
    }

    /// Takes a free block out of its list.
    pub(super) fn unlist(&mut self, block: u32) {
        let listed = self.entry(block);
        let free = &mut self.lists[self.blocks.get(block).list as usize].free;
        free.remove(free.find(listed));
    }

    /// Takes the memory from the whole pages of a free block, and the addresses if nothing of the segment is left.
    pub(super) fn unmap_block(&mut self, block: u32) {
        let row = *self.blocks.get(block);
        let Range { base, page } = self.ranges[row.range as usize];
        let first = (row.addr - base).next_multiple_of(page);
        let end = (row.addr + row.size - base) / page * page;
        if first >= end {
            return;
        }
        let (addr, size) = (base + first, end - first);
        self.unlist(block);
        if addr > row.addr {
            // The front part is the new block; the pages stay with the old one.
            let age = self.age(Some(row.age));
            let front = self.blocks.add(Block {
                size: addr - row.addr,
                requested: 0,
                age,
                state: State::Free,
                ..row
            });
            self.blocks.link_before(front, block);
            self.list_free(front);
            let row = self.blocks.get_mut(block);
            row.size -= addr - row.addr;
            row.addr = addr;
        }
        if self.blocks.get(block).size > size {
            self.split_off(block, size, State::Free);
        }
        self.blocks.get_mut(block).state = State::Unmapped;
        let Block { prev, next, .. } = *self.blocks.get(block);
        for (neighbour, is_before) in [(prev, true), (next, false)] {
            if neighbour == NONE || self.blocks.get(neighbour).state != State::Unmapped {
                continue;
            }
            let start = self.blocks.get(neighbour).addr;
            self.lists[row.list as usize].unmapped.remove(&(start, neighbour));
            if is_before {
                self.blocks.absorb_prev(block);
            } else {
                self.blocks.absorb_next(block);
            }
        }
        self.world.unmap(size);
        self.counts.reserved = self.counts.reserved.saturating_sub(size);
        self.counts.device_frees += 1;
        self.tell(Deed { action: Action::SegmentUnmap, addr, size, stream: 0 }, block);
        if self.blocks.get(block).is_split() {
            let start = self.blocks.get(block).addr;
            self.lists[row.list as usize].unmapped.insert((start, block));
        } else {
            self.blocks.discard(block);
        }
    }

    /// An expandable segment as it was before the recording: mapped runs, by address, among unmapped addresses from
    /// `base` on. The blocks of the runs, in no list yet.
    pub(crate) fn adopt_range(&mut self, list: u32, base: u64, runs: &[(u64, u64)], page: u64) -> Vec<u32> {
        let page = if self.lists[list as usize].small { SMALL_SEGMENT } else { page };
        let Some(&(last, last_size)) = runs.last() else { return Vec::new() };
        let needed = (last + last_size - base).next_multiple_of(page);
        let mut rest =
            self.add_range(list, base, page, needed.saturating_add(AMPLE_RANGE).next_multiple_of(page));
        let mut mapped = Vec::new();
        for &(addr, size) in runs {
            let start = self.blocks.get(rest).addr;
            if addr > start {
                rest = self.split_off(rest, addr - start, State::Unmapped);
            }
            self.lists[list as usize].unmapped.remove(&(addr, rest));
            let behind = self.split_off(rest, size, State::Unmapped);
            self.blocks.get_mut(rest).state = State::Free;
            mapped.push(rest);
            rest = behind;
        }
        mapped
    }
}
