//! The allocator itself: one device, both kinds of segments, every pool and stream.
//!
//! Names follow PyTorch's where it has public ones. A *lane* is a pool and a stream; each has a list of free blocks for
//! small requests and one for large ones, because blocks never move between pools, streams or classes.

mod blocks;
mod expandable;
mod free_list;
mod release;
mod search;
mod world;

pub(crate) use blocks::{Block, NONE, State};
pub(crate) use world::{Completion, Deed, World};

use crate::conf::Conf;
use crate::rules::{Rules, Tie};
use blocks::Blocks;
use expandable::Range;
use free_list::{Entry, FreeList, Place};
use snapshot::{Action, PoolId};
use std::collections::{BTreeMap, BTreeSet};

const MIN_BLOCK: u64 = 512;
/// Rounded requests up to this size are small.
const SMALL_MAX: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests from this size on get a segment of their own size.
const MIN_LARGE: u64 = 10 << 20;
const LARGE_ROUND: u64 = 2 << 20;

/// A pool and a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Lane {
    /// Row of the pools.
    pub(crate) pool: u32,
    pub(crate) stream: u64,
}

/// A pool of blocks: the default one, or a private one of a CUDA graph or `MemPool`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    /// It gets its memory from an allocator of its own, which knows no expandable segments.
    pub(crate) is_custom: bool,
}

impl Pool {
    fn is_private(&self) -> bool {
        self.id != PoolId::DEFAULT
    }
}

/// Free memory of one lane and class.
#[derive(Clone)]
struct List {
    stream: u64,
    pool: u32,
    small: bool,
    free: FreeList,
    /// Parts of expandable segments without memory, by address.
    unmapped: BTreeSet<(u64, u32)>,
}

/// What is counted on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reserved: u64,
    pub(crate) peak_reserved: u64,
    /// The event under which it was reached.
    pub(crate) peak_reserved_at: u32,
    pub(crate) allocated: u64,
    pub(crate) peak_allocated: u64,
    /// Allocated, or given back and waiting for another stream.
    pub(crate) active: u64,
    /// `num_device_alloc`: successful `cudaMalloc` calls and mappings.
    pub(crate) device_allocs: u64,
    pub(crate) device_frees: u64,
    pub(crate) retries: u64,
    /// The most that reserved and wanted bytes came to when new memory was granted.
    pub(crate) most_granted: u64,
    /// Whether new memory was ever refused.
    pub(crate) refused: bool,
    /// Choices between blocks of equal size that a guessed address decided.
    pub(crate) guessed_ties: u64,
}

/// The allocator of one device in a world that answers for everything outside it.
#[derive(Clone)]
pub(crate) struct Model<W> {
    pub(crate) world: W,
    /// The event of the recording that is being replayed.
    pub(crate) now: u32,
    pub(crate) counts: Counts,
    conf: Conf,
    rules: Rules,
    rounds_plainly: bool,
    blocks: Blocks,
    /// Two for each lane: small, large.
    lists: Vec<List>,
    /// Lanes by pool and stream.
    lanes: Vec<Lane>,
    pools: Vec<Pool>,
    /// Searches of each pool's small and large blocks: the clock of garbage collection.
    searches: Vec<[u64; 2]>,
    ranges: Vec<Range>,
    /// Blocks that wait for another stream, with the token of the free.
    pending: BTreeMap<u32, u32>,
    /// Blocks or segments made so far, where their age counts.
    made: u64,
    /// How many of them were there before the recording.
    made_before: u64,
    segments: u32,
    /// Whether any segment lies at a guessed address.
    guesses: bool,
}

/// A block that can serve a request.
#[derive(Clone, Copy)]
struct Found {
    block: u32,
    /// Where it is in its list; nowhere if it is a new segment.
    place: Option<Place>,
}

impl<W: World> Model<W> {
    /// An empty allocator. `lanes` are sorted.
    pub(crate) fn new(world: W, conf: Conf, rules: Rules, lanes: &[Lane], pools: &[Pool]) -> Model<W> {
        let list = |lane: &Lane, small| List {
            stream: lane.stream,
            pool: lane.pool,
            small,
            free: FreeList::default(),
            unmapped: BTreeSet::new(),
        };
        Model {
            world,
            now: 0,
            counts: Counts::default(),
            rounds_plainly: conf.divisions == [0; 16],
            conf,
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
        }
    }

    /// Serves a request, or says that it cannot. `gated` says whether a pool is being filled, so that nothing can be
    /// released; otherwise its own pool tells.
    #[inline]
    pub(crate) fn malloc(&mut self, requested: u64, lane: u32, gated: Option<bool>) -> Option<u32> {
        let size = self.rounded(requested);
        let small = size <= SMALL_MAX;
        let list = lane * 2 + u32::from(!small);
        let expandable = self.conf.expandable && !self.pools[self.pool_of(list)].is_custom;
        let found = match self.search(list, size, expandable) {
            Some(found) => found,
            None => self.get_memory(list, size, expandable, gated)?,
        };
        Some(self.hand_out(found, requested, size, expandable))
    }

