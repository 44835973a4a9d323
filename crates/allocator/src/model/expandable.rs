//! Expandable segments: a long range of addresses in which whole pages are mapped as needed.

use super::blocks::{ModelBlock, ModelBlockState, NONE};
use super::{Environment, LaneMemory, Model, ModelEvent, SMALL_SEGMENT_BYTES};
use snapshot::Action;

/// Bytes of addresses for an expandable segment if the size of the card is unknown: more than any card has.
pub(crate) const AMPLE_RANGE_BYTES: u64 = 1 << 44;

/// Addresses of one expandable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpandableRange {
    base: u64,
    page: u64,
}

impl<W: Environment> Model<W> {
    /// Bytes that a free block could offer if its unmapped neighbour were mapped.
    pub(super) fn reach(&self, block: u32) -> u64 {
        let row = self.blocks.get(block);
        let behind = (row.next != NONE).then(|| self.blocks.get(row.next));
        row.size + behind.filter(|next| next.state == ModelBlockState::Unmapped).map_or(0, |next| next.size)
    }

    /// Maps pages until there is a free block of `size` bytes. On failure, pages mapped so far stay mapped.
    pub(super) fn grow_expandable(&mut self, list: u32, size: u64) -> Option<u32> {
        let mut block = self.first_with_room(list, size)?;
        if self.blocks.get(block).state == ModelBlockState::Unmapped && !self.map_block(block, size) {
            return None;
        }
        while self.blocks.get(block).size < size {
            let row = *self.blocks.get(block);
            if row.next == NONE || !self.map_block(row.next, size - row.size) {
                return None;
            }
            // The mapped part has absorbed the free block before it.
            block = row.next;
        }
        Some(block)
    }

    /// Returns the first free part, mapped or not, that is followed by `size` free bytes; a new segment if
    /// there is none.
    fn first_with_room(&mut self, list: u32, size: u64) -> Option<u32> {
        let is_idle =
            |block: &ModelBlock| matches!(block.state, ModelBlockState::Free | ModelBlockState::Unmapped);
        for &(addr, unmapped) in &self.lists[list as usize].unmapped {
            let prev = self.blocks.get(unmapped).prev;
            let start = if prev != NONE && is_idle(self.blocks.get(prev)) { prev } else { unmapped };
            let (mut room, mut at) = (0u64, start);
            while room < size && at != NONE && is_idle(self.blocks.get(at)) {
                let row = self.blocks.get(at);
                if row.next == NONE {
                    // The environment knows where the addresses end.
                    let ExpandableRange { base, page } = self.ranges[row.range as usize];
                    let length = row.addr - base + (size - room);
                    room = if self.environment.reaches(page, length, addr) { size } else { 0 };
                    break;
                }
                room = room.saturating_add(row.size);
                at = row.next;
            }
            if room >= size {
                return Some(start);
            }
        }
        let page = self.next_page(list);
        self.lists[list as usize].unplaced_page = Some(page);
        let (base, bytes) = self.environment.reserve(page)?;
        self.lists[list as usize].unplaced_page = None;
        Some(self.add_range(list, base, page, bytes))
    }

    /// Returns the page size of the next expandable segment.
    fn next_page(&self, list: u32) -> u64 {
        let LaneMemory { small, unplaced_page, .. } = &self.lists[list as usize];
        unplaced_page.unwrap_or(if *small { SMALL_SEGMENT_BYTES } else { self.conf.large_segment })
    }

    /// Fixes the page size of the first expandable segment of a list, whose address is unknown.
    pub(super) fn plan_range(&mut self, list: u32) {
        if self.lists[list as usize].unmapped.is_empty() {
            self.lists[list as usize].unplaced_page = Some(self.next_page(list));
        }
    }

    /// Adds an expandable segment: one block without memory.
    fn add_range(&mut self, list: u32, base: u64, page: u64, bytes: u64) -> u32 {
        self.ranges.push(ExpandableRange { base, page });
        let block = self.add_segment(list, base, bytes, false);
        let range = self.ranges.len() as u32 - 1;
        let row = self.blocks.get_mut(block);
        row.range = range;
        row.state = ModelBlockState::Unmapped;
        self.lists[list as usize].unmapped.insert((base, block));
        block
    }

