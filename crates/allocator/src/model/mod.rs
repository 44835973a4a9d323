//! Allocator model: one device, both kinds of segments, every pool and stream.
//!
//! Names follow PyTorch's public ones. A *lane* is a pool and a stream; each has one list of free blocks for
//! small requests and one for large ones, because blocks never move between pools, streams or size classes.

mod blocks;
mod environment;
mod expandable;
mod free_list;
mod release;
mod search;

pub(crate) use blocks::{ModelBlock, ModelBlockState, NONE};
pub(crate) use environment::{Completion, Environment, ModelEvent};
pub(crate) use expandable::AMPLE_RANGE_BYTES;

use crate::conf::Conf;
use crate::conf_timeline::ConfTimeline;
use crate::rules::{Rules, Tie};
use blocks::Blocks;
use expandable::ExpandableRange;
use free_list::{FreeBlock, FreeList, FreeListPosition};
use snapshot::{Action, PoolId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const MIN_BLOCK_BYTES: u64 = 512;
/// Largest rounded request of the small pool, in bytes.
const MAX_SMALL_BYTES: u64 = 1 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Requests of at least this many bytes get a segment of their own size.
const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
const SEGMENT_ROUNDING_BYTES: u64 = 2 << 20;

/// Pool and stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Lane {
    /// Index of the pool.
    pub(crate) pool: u32,
    pub(crate) stream: u64,
}

/// Pool of blocks: the default pool, or a private pool of a CUDA graph or `MemPool`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ModelPool {
    pub(crate) id: PoolId,
    /// Whether its memory comes from a custom allocator, which has no expandable segments.
    pub(crate) is_custom: bool,
    /// Whether its blocks are never split (`MemPool(no_split=True)`).
    pub(crate) never_splits: bool,
    /// Whether requests outside it get its free blocks before anything is released
    /// (`MemPool(use_on_oom=True)`).
    pub(crate) lends: bool,
}

impl ModelPool {
    fn is_private(&self) -> bool {
        self.id != PoolId::DEFAULT
    }
}

/// Free memory of one lane and size class.
#[derive(Clone)]
struct LaneMemory {
    stream: u64,
    pool: u32,
    small: bool,
    free: FreeList,
    /// Unmapped parts of expandable segments, by address.
    unmapped: BTreeSet<(u64, u32)>,
    /// Page size in bytes of an expandable segment in which nothing could be mapped so far, if its address is
    /// unknown.
    unplaced_page: Option<u64>,
}

/// Counters of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ModelCounters {
    pub(crate) reserved: u64,
    pub(crate) peak_reserved: u64,
    /// Event of the recording during which the peak was reached.
    pub(crate) peak_reserved_at: u32,
    pub(crate) allocated: u64,
    pub(crate) peak_allocated: u64,
    /// Bytes that are allocated, or freed and waiting for another stream.
    pub(crate) active: u64,
    /// `num_device_alloc`: successful `cudaMalloc` calls and mappings.
    pub(crate) device_allocs: u64,
    pub(crate) device_frees: u64,
    pub(crate) retries: u64,
    /// Highest sum of reserved and requested bytes for which new memory was granted.
    pub(crate) most_granted: u64,
    /// Whether new memory was ever refused.
    pub(crate) refused: bool,
    /// Number of choices between blocks of equal size that a guessed address decided.
    pub(crate) guessed_ties: u64,
}