    /// The program gives a block back. A deferred free waits for another stream; its token tells it from later frees of
    /// the same row.
    #[inline]
    pub(crate) fn free(&mut self, block: u32, deferred: Option<u32>) {
        let row = self.blocks.get_mut(block);
        debug_assert_eq!(row.state, State::Allocated);
        row.state = State::Pending;
        self.counts.allocated -= row.size;
        let deed = Deed { action: Action::FreeRequested, addr: row.addr, size: row.requested, stream: 0 };
        self.tell(deed, block);
        match deferred {
            Some(token) => self.wait_for_streams(block, token),
            None => self.complete(block),
        }
    }

    /// The other streams are done with a pending block, unless that was noticed before.
    pub(crate) fn complete_pending(&mut self, block: u32, token: u32) {
        if self.pending.get(&block) == Some(&token) {
            self.pending.remove(&block);
            self.complete(block);
        }
    }

    pub(crate) fn block(&self, block: u32) -> &Block {
        self.blocks.get(block)
    }

    pub(crate) fn block_mut(&mut self, block: u32) -> &mut Block {
        self.blocks.get_mut(block)
    }

    pub(crate) fn all_blocks(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.blocks.iter()
    }

    /// Notes that a block waits for another stream.
    pub(crate) fn wait_for_streams(&mut self, block: u32, token: u32) {
        self.pending.insert(block, token);
    }

    /// Everything so far was there before the recording.
    pub(crate) fn end_of_start(&mut self) {
        self.made_before = self.made;
    }

    /// What a copy of the model costs, in rows.
    pub(crate) fn rows(&self) -> usize {
        self.blocks.rows()
    }

    pub(crate) fn pool_id(&self, block: &Block) -> PoolId {
        self.pools[self.pool_of(block.list)].id
    }

    pub(crate) fn is_small(&self, block: &Block) -> bool {
        self.lists[block.list as usize].small
    }

    pub(crate) fn stream(&self, block: &Block) -> u64 {
        self.lists[block.list as usize].stream
    }

    /// The heads of segments: blocks with memory that none with memory goes before, by address.
    pub(crate) fn heads(&self) -> Vec<u32> {
        let has_memory = |block: u32| block != NONE && self.blocks.get(block).state != State::Unmapped;
        let mut heads: Vec<u32> = self
            .blocks
            .iter()
            .filter(|(place, block)| has_memory(*place) && !has_memory(block.prev))
            .map(|(place, _)| place)
            .collect();
        heads.sort_unstable_by_key(|&head| self.blocks.get(head).addr);
        heads
    }

    /// The blocks of the segment that begins with `head`, in order.
    pub(crate) fn segment(&self, head: u32) -> impl Iterator<Item = (u32, &Block)> {
        let mut at = head;
        std::iter::from_fn(move || {
            let place = (at != NONE).then_some(at)?;
            let block = self.blocks.get(place);
            at = block.next;
            (block.state != State::Unmapped).then_some((place, block))
        })
    }

    /// The largest free block of a lane's class, for the state around a failure.
    pub(crate) fn largest_free(&self, lane: u32, size: u64) -> u64 {
        let list = lane as usize * 2 + usize::from(size > SMALL_MAX);
        self.lists[list].free.iter().last().map_or(0, |entry| entry.size)
    }

    /// Bytes that PyTorch takes for a request, before it decides whether to split.
    #[inline]
    pub(crate) fn rounded(&self, requested: u64) -> u64 {
        if self.rounds_plainly {
            return requested.max(1).next_multiple_of(MIN_BLOCK);
        }
        if self.rules.one_division_keeps_sizes && requested > MIN_BLOCK {
            let group = (requested.ilog2().saturating_sub(20) as usize).min(15);
            if self.conf.divisions[group] == 1 {
                return requested;
            }
        }
        snapshot::rounded(requested, &self.conf.divisions)
    }

    /// Bytes of a new segment for a rounded request.
    pub(crate) fn segment_size(&self, size: u64) -> u64 {
        segment_size(size, &self.conf)
    }

    fn pool_of(&self, list: u32) -> usize {
        self.lists[list as usize].pool as usize
    }

    /// Whether requests from this list come while a pool is being filled: nothing is released then.
    pub(crate) fn is_gated(&self, list: u32) -> bool {
        let pool = &self.pools[self.pool_of(list)];
        // The pools of graphs have a first number; later releases hold back only while a graph is captured.
        pool.is_private() && (self.rules.scopes_gate || pool.id.0 != 0)
    }

    #[inline]
    fn tell(&mut self, deed: Deed, block: u32) {
        let stream = self.lists[self.blocks.get(block).list as usize].stream;
        self.world.deed(Deed { stream, ..deed });
    }