    /// Maps the first pages of an unmapped block, up to `wanted` bytes, and merges them with free neighbours.
    fn map_block(&mut self, block: u32, wanted: u64) -> bool {
        let ModelBlock { addr, size, list, range, .. } = *self.blocks.get(block);
        let got = wanted.min(size).next_multiple_of(self.ranges[range as usize].page);
        if !self.environment.map(addr, got) {
            return false;
        }
        self.lists[list as usize].unmapped.remove(&(addr, block));
        self.blocks.get_mut(block).state = ModelBlockState::Free;
        if got < size {
            self.split_off(block, got, ModelBlockState::Unmapped);
        }
        let ModelBlock { prev, next, .. } = *self.blocks.get(block);
        for (neighbour, is_before) in [(prev, true), (next, false)] {
            if neighbour == NONE || self.blocks.get(neighbour).state != ModelBlockState::Free {
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
        self.emit(ModelEvent { action: Action::SegmentMap, addr, size: got, stream: 0 }, block);
        true
    }

    /// Splits a block after `keep` bytes; the rest is a new block, in no free list yet.
    pub(crate) fn cut(&mut self, block: u32, keep: u64) -> u32 {
        let row = *self.blocks.get(block);
        let age = self.age(Some(row.age));
        let rest = self.blocks.add(ModelBlock {
            addr: row.addr + keep,
            size: row.size - keep,
            requested: 0,
            age,
            ..row
        });
        self.blocks.link_after(rest, block);
        self.blocks.get_mut(block).size = keep;
        rest
    }

    /// Splits a block after `keep` bytes; the rest is a new block in `state`, in the corresponding set.
    fn split_off(&mut self, block: u32, keep: u64, state: ModelBlockState) -> u32 {
        let rest = self.cut(block, keep);
        let row = self.blocks.get_mut(rest);
        row.state = state;
        if state == ModelBlockState::Unmapped {
            let ModelBlock { addr, list, .. } = *row;
            self.lists[list as usize].unmapped.insert((addr, rest));
        } else {
            self.list_free(rest);
        }
        rest
    }

    /// Adds a free block to its free list.
    pub(crate) fn list_free(&mut self, block: u32) {
        let list = self.blocks.get(block).list as usize;
        let searches = self.searches_of(list);
        let row = self.blocks.get_mut(block);
        row.free_since = searches;
        let listed = self.entry(block);
        self.lists[list].free.insert(listed);
    }

    /// Removes a free block from its free list.
    pub(super) fn unlist(&mut self, block: u32) {
        let listed = self.entry(block);
        let free = &mut self.lists[self.blocks.get(block).list as usize].free;
        free.remove(free.find(listed));
    }

    /// Unmaps the whole pages of a free block, and releases the addresses if the segment is then empty.
    pub(super) fn unmap_block(&mut self, block: u32) {
        let row = *self.blocks.get(block);
        let ExpandableRange { base, page } = self.ranges[row.range as usize];
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
            let front = self.blocks.add(ModelBlock {
                size: addr - row.addr,
                requested: 0,
                age,
                state: ModelBlockState::Free,
                ..row
            });
            self.blocks.link_before(front, block);
            self.list_free(front);
            let row = self.blocks.get_mut(block);
            row.size -= addr - row.addr;
            row.addr = addr;
        }
        if self.blocks.get(block).size > size {
            self.split_off(block, size, ModelBlockState::Free);
        }
        self.blocks.get_mut(block).state = ModelBlockState::Unmapped;
        let ModelBlock { prev, next, .. } = *self.blocks.get(block);
        for (neighbour, is_before) in [(prev, true), (next, false)] {
            if neighbour == NONE || self.blocks.get(neighbour).state != ModelBlockState::Unmapped {
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
        self.environment.unmap(size);
        self.counts.reserved = self.counts.reserved.saturating_sub(size);
        self.counts.device_frees += 1;
        self.emit(ModelEvent { action: Action::SegmentUnmap, addr, size, stream: 0 }, block);
        if self.blocks.get(block).is_split() {
            let start = self.blocks.get(block).addr;
            self.lists[row.list as usize].unmapped.insert((start, block));
        } else {
            self.blocks.discard(block);
        }
    }

    /// Adds an expandable segment as it was before the recording: mapped runs, by address, among unmapped
    /// addresses from `base` on. Returns the blocks of the runs, in no free list yet.
    pub(crate) fn adopt_range(&mut self, list: u32, base: u64, runs: &[(u64, u64)], page: u64) -> Vec<u32> {
        let page = if self.lists[list as usize].small { SMALL_SEGMENT_BYTES } else { page };
        let Some(&(last, last_size)) = runs.last() else { return Vec::new() };
        let needed = (last + last_size - base).next_multiple_of(page);
        let mut rest =
            self.add_range(list, base, page, needed.saturating_add(AMPLE_RANGE_BYTES).next_multiple_of(page));
        let mut mapped = Vec::new();
        for &(addr, size) in runs {
            let start = self.blocks.get(rest).addr;
            if addr > start {
                rest = self.split_off(rest, addr - start, ModelBlockState::Unmapped);
            }
            self.lists[list as usize].unmapped.remove(&(addr, rest));
            let behind = self.split_off(rest, size, ModelBlockState::Unmapped);
            self.blocks.get_mut(rest).state = ModelBlockState::Free;
            mapped.push(rest);
            rest = behind;
        }
        mapped
    }
}
