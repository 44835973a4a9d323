//! Release of memory to the driver: everything, just enough, or what was unused for long.

use super::blocks::{ModelBlock, NONE};
use super::{Completion, Environment, FreeBlock, Model, ModelEvent};
use snapshot::Action;

const DEFAULT_POOL: u32 = 0;

/// Maximum number of blocks of equal size and unknown age that are searched.
const MAX_TIED_BLOCKS: usize = 256;

impl<W: Environment> Model<W> {
    /// Does what `torch.cuda.empty_cache()` and the last attempt of a request do: waits for all streams, then
    /// releases every segment without a block in use.
    pub(crate) fn release_all(&mut self) {
        self.synchronize(None);
        self.release_pool(DEFAULT_POOL, false);
        self.release_pool(DEFAULT_POOL, true);
        while let Some(pool) = self.environment.next_retired_pool() {
            self.release_pool(pool, true);
            self.release_pool(pool, false);
        }
    }

    /// Deletes a `MemPool`: releases its segments without a block in use.
    pub(crate) fn end_pool(&mut self, pool: u32) {
        self.synchronize(Some(pool));
        self.release_pool(pool, true);
        self.release_pool(pool, false);
    }

    /// Waits for other streams: completes the pending frees, all of them or those of one pool.
    fn synchronize(&mut self, only: Option<u32>) {
        loop {
            match self.environment.next_completion() {
                Completion::All => {
                    let is_meant = |block: u32| {
                        only.is_none_or(|pool| self.lists[self.blocks.get(block).list as usize].pool == pool)
                    };
                    let all = self.pending.iter().map(|(&block, &token)| (block, token));
                    let meant: Vec<(u32, u32)> = all.filter(|&(block, _)| is_meant(block)).collect();
                    for (block, token) in meant {
                        self.complete_pending(block, token);
                    }
                    return;
                }
                // Others that happen to be complete are noticed on the way.
                Completion::Next(addr) => {
                    let found = self.pending.iter().find(|(block, _)| self.blocks.get(**block).addr == addr);
                    let Some((&block, &token)) = found else { return };
                    self.complete_pending(block, token);
                }
                Completion::Done => {
                    // PyTorch waits for every one of them: the next would be an event that the environment
                    // does not expect. With private pools some may have been postponed, which nothing
                    // records.
                    let next =
                        self.pending.first_key_value().filter(|_| only.is_none() && self.pools.len() == 1);
                    if let Some((&block, _)) = next {
                        let ModelBlock { addr, requested, .. } = *self.blocks.get(block);
                        self.emit(
                            ModelEvent { action: Action::FreeCompleted, addr, size: requested, stream: 0 },
                            block,
                        );
                    }
                    return;
                }
            }
        }
    }

    fn release_pool(&mut self, pool: u32, small: bool) {
        let mut expandable = Vec::new();
        for list in self.lists_of(pool, small) {
            let mut entries: Vec<FreeBlock> = self.lists[list].free.iter().copied().collect();
            for next in 0..entries.len() {
                self.bring_older_forward(&mut entries[next..]);
                let FreeBlock { block, .. } = entries[next];
                let row = self.blocks.get(block);
                if row.is_expandable() {
                    expandable.push(block);
                } else if !row.is_split() {
                    self.release_segment(block);
                }
            }
        }
        for block in expandable {
            self.unmap_block(block);
        }
    }

    /// Reorders blocks of equal size and unknown age: the one that the environment knows to be next goes
    /// first.
    fn bring_older_forward(&self, entries: &mut [FreeBlock]) {
        let Some(&first) = entries.first().filter(|first| self.is_of_unknown_age(first)) else { return };
        let is_tied = |entry: &FreeBlock| entry.size == first.size && self.is_of_unknown_age(entry);
        let tied = entries.iter().take(MAX_TIED_BLOCKS).take_while(|entry| is_tied(entry)).count();
        let known = entries[..tied]
            .iter()
            .position(|entry| self.environment.takes(self.blocks.get(entry.block).addr));
        if let Some(known) = known {
            entries[..=known].rotate_right(1);
        }
    }

    /// Iterates over the lists of a pool's size class, by stream.
    fn lists_of(&self, pool: u32, small: bool) -> impl Iterator<Item = usize> + use<W> {
        let first = self.lanes.partition_point(|lane| lane.pool < pool);
        let end = self.lanes.partition_point(|lane| lane.pool <= pool);
        (first..end).map(move |lane| lane * 2 + usize::from(!small))
    }

    /// Releases an ordinary segment that is one free block.
    fn release_segment(&mut self, block: u32) {
        let row = *self.blocks.get(block);
        self.emit(
            ModelEvent { action: Action::SegmentFree, addr: row.addr, size: row.size, stream: 0 },
            block,
        );
        self.environment.free(row.addr, row.size);
        self.counts.reserved = self.counts.reserved.saturating_sub(row.size);
        self.counts.device_frees += 1;
        self.unlist(block);
        // Settings changed while a program runs can leave an oversize block with neighbours: these become
        // separate.
        for (neighbour, is_before) in [(row.prev, true), (row.next, false)] {
            if neighbour != NONE {
                let neighbour = self.blocks.get_mut(neighbour);
                *(if is_before { &mut neighbour.next } else { &mut neighbour.prev }) = NONE;
            }
        }
        self.blocks.discard(block);
    }

    /// With `max_split_size_mb`: releases one oversize block that is large enough, or else as many of the
    /// largest as make up the request. Returns whether they do.
    pub(super) fn release_available(&mut self, list: u32, size: u64) -> bool {
        let Some(max_split) = self.conf.max_split else { return false };
        let need = size.max(max_split);
        let free = &self.lists[list as usize].free;
        let from = free.first_from(need);
        if let Some(&FreeBlock { block, .. }) = free.get(from)
            && !self.blocks.get(block).is_expandable()
        {
            self.release_segment(block);
            return true;
        }
        let mut chosen = Vec::new();
        let mut released = 0u64;
        let mut place = free.before(from);
        while let Some(at) = place
            && released < need
            && let Some(&FreeBlock { block, size, .. }) = free.get(at)
            && size >= max_split
        {
            if !self.blocks.get(block).is_expandable() {
                released += size;
                chosen.push(block);
            }
            place = free.before(at);
        }
        for block in chosen {
            self.release_segment(block);
        }
        released >= need
    }

    /// With `garbage_collection_threshold` and a limit: releases the large segments that were free for longer
    /// than the mean, until the reserved bytes are below the threshold.
    pub(super) fn collect_garbage(&mut self) {
        let clock = self.searches[DEFAULT_POOL as usize][1];
        let mut idle: Vec<(u32, u64)> = Vec::new();
        for list in self.lists_of(DEFAULT_POOL, false) {
            for &FreeBlock { block, .. } in self.lists[list].free.iter() {
                let row = self.blocks.get(block);
                if !row.is_split() {
                    idle.push((block, clock - row.free_since));
                }
            }
        }
        loop {
            let ages: u64 = idle.iter().map(|(_, age)| age).sum();
            let mean = ages as f64 / idle.len() as f64;
            let is_old = |block: u32, age: u64| age as f64 >= mean && !self.blocks.get(block).is_expandable();
            let (old, rest): (Vec<_>, Vec<_>) =
                idle.into_iter().partition(|&(block, age)| is_old(block, age));
            let Some(&(victim, _)) = old.first() else { return };
            let addr = self.blocks.get(victim).addr;
            if !self.environment.is_above_threshold(self.counts.reserved, addr) {
                return;
            }
            for (block, _) in old {
                self.release_segment(block);
            }
            idle = rest;
        }
    }
}