/// Allocator of one device in an environment that answers for everything outside it.
#[derive(Clone)]
pub(crate) struct Model<W> {
    pub(crate) environment: W,
    /// Event of the recording that is being replayed.
    pub(crate) now: u32,
    pub(crate) counts: ModelCounters,
    confs: Rc<ConfTimeline>,
    /// Settings in effect.
    conf: Conf,
    /// Event of the recording from which others are in effect.
    next_conf: u32,
    rules: Rules,
    rounds_plainly: bool,
    blocks: Blocks,
    /// Two per lane: small, large.
    lists: Vec<LaneMemory>,
    /// Lanes by pool and stream.
    lanes: Vec<Lane>,
    pools: Vec<ModelPool>,
    /// Number of searches of each pool's small and large blocks: the clock of garbage collection.
    searches: Vec<[u64; 2]>,
    ranges: Vec<ExpandableRange>,
    /// Blocks that wait for another stream, with the token of the free.
    pending: BTreeMap<u32, u32>,
    /// Number of blocks or segments created so far, if their age decides ties.
    made: u64,
    /// Number of those created before the recording.
    made_before: u64,
    segments: u32,
    /// Whether any segment has a guessed address.
    guesses: bool,
}

/// Block that can serve a request.
#[derive(Clone, Copy)]
struct BlockMatch {
    block: u32,
    /// Position in its free list; `None` for a new segment.
    place: Option<FreeListPosition>,
}

impl<W: Environment> Model<W> {
    /// Creates an empty allocator. `lanes` are sorted.
    pub(crate) fn new(
        environment: W,
        confs: Rc<ConfTimeline>,
        rules: Rules,
        lanes: &[Lane],
        pools: &[ModelPool],
    ) -> Model<W> {
        let list = |lane: &Lane, small| LaneMemory {
            stream: lane.stream,
            pool: lane.pool,
            small,
            free: FreeList::default(),
            unmapped: BTreeSet::new(),
            unplaced_page: None,
        };
        let mut model = Model {
            environment,
            now: 0,
            counts: ModelCounters::default(),
            rounds_plainly: true,
            conf: confs.first().clone(),
            next_conf: 0,
            confs,
            rules,
            blocks: Blocks::default(),
            lists: lanes.iter().flat_map(|lane| [list(lane, true), list(lane, false)]).collect(),
            lanes: lanes.to_vec(),
            pools: pools.to_vec(),
            searches: vec![[0; 2]; pools.len()],
            ranges: Vec::new(),
            pending: BTreeMap::new(),
            made: 0,
            made_before: 0,
            segments: 0,
            guesses: false,
        };
        model.follow_settings();
        model
    }

    /// Puts the settings of the current event into effect.
    fn follow_settings(&mut self) {
        let now = self.now as usize;
        self.conf = self.confs.at(now).clone();
        self.next_conf = self.confs.next_change(now).map_or(u32::MAX, |event| event as u32);
        self.rounds_plainly = self.conf.divisions == [0; 16];
        self.environment.set_gc_threshold(self.conf.gc_threshold);
    }

    /// Serves a request; `None` if out of memory. `gated` says whether a pool is being filled, so that
    /// nothing can be released; by default that follows from the pool of the request.
    #[inline]
    pub(crate) fn malloc(&mut self, requested: u64, lane: u32, gated: Option<bool>) -> Option<u32> {
        if self.now >= self.next_conf {
            self.follow_settings();
        }
        let size = self.rounded(requested);
        let small = size <= MAX_SMALL_BYTES;
        let list = lane * 2 + u32::from(!small);
        let expandable = self.conf.expandable && !self.pools[self.pool_of(list)].is_custom;
        let (found, expandable) = match self.search(list, size, expandable) {
            Some(found) => (found, expandable),
            None => self.get_memory(list, size, expandable, gated)?,
        };
        let splits = self.splits(found.block, size, expandable);
        Some(self.hand_out(found, requested, size, splits))
    }

    /// Allocates the free block at an address, as PyTorch does when it returns a pool to a checkpoint: the
    /// block gets exactly `size` bytes. `None` if no free block of `list` that is large enough starts there.
    pub(crate) fn place(&mut self, list: u32, addr: u64, size: u64) -> Option<u32> {
        let block = self.free_block_at(list, addr).filter(|&block| self.blocks.get(block).size >= size)?;
        let place = self.lists[list as usize].free.find(self.entry(block));
        let splits = self.blocks.get(block).size > size;
        Some(self.hand_out(BlockMatch { block, place: Some(place) }, size, size, splits))
    }