    /// No free block fits: new memory, or memory that is given back first.
    #[cold]
    fn get_memory(&mut self, list: u32, size: u64, expandable: bool, gated: Option<bool>) -> Option<Found> {
        if self.world.collects() {
            self.collect_garbage();
        }
        if let Some(found) = self.grow(list, size, expandable) {
            return Some(found);
        }
        if self.release_available(list, size)
            && let Some(found) = self.grow(list, size, expandable)
        {
            return Some(found);
        }
        if !gated.unwrap_or_else(|| self.is_gated(list)) {
            self.release_all();
            self.counts.retries += 1;
            if let Some(found) = self.grow(list, size, expandable) {
                return Some(found);
            }
        }
        let stream = self.lists[list as usize].stream;
        self.world.deed(Deed { action: Action::Oom, addr: 0, size, stream });
        None
    }

    /// Gets new memory from the driver, and notes how much it was ready to give.
    fn grow(&mut self, list: u32, size: u64, expandable: bool) -> Option<Found> {
        let want = self.segment_size(size);
        let total = self.counts.reserved.saturating_add(want);
        let found = match self.world.allows(self.counts.reserved, want) {
            true => self.ask_driver(list, size, want, expandable),
            false => None,
        };
        match found {
            Some(_) => {
                self.counts.most_granted = self.counts.most_granted.max(total).max(self.counts.reserved)
            }
            None => self.counts.refused = true,
        }
        found
    }

    fn ask_driver(&mut self, list: u32, size: u64, want: u64, expandable: bool) -> Option<Found> {
        let pool = &self.pools[self.pool_of(list)];
        if expandable && (self.rules.expandable_private_pools || !pool.is_private()) {
            let block = self.grow_expandable(list, size)?;
            let place = self.lists[list as usize].free.find(self.entry(block));
            return Some(Found { block, place: Some(place) });
        }
        let (addr, guessed) = self.world.malloc(want)?;
        let block = self.add_segment(list, addr, want, guessed);
        self.reserve(want);
        self.tell(Deed { action: Action::SegmentAlloc, addr, size: want, stream: 0 }, block);
        Some(Found { block, place: None })
    }

    /// A new segment as one block that is in no list yet.
    pub(crate) fn add_segment(&mut self, list: u32, addr: u64, size: u64, guessed: bool) -> u32 {
        let age = self.age(None);
        self.segments += 1;
        self.guesses |= guessed;
        self.blocks.add(Block {
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
            state: State::Free,
            guessed,
        })
    }

    /// The age of a new block, a part of `of` or the first of its segment.
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
    fn hand_out(&mut self, found: Found, requested: u64, size: u64, expandable: bool) -> u32 {
        let row = *self.blocks.get(found.block);
        let list = row.list as usize;
        let rest = row.size - size;
        let splits = if self.lists[list].small || expandable {
            rest >= MIN_BLOCK
        } else {
            rest > self.rules.split_above && !self.conf.is_oversize(size)
        };
        let block = if splits {
            // The front is a new block; the old one stays as the rest.
            let age = self.age(Some(row.age));
            let front = self.blocks.add(Block { size, age, ..row });
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
        row.state = State::Allocated;
        row.requested = requested;
        let (addr, taken) = (row.addr, row.size);
        let counts = &mut self.counts;
        counts.allocated += taken;
        counts.active += taken;
        counts.peak_allocated = counts.peak_allocated.max(counts.allocated);
        self.tell(Deed { action: Action::Alloc, addr, size: requested, stream: 0 }, block);
        block
    }

    #[inline]
    fn searches_of(&self, list: usize) -> u64 {
        let List { pool, small, .. } = &self.lists[list];
        self.searches[*pool as usize][usize::from(!small)]
    }

    /// The memory of a block can be used again: joins it with free neighbours.
    #[inline]
    fn complete(&mut self, block: u32) {
        let row = *self.blocks.get(block);
        self.tell(
            Deed { action: Action::FreeCompleted, addr: row.addr, size: row.requested, stream: 0 },
            block,
        );
        self.counts.active -= row.size;
        let list = row.list as usize;
        let free_neighbour = |place: u32| {
            (place != NONE && self.blocks.get(place).state == State::Free).then(|| self.entry(place))
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
        row.state = State::Free;
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

    /// A free block as its list has it.
    #[inline]
    fn entry(&self, block: u32) -> Entry {
        let row = self.blocks.get(block);
        let rank = match self.rules.tie {
            Tie::Address => row.addr,
            Tie::Block => row.age,
            // From 2.13 on every address in a segment is a multiple of the smallest block.
            Tie::Segment => (row.age << OFFSET_BITS) | ((row.addr - row.base) / MIN_BLOCK),
        };
        Entry { size: row.size, rank, block }
    }
}

/// Bytes that are asked of the driver for a rounded request.
pub(crate) fn segment_size(size: u64, conf: &Conf) -> u64 {
    if size <= SMALL_MAX {
        SMALL_SEGMENT
    } else if size < MIN_LARGE {
        conf.large_segment
    } else {
        size.checked_next_multiple_of(LARGE_ROUND).unwrap_or(size)
    }
}

/// Bits for a block's place in its segment, in smallest blocks: enough for the longest expandable segment.
const OFFSET_BITS: u32 = 36;