    /// Returns the free block that starts at an address.
    pub(crate) fn free_block_at(&self, list: u32, addr: u64) -> Option<u32> {
        let blocks = self.lists[list as usize].free.iter().map(|entry| entry.block);
        blocks.into_iter().find(|&block| self.blocks.get(block).addr == addr)
    }

    /// Returns the address of the free block that a request would get.
    pub(crate) fn would_take(&self, requested: u64, lane: u32) -> Option<u64> {
        let size = self.rounded(requested);
        let list = lane * 2 + u32::from(size > MAX_SMALL_BYTES);
        let expandable = self.conf.expandable && !self.pools[self.pool_of(list)].is_custom;
        let (_, entry) = self.candidate(list, size, expandable)?;
        Some(self.blocks.get(entry.block).addr)
    }

    /// Returns whether a request outside a pool that gets a block of the pool may leave another state than a
    /// request in the pool that gets the same block.
    pub(crate) fn may_differ_outside(&self) -> bool {
        self.conf.expandable || self.environment.collects()
    }

    /// Marks a pool as one whose free blocks serve requests outside it.
    pub(crate) fn set_lends(&mut self, pool: u32) {
        self.pools[pool as usize].lends = true;
    }

    /// Returns whether the rest of a block becomes a free block.
    #[inline]
    fn splits(&self, block: u32, size: u64, expandable: bool) -> bool {
        let row = self.blocks.get(block);
        let rest = row.size - size;
        if self.pools[self.pool_of(row.list)].never_splits {
            false
        } else if self.lists[row.list as usize].small || expandable {
            rest >= MIN_BLOCK_BYTES
        } else {
            rest > self.rules.split_above && !self.conf.is_oversize(size)
        }
    }

    /// Frees a block. A deferred free waits for another stream; its token distinguishes it from later frees
    /// of the same row.
    #[inline]
    pub(crate) fn free(&mut self, block: u32, deferred: Option<u32>) {
        let row = self.blocks.get_mut(block);
        debug_assert_eq!(row.state, ModelBlockState::Allocated);
        row.state = ModelBlockState::Pending;
        self.counts.allocated -= row.size;
        let event =
            ModelEvent { action: Action::FreeRequested, addr: row.addr, size: row.requested, stream: 0 };
        self.emit(event, block);
        match deferred {
            Some(token) => self.wait_for_streams(block, token),
            None => self.complete(block),
        }
    }

    /// Completes the free of a pending block, unless that was noticed before.
    pub(crate) fn complete_pending(&mut self, block: u32, token: u32) {
        if self.pending.get(&block) == Some(&token) {
            self.pending.remove(&block);
            self.complete(block);
        }
    }

    pub(crate) fn block(&self, block: u32) -> &ModelBlock {
        self.blocks.get(block)
    }

    pub(crate) fn block_mut(&mut self, block: u32) -> &mut ModelBlock {
        self.blocks.get_mut(block)
    }

    pub(crate) fn all_blocks(&self) -> impl Iterator<Item = (u32, &ModelBlock)> {
        self.blocks.iter()
    }

    /// Marks a block as waiting for another stream.
    pub(crate) fn wait_for_streams(&mut self, block: u32, token: u32) {
        self.pending.insert(block, token);
    }

    /// Marks everything so far as created before the recording.
    pub(crate) fn end_of_start(&mut self) {
        self.made_before = self.made;
    }

    /// Cost of a copy of the model, in rows.
    pub(crate) fn rows(&self) -> usize {
        self.blocks.rows()
    }

    pub(crate) fn pool_id(&self, block: &ModelBlock) -> PoolId {
        self.pools[self.pool_of(block.list)].id
    }

    pub(crate) fn is_small(&self, block: &ModelBlock) -> bool {
        self.lists[block.list as usize].small
    }

    pub(crate) fn stream(&self, block: &ModelBlock) -> u64 {
        self.lists[block.list as usize].stream
    }

    /// Returns the first mapped block of each segment or mapped run, by address.
    pub(crate) fn heads(&self) -> Vec<u32> {
        let has_memory =
            |block: u32| block != NONE && self.blocks.get(block).state != ModelBlockState::Unmapped;
        let mut heads: Vec<u32> = self
            .blocks
            .iter()
            .filter(|(place, block)| has_memory(*place) && !has_memory(block.prev))
            .map(|(place, _)| place)
            .collect();
        heads.sort_unstable_by_key(|&head| self.blocks.get(head).addr);
        heads
    }

    /// Iterates over the blocks of the segment that begins with `head`, in order.
    pub(crate) fn segment(&self, head: u32) -> impl Iterator<Item = (u32, &ModelBlock)> {
        let mut at = head;
        std::iter::from_fn(move || {
            let place = (at != NONE).then_some(at)?;
            let block = self.blocks.get(place);
            at = block.next;
            (block.state != ModelBlockState::Unmapped).then_some((place, block))
        })
    }

    /// Returns the size of the largest free block of a lane and size class, for the report of a failure.
    pub(crate) fn largest_free(&self, lane: u32, size: u64) -> u64 {
        let list = lane as usize * 2 + usize::from(size > MAX_SMALL_BYTES);
        self.lists[list].free.iter().last().map_or(0, |entry| entry.size)
    }

    /// Returns the bytes that PyTorch takes for a request, before it decides whether to split.
    #[inline]
    pub(crate) fn rounded(&self, requested: u64) -> u64 {
        if self.rounds_plainly {
            return requested.max(1).next_multiple_of(MIN_BLOCK_BYTES);
        }
        if self.rules.one_division_keeps_sizes && requested > MIN_BLOCK_BYTES {
            let group = (requested.ilog2().saturating_sub(20) as usize).min(15);
            if self.conf.divisions[group] == 1 {
                return requested;
            }
        }
        snapshot::rounded(requested, &self.conf.divisions)
    }

    /// Returns the bytes of a new segment for a rounded request.
    pub(crate) fn segment_size(&self, size: u64) -> u64 {
        segment_size(size, &self.conf)
    }

    fn pool_of(&self, list: u32) -> usize {
        self.lists[list as usize].pool as usize
    }

    /// Returns whether requests from this list come while a pool is being filled: nothing is released then.
    pub(crate) fn is_gated(&self, list: u32) -> bool {
        let pool = &self.pools[self.pool_of(list)];
        // Pools of graphs have a first number; later releases hold back only while a graph is captured.
        pool.is_private() && (self.rules.scopes_gate || pool.id.0 != 0)
    }

    #[inline]
    fn emit(&mut self, event: ModelEvent, block: u32) {
        let stream = self.lists[self.blocks.get(block).list as usize].stream;
        self.environment.on_event(ModelEvent { stream, ..event });
    }

    /// Gets memory when no free block fits: new memory, that of another pool, or memory that is released
    /// first. Returns the block, and whether expandable segments served the request.
    #[cold]
    fn get_memory(
        &mut self,
        list: u32,
        size: u64,
        expandable: bool,
        gated: Option<bool>,
    ) -> Option<(BlockMatch, bool)> {
        if self.environment.collects() {
            self.collect_garbage();
        }
        if let Some(found) = self.grow(list, size, expandable) {
            return Some((found, expandable));
        }
        if let Some(found) = self.borrow(list, size) {
            return Some((found, false));
        }
        if self.release_available(list, size)
            && let Some(found) = self.grow(list, size, expandable)
        {
            return Some((found, expandable));
        }
        if !gated.unwrap_or_else(|| self.is_gated(list)) {
            self.release_all();
            self.counts.retries += 1;
            if let Some(found) = self.grow(list, size, expandable) {
                return Some((found, expandable));
            }
        }
        let stream = self.lists[list as usize].stream;
        self.environment.on_event(ModelEvent { action: Action::Oom, addr: 0, size, stream });
        None
    }

    /// Finds a free block in a pool with `use_on_oom`, for a request outside all pools.
    fn borrow(&mut self, list: u32, size: u64) -> Option<BlockMatch> {
        let LaneMemory { stream, pool, small, .. } = self.lists[list as usize];
        if self.pools[pool as usize].is_private() {
            return None;
        }
        (0..self.lists.len() as u32).find_map(|other| {
            let of = &self.lists[other as usize];
            let is_meant = of.stream == stream && of.small == small && self.pools[of.pool as usize].lends;
            is_meant.then(|| self.search(other, size, false)).flatten()
        })
    }

    /// Gets new memory from the driver, and records how much was granted.
    fn grow(&mut self, list: u32, size: u64, expandable: bool) -> Option<BlockMatch> {
        let want = self.segment_size(size);
        let total = self.counts.reserved.saturating_add(want);
        let found = if self.environment.allows(self.counts.reserved, want) {
            self.ask_driver(list, size, want, expandable)
        } else {
            // If it was the driver that refused, an expandable segment was created for nothing.
            if self.grows_expandable(list, expandable) && !self.environment.knows_limit() {
                self.plan_range(list);
            }
            None
        };
        match found {
            Some(_) => {
                self.counts.most_granted = self.counts.most_granted.max(total).max(self.counts.reserved)
            }
            None => self.counts.refused = true,
        }
        found
    }

    /// Returns whether new memory of a list comes from expandable segments, if the request may use them.
    fn grows_expandable(&self, list: u32, expandable: bool) -> bool {
        let is_private = self.pools[self.pool_of(list)].is_private();
        expandable && (self.rules.expandable_private_pools || !is_private)
    }

    fn ask_driver(&mut self, list: u32, size: u64, want: u64, expandable: bool) -> Option<BlockMatch> {
        if self.grows_expandable(list, expandable) {
            let block = self.grow_expandable(list, size)?;
            let place = self.lists[list as usize].free.find(self.entry(block));
            return Some(BlockMatch { block, place: Some(place) });
        }
        let (addr, guessed) = self.environment.malloc(want)?;
        let block = self.add_segment(list, addr, want, guessed);
        self.reserve(want);
        self.emit(ModelEvent { action: Action::SegmentAlloc, addr, size: want, stream: 0 }, block);
        Some(BlockMatch { block, place: None })
    }

    /// Adds a segment as one block that is in no free list yet.
    pub(crate) fn add_segment(&mut self, list: u32, addr: u64, size: u64, guessed: bool) -> u32 {
        let age = self.age(None);
        self.segments += 1;
        self.guesses |= guessed;
        self.blocks.add(ModelBlock {
            segment: self.segments,
            base: addr,
            addr,
            size,
            requested: 0,
            age,
            free_since: 0,
            prev: NONE,
            next: NONE,
            list,
            range: NONE,
            state: ModelBlockState::Free,
            guessed,
        })
    }

    /// Returns the age of a new block, a part of `of` or the first of its segment.
    #[inline]
    fn age(&mut self, of: Option<u64>) -> u64 {
        match (self.rules.tie, of) {
            (Tie::Address, _) => 0,
            (Tie::Segment, Some(age)) => age,
            (Tie::Block, _) | (Tie::Segment, None) => {
                self.made += 1;
                self.made
            }
        }
    }

    /// Counts new memory.
    fn reserve(&mut self, bytes: u64) {
        let counts = &mut self.counts;
        counts.device_allocs += 1;
        counts.reserved = counts.reserved.saturating_add(bytes);
        if counts.reserved > counts.peak_reserved {
            counts.peak_reserved = counts.reserved;
            counts.peak_reserved_at = self.now;
        }
    }

    #[inline]
    fn hand_out(&mut self, found: BlockMatch, requested: u64, size: u64, splits: bool) -> u32 {
        let row = *self.blocks.get(found.block);
        let list = row.list as usize;
        let rest = row.size - size;
        let block = if splits {
            // The front is a new block; the old one remains as the rest.
            let age = self.age(Some(row.age));
            let front = self.blocks.add(ModelBlock { size, age, ..row });
            self.blocks.link_before(front, found.block);
            let searches = self.searches_of(list);
            let remainder = self.blocks.get_mut(found.block);
            remainder.addr += size;
            remainder.size = rest;
            remainder.free_since = searches;
            let remainder = self.entry(found.block);
            match found.place {
                Some(place) => self.lists[list].free.replace(place, remainder),
                None => self.lists[list].free.insert(remainder),
            }
            front
        } else {
            if let Some(place) = found.place {
                self.lists[list].free.remove(place);
            }
            found.block
        };
        let row = self.blocks.get_mut(block);
        row.state = ModelBlockState::Allocated;
        row.requested = requested;
        let (addr, taken) = (row.addr, row.size);
        let counts = &mut self.counts;
        counts.allocated += taken;
        counts.active += taken;
        counts.peak_allocated = counts.peak_allocated.max(counts.allocated);
        self.emit(ModelEvent { action: Action::Alloc, addr, size: requested, stream: 0 }, block);
        block
    }

    #[inline]
    fn searches_of(&self, list: usize) -> u64 {
        let LaneMemory { pool, small, .. } = &self.lists[list];
        self.searches[*pool as usize][usize::from(!small)]
    }

    /// Makes the memory of a block reusable: merges it with free neighbours.
    #[inline]
    fn complete(&mut self, block: u32) {
        let row = *self.blocks.get(block);
        self.emit(
            ModelEvent { action: Action::FreeCompleted, addr: row.addr, size: row.requested, stream: 0 },
            block,
        );
        self.counts.active -= row.size;
        let list = row.list as usize;
        let free_neighbour = |place: u32| {
            (place != NONE && self.blocks.get(place).state == ModelBlockState::Free)
                .then(|| self.entry(place))
        };
        let (before, behind) = (free_neighbour(row.prev), free_neighbour(row.next));
        if before.is_some() {
            self.blocks.absorb_prev(block);
        }
        if behind.is_some() {
            self.blocks.absorb_next(block);
        }
        let searches = self.searches_of(list);
        let row = self.blocks.get_mut(block);
        row.state = ModelBlockState::Free;
        row.free_since = searches;
        let merged = self.entry(block);
        let free = &mut self.lists[list].free;
        match (before, behind) {
            (Some(before), Some(behind)) => {
                free.remove(free.find(behind));
                free.replace(free.find(before), merged);
            }
            (Some(neighbour), None) | (None, Some(neighbour)) => free.replace(free.find(neighbour), merged),
            (None, None) => free.insert(merged),
        }
    }

    /// Returns the free-list entry of a free block.
    #[inline]
    fn entry(&self, block: u32) -> FreeBlock {
        let row = self.blocks.get(block);
        let rank = match self.rules.tie {
            Tie::Address => row.addr,
            Tie::Block => row.age,
            // From torch 2.13 on every address in a segment is a multiple of the smallest block.
            Tie::Segment => (row.age << OFFSET_BITS) | ((row.addr - row.base) / MIN_BLOCK_BYTES),
        };
        FreeBlock { size: row.size, rank, block }
    }
}

/// Returns the bytes requested from the driver for a rounded request.
pub(crate) fn segment_size(size: u64, conf: &Conf) -> u64 {
    if size <= MAX_SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if size < MIN_OWN_SEGMENT_BYTES {
        conf.large_segment
    } else {
        size.checked_next_multiple_of(SEGMENT_ROUNDING_BYTES).unwrap_or(size)
    }
}

/// Bits for a block's offset in its segment, in smallest blocks: enough for the longest expandable segment.
const OFFSET_BITS: u32 = 36;
