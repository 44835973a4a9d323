//! Applies every event to the segments.
//!
//! The state is the pieces of every segment, found by address and linked to their neighbours: an
//! allocation or a free costs one lookup, plus one for each piece that is split off or merged.
//! Replay cannot fail: an event that contradicts the state is repaired as far as possible, and counted.

use super::consistency::Inconsistencies;
use super::pieces::Pieces;
use super::start::{SMALL_SEGMENT, SPLIT_THRESHOLD, StartBlock, StartState};
use super::stats::{Metric, PoolClass, Stats, signed};
use super::{Allocation, BEFORE, History, NONE, Peak, Region};
use crate::bytes::Bytes;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::tables::{Action, Event, PoolId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

pub(super) fn replay(snapshot: &Snapshot, device: u32, start: StartState) -> History {
    let rows = snapshot.rows(device);
    let mut replay = Replay::new(snapshot, device, &start);
    for (index, event) in snapshot.events.iter(rows.clone()).enumerate() {
        if index == replay.next_sample {
            replay.samples.push(replay.allocated());
            replay.next_sample += replay.samples_every;
        }
        if replay.next_settings == Some(index) {
            (replay.settings, replay.next_settings) = snapshot.settings_at(device, index);
        }
        let subject = replay.event(index as u32, &event);
        replay.subjects.push(subject);
    }
    let complete = start.blocks.is_empty() && start.segments.is_empty() && !rows.is_empty();
    let mut caveats = start.caveats;
    replay.report(complete, &mut caveats);
    let region_ends = replay.region_ends();
    History {
        device,
        rows,
        complete,
        allocations: replay.allocations,
        regions: replay.regions,
        end: replay.stats.counters(),
        region_ends,
        segments_at_start: start.segments,
        stats: replay.stats,
        allocated_peak: replay.allocated_peak,
        reserved_peak: replay.reserved_peak,
        start: replay.at_start,
        samples: replay.samples,
        samples_every: replay.samples_every,
        caveats,
        subjects: replay.subjects,
        implied_ends: replay.implied_ends,
    }
}

/// Samples of the memory timeline: enough for a terminal of any width.
const MAX_SAMPLES: usize = 512;

type ByEvent<T> = HashMap<u32, T, FxBuildHasher>;

pub(super) struct Replay<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) device: u32,
    /// Settings at the current event.
    pub(super) settings: &'a Settings,
    /// Event at which they are replaced.
    pub(super) next_settings: Option<usize>,
    pub(super) pieces: Pieces,
    /// Pools of the final segments that the trace allocated, by the event that did.
    pub(super) final_pools: ByEvent<PoolId>,
    /// Regions of expandable memory by stream, pool and size class.
    pub(super) arenas: HashMap<(u64, PoolId, bool), u32, FxBuildHasher>,
    pub(super) allocations: Vec<Allocation>,
    pub(super) regions: Vec<Region>,
    /// Reserved bytes of each region.
    pub(super) reserved: Vec<u64>,
    /// Address and piece of the block freed last, until its free completes.
    pub(super) last_freed: Option<(u64, u32)>,
    pub(super) subjects: Vec<u32>,
    pub(super) implied_ends: Vec<(u32, u32)>,
    pub(super) stats: Stats,
    pub(super) allocated_peak: Peak,
    pub(super) reserved_peak: Peak,
    /// Bytes allocated before the first event.
    pub(super) at_start: Bytes,
    pub(super) samples: Vec<Bytes>,
    pub(super) samples_every: usize,
    pub(super) next_sample: usize,
    pub(super) inconsistencies: Inconsistencies,
    /// Remaining steps for searches over all pieces. Bounds the time for a file that contradicts itself
    /// in every event.
    pub(super) search_budget: u64,
}

impl<'a> Replay<'a> {
    fn new(snapshot: &'a Snapshot, device: u32, start: &StartState) -> Replay<'a> {
        let final_pools = snapshot
            .segments_of(device)
            .filter_map(|segment| Some((*start.made.get(&segment.addr)? as u32, segment.pool)))
            .collect();
        let (settings, next_settings) = snapshot.settings_at(device, 0);
        let mut replay = Replay {
            snapshot,
            device,
            settings,
            next_settings,
            pieces: Pieces::default(),
            final_pools,
            arenas: HashMap::default(),
            allocations: Vec::with_capacity(
                start.blocks.len() + snapshot.events.allocations(snapshot.rows(device)).count(),
            ),
            regions: Vec::new(),
            reserved: Vec::new(),
            last_freed: None,
            subjects: Vec::with_capacity(snapshot.rows(device).len()),
            implied_ends: Vec::new(),
            stats: Stats::default(),
            allocated_peak: Peak::default(),
            reserved_peak: Peak::default(),
            at_start: Bytes::ZERO,
            samples: Vec::new(),
            samples_every: snapshot.rows(device).len().div_ceil(MAX_SAMPLES).max(1),
            next_sample: 0,
            inconsistencies: Inconsistencies::default(),
            search_budget: 100_000_000,
        };
        replay.set_up(start);
        replay
    }

    /// Builds the state before the first event.
    fn set_up(&mut self, start: &StartState) {
        let mut blocks = start.blocks.iter().peekable();
        for (place, segment) in start.segments.iter().enumerate() {
            let region = if segment.expandable {
                let region = self.arena(segment.addr, segment.stream, segment.pool, segment.small);
                self.regions[region as usize].from_start = true;
                self.regions[region as usize].size += Bytes(segment.size);
                let reserved = &mut self.reserved[region as usize];
                *reserved = reserved.saturating_add(segment.size);
                region
            } else {
                self.stats.increase(Metric::Segment, segment.small, 1);
                let oversize = self.is_oversize(segment.size);
                Stats::oversize(&mut self.stats.oversize_segments, oversize, 1);
                self.region(Region {
                    addr: segment.addr,
                    size: Bytes(segment.size),
                    stream: segment.stream,
                    pool: segment.pool,
                    small: segment.small,
                    expandable: false,
                    from_start: true,
                })
            };
            self.stats.increase(Metric::ReservedBytes, segment.small, segment.size);
            let end = segment.addr.saturating_add(segment.size);
            let mut free_from = segment.addr;
            let mut used = false;
            let mut gaps = Vec::new();
            let mut before = NONE;
            while let Some(block) = blocks.next_if(|block| block.segment.is_none_or(|of| of <= place)) {
                if block.segment.is_none() {
                    self.start_block(block, NONE, segment.small, NONE);
                    continue;
                }
                used = true;
                if block.addr > free_from {
                    gaps.push(block.addr - free_from);
                    before = self.pieces.add(free_from, block.addr - free_from, region, NONE, before);
                }
                free_from = free_from.max(block.addr.saturating_add(block.size)).min(end);
                before = self.start_block(block, region, segment.small, before);
            }
            if end > free_from {
                gaps.push(end - free_from);
                self.pieces.add(free_from, end - free_from, region, NONE, before);
            }
            for size in gaps {
                if used && !segment.expandable {
                    self.stats.increase(Metric::InactiveSplit, segment.small, 1);
                    self.stats.increase(Metric::InactiveSplitBytes, segment.small, size);
                }
            }
        }
        for block in blocks {
            self.start_block(block, NONE, block.size <= SPLIT_THRESHOLD, NONE);
        }
        self.note_allocated(0);
        self.note_reserved(0);
        self.at_start = self.allocated_peak.bytes;
    }

    /// Adds a block after the piece `before` and returns its own piece.
    fn start_block(&mut self, block: &StartBlock, region: u32, small: bool, before: u32) -> u32 {
        let allocation = self.allocations.len() as u32;
        self.allocations.push(Allocation {
            addr: block.addr,
            size: Bytes(block.size),
            requested: Bytes(block.requested),
            stack: block.stack,
            region,
            alloc_event: NONE,
            free_event: if block.pending { BEFORE } else { NONE },
            completed_event: NONE,
        });
        self.count_alloc(small, block.size, block.requested);
        if block.pending {
            self.count_free_request(small, block.size);
        }
        self.pieces.add(block.addr, block.size, region, allocation, before)
    }

    #[inline]
    fn event(&mut self, index: u32, event: &Event) -> u32 {
        match event.action {
            Action::Alloc => self.alloc(index, event),
            Action::FreeRequested => self.free_requested(index, event),
            Action::FreeCompleted => self.free_completed(index, event),
            Action::SegmentAlloc => self.segment_alloc(index, event),
            Action::SegmentFree => self.segment_free(event),
            Action::SegmentMap => self.segment_map(index, event),
            Action::SegmentUnmap => self.segment_unmap(event),
            Action::Oom => {
                self.stats.ooms += 1;
                NONE
            }
            Action::Snapshot => {
                // PyTorch records the active bytes of the moment: a check of everything before it.
                let active = self.stats.get(Metric::ActiveBytes, PoolClass::All).current;
                self.inconsistencies.active_mismatches += u64::from(active as u64 != event.size.0);
                NONE
            }
            Action::Annotate | Action::Other(_) => NONE,
        }
    }

    fn is_oversize(&self, size: u64) -> bool {
        self.settings.max_split.is_some_and(|limit| size >= limit)
    }

    fn count_alloc(&mut self, small: bool, size: u64, requested: u64) {
        self.stats.increase(Metric::Allocation, small, 1);
        self.stats.increase(Metric::AllocatedBytes, small, size);
        self.stats.increase(Metric::Active, small, 1);
        self.stats.increase(Metric::ActiveBytes, small, size);
        self.stats.increase(Metric::RequestedBytes, small, requested);
        let oversize = self.is_oversize(size);
        Stats::oversize(&mut self.stats.oversize_allocations, oversize, 1);
    }

    fn count_free_request(&mut self, small: bool, size: u64) {
        self.stats.decrease(Metric::Allocation, small, 1);
        self.stats.decrease(Metric::AllocatedBytes, small, size);
        let oversize = self.is_oversize(size);
        Stats::oversize(&mut self.stats.oversize_allocations, oversize, -1);
    }

    fn allocated(&self) -> Bytes {
        Bytes(self.stats.get(Metric::AllocatedBytes, PoolClass::All).current.max(0) as u64)
    }

    #[inline]
    fn note_allocated(&mut self, position: usize) {
        let allocated = self.allocated();
        if let Some(sample) = self.samples.last_mut() {
            *sample = (*sample).max(allocated);
        }
        if allocated > self.allocated_peak.bytes {
            self.allocated_peak = Peak { bytes: allocated, position, counters: self.stats.counters() };
        }
    }

    fn note_reserved(&mut self, position: usize) {
        let counters = self.stats.counters();
        if counters.reserved > self.reserved_peak.bytes {
            self.reserved_peak = Peak { bytes: counters.reserved, position, counters };
        }
    }

    fn region(&mut self, region: Region) -> u32 {
        self.reserved.push(region.size.0);
        self.regions.push(region);
        self.regions.len() as u32 - 1
    }

    /// Returns the region that stands for the expandable memory of a stream, pool and size class.
    fn arena(&mut self, addr: u64, stream: u64, pool: PoolId, small: bool) -> u32 {
        let next = self.regions.len() as u32;
        let index = *self.arenas.entry((stream, pool, small)).or_insert(next);
        if index == next {
            self.region(Region {
                addr,
                size: Bytes::ZERO,
                stream,
                pool,
                small,
                expandable: true,
                from_start: false,
            });
        }
        let region = &mut self.regions[index as usize];
        region.addr = region.addr.min(addr);
        index
    }

    fn is_small(&self, allocation: &Allocation) -> bool {
        match self.regions.get(allocation.region as usize) {
            Some(region) => region.small,
            None => allocation.size.0 <= SPLIT_THRESHOLD,
        }
    }

    #[inline]
    fn alloc(&mut self, index: u32, event: &Event) -> u32 {
        let place = match self.pieces.find(event.addr) {
            Some(place) if self.pieces.get(place).is_free() => Some(place),
            _ => self.make_room(index, event),
        };
        let allocation = self.allocations.len() as u32;
        let rounded = self.snapshot.round(event.size.0, self.settings);
        let (size, region, small) = match place {
            Some(place) => {
                let piece = *self.pieces.get(place);
                let of = self.regions[piece.region as usize];
                let mut size = self.block_size(piece.size, rounded, &of);
                if size > event.size.0 && self.is_followed_at(index, event.addr.saturating_add(event.size.0))
                {
                    size = event.size.0;
                }
                self.pieces.take(place, size, allocation);
                if !of.expandable {
                    let whole = piece.size == of.size.0;
                    let (count, bytes) = match (size < piece.size, whole) {
                        (true, false) => (0, -signed(size)),
                        (true, true) => (1, signed(piece.size - size)),
                        (false, false) => (-1, -signed(piece.size)),
                        (false, true) => (0, 0),
                    };
                    self.stats.change(Metric::InactiveSplit, of.small, count);
                    self.stats.change(Metric::InactiveSplitBytes, of.small, bytes);
                }
                (size, piece.region, of.small)
            }
            None => {
                self.inconsistencies.unplaced += 1;
                self.pieces.add(event.addr, rounded, NONE, allocation, NONE);
                (rounded, NONE, rounded <= SPLIT_THRESHOLD)
            }
        };
        self.allocations.push(Allocation {
            addr: event.addr,
            size: Bytes(size),
            requested: event.size,
            stack: event.stack,
            region,
            alloc_event: index,
            free_event: NONE,
            completed_event: NONE,
        });
        self.count_alloc(small, size, event.size.0);
        self.note_allocated(index as usize + 1);
        allocation
    }

    /// Returns whether the next event allocates at `addr`. Blocks of a CUDA graph pool that returns to a
    /// checkpoint follow each other, whatever the settings are by then.
    #[inline]
    fn is_followed_at(&self, index: u32, addr: u64) -> bool {
        let rows = self.snapshot.rows(self.device);
        let next = rows.start + index as usize + 1;
        next < rows.end && self.snapshot.events.actions(next..next + 1).next() == Some((Action::Alloc, addr))
    }

    /// Returns how much of a free piece a request takes: all of it, unless the remainder is large enough
    /// to split off.
    fn block_size(&self, available: u64, rounded: u64, region: &Region) -> u64 {
        let rest = available.saturating_sub(rounded);
        let splits = if region.small || region.expandable || self.settings.expandable_segments {
            rest >= 512
        } else {
            rest > SPLIT_THRESHOLD && self.settings.max_split.is_none_or(|limit| rounded < limit)
        };
        if splits { rounded } else { available }
    }

    /// Makes a free piece begin at the address of an allocation that has none, if possible. Either a free
    /// was not recorded, or the memory was placed explicitly (a restored CUDA graph pool).
    #[cold]
    fn make_room(&mut self, index: u32, event: &Event) -> Option<u32> {
        if let Some(place) = self.pieces.find(event.addr)
            && !self.pieces.get(place).is_free()
        {
            self.inconsistencies.overlaps += 1;
            self.implied_ends.push((index, self.pieces.get(place).allocation));
            self.complete(place, index);
        }
        let place = self.free_around(event.addr)?;
        let piece = *self.pieces.get(place);
        if piece.addr == event.addr {
            return Some(place);
        }
        let of = self.regions[piece.region as usize];
        if !of.expandable {
            let whole = piece.size == of.size.0;
            self.stats.change(Metric::InactiveSplit, of.small, if whole { 2 } else { 1 });
            self.stats.change(
                Metric::InactiveSplitBytes,
                of.small,
                if whole { signed(piece.size) } else { 0 },
            );
        }
        Some(self.pieces.cut(place, event.addr))
    }

    /// Returns the free piece that contains `addr`.
    fn free_around(&mut self, addr: u64) -> Option<u32> {
        if let Some(place) = self.pieces.find(addr) {
            return self.pieces.get(place).is_free().then_some(place);
        }
        self.search_budget = self.search_budget.checked_sub(self.pieces.len() as u64)?;
        let around = self
            .pieces
            .iter()
            .find(|piece| piece.is_free() && piece.addr <= addr && addr - piece.addr < piece.size)?
            .addr;
        self.pieces.find(around)
    }

    #[inline]
    fn free_requested(&mut self, index: u32, event: &Event) -> u32 {
        let place = self.pieces.find(event.addr).filter(|&place| !self.pieces.get(place).is_free());
        let Some(place) = place else {
            self.inconsistencies.unknown_frees += 1;
            return NONE;
        };
        let allocation = self.pieces.get(place).allocation;
        let block = self.allocations[allocation as usize];
        if block.free_event != NONE {
            self.inconsistencies.unknown_frees += 1;
            return NONE;
        }
        self.allocations[allocation as usize].free_event = index;
        self.last_freed = Some((event.addr, place));
        let small = self.is_small(&block);
        self.count_free_request(small, block.size.0);
        allocation
    }

    #[inline]
    fn free_completed(&mut self, index: u32, event: &Event) -> u32 {
        // Nearly always the block that was freed in the event before.
        let place = match self.last_freed {
            Some((addr, place)) if addr == event.addr => Some(place),
            _ => self.pieces.find(event.addr).filter(|&place| !self.pieces.get(place).is_free()),
        };
        let Some(place) = place else {
            self.inconsistencies.unknown_frees += 1;
            return NONE;
        };
        let allocation = self.pieces.get(place).allocation;
        self.complete(place, index);
        allocation
    }

    /// Ends the allocation of a piece and merges the piece with its free neighbours.
    #[inline]
    fn complete(&mut self, place: u32, index: u32) {
        self.last_freed = None;
        let allocation = self.pieces.get(place).allocation;
        let block = self.allocations[allocation as usize];
        let small = self.is_small(&block);
        if block.free_event == NONE {
            self.allocations[allocation as usize].free_event = index;
            self.count_free_request(small, block.size.0);
        }
        self.allocations[allocation as usize].completed_event = index;
        self.stats.decrease(Metric::Active, small, 1);
        self.stats.decrease(Metric::ActiveBytes, small, block.size.0);
        self.stats.decrease(Metric::RequestedBytes, small, block.requested.0);
        if block.region == NONE {
            self.pieces.remove(place);
            return;
        }
        let region = self.regions[block.region as usize];
        let (size, joined_count, joined_bytes) = self.pieces.free(place);
        if !region.expandable {
            let split = size < region.size.0;
            let count = i64::from(split) - joined_count;
            let bytes = if split { signed(size) } else { 0 } - signed(joined_bytes);
            self.stats.change(Metric::InactiveSplit, small, count);
            self.stats.change(Metric::InactiveSplitBytes, small, bytes);
        }
    }

    fn segment_alloc(&mut self, index: u32, event: &Event) -> u32 {
        let context = self.snapshot.events.context(event.context);
        let final_pool = self.final_pools.get(&index).copied();
        let small = event.size.0 == SMALL_SEGMENT;
        let region = self.region(Region {
            addr: event.addr,
            size: event.size,
            stream: context.stream,
            pool: context.pool.or(final_pool).unwrap_or_default(),
            small,
            expandable: false,
            from_start: false,
        });
        self.pieces.add(event.addr, event.size.0, region, NONE, NONE);
        self.stats.increase(Metric::Segment, small, 1);
        self.stats.increase(Metric::ReservedBytes, small, event.size.0);
        let oversize = self.is_oversize(event.size.0);
        Stats::oversize(&mut self.stats.oversize_segments, oversize, 1);
        self.stats.device_allocs += 1;
        self.note_reserved(index as usize + 1);
        region
    }

    fn segment_free(&mut self, event: &Event) -> u32 {
        let place = self.pieces.find(event.addr).filter(|&place| {
            let piece = self.pieces.get(place);
            piece.is_free() && self.regions[piece.region as usize].addr == event.addr
        });
        let Some(place) = place else {
            self.inconsistencies.segments += 1;
            return NONE;
        };
        let piece = *self.pieces.get(place);
        let of = self.regions[piece.region as usize];
        self.inconsistencies.segments += u64::from(piece.size != of.size.0);
        self.pieces.remove(place);
        self.reserved[piece.region as usize] = 0;
        self.stats.decrease(Metric::Segment, of.small, 1);
        self.stats.decrease(Metric::ReservedBytes, of.small, of.size.0);
        let oversize = self.is_oversize(of.size.0);
        Stats::oversize(&mut self.stats.oversize_segments, oversize, -1);
        self.stats.device_frees += 1;
        piece.region
    }

    fn segment_map(&mut self, index: u32, event: &Event) -> u32 {
        let context = self.snapshot.events.context(event.context);
        // The small pool maps one page of 2 MiB at a time, the large pool always more.
        let small = event.size.0 == SMALL_SEGMENT;
        let pool = context.pool.unwrap_or_else(|| {
            // Other pools reuse address ranges, so a final segment counts only for its own size class.
            self.snapshot
                .segments_of(self.device)
                .find(|of| {
                    (of.expandable, of.small, of.stream) == (true, small, context.stream)
                        && of.addr <= event.addr
                        && event.addr - of.addr < of.size.0
                })
                .map_or(PoolId::DEFAULT, |of| of.pool)
        });
        let region = self.arena(event.addr, context.stream, pool, small);
        self.add_pages(event.addr, event.size.0, region);
        let reserved = &mut self.reserved[region as usize];
        *reserved = reserved.saturating_add(event.size.0);
        self.stats.increase(Metric::ReservedBytes, small, event.size.0);
        self.stats.device_allocs += 1;
        self.note_reserved(index as usize + 1);
        region
    }

    /// Adds mapped pages. Past the search budget they stay unlinked: block sizes may then be off, but not
    /// the sums.
    fn add_pages(&mut self, addr: u64, size: u64, region: u32) {
        match self.search_budget.checked_sub(self.pieces.len() as u64) {
            Some(left) => {
                self.search_budget = left;
                self.pieces.insert(addr, size, region);
            }
            None => {
                self.pieces.add(addr, size, region, NONE, NONE);
            }
        }
    }

    fn segment_unmap(&mut self, event: &Event) -> u32 {
        let place = self.free_around(event.addr).filter(|&place| {
            let piece = self.pieces.get(place);
            event.size.0 <= piece.size - (event.addr - piece.addr)
        });
        let Some(mut place) = place else {
            self.inconsistencies.segments += 1;
            return NONE;
        };
        if self.pieces.get(place).addr < event.addr {
            place = self.pieces.cut(place, event.addr);
        }
        let piece = *self.pieces.get(place);
        if event.size.0 < piece.size {
            self.pieces.cut(place, event.addr.saturating_add(event.size.0));
        }
        self.pieces.remove(place);
        let small = self.regions[piece.region as usize].small;
        let reserved = &mut self.reserved[piece.region as usize];
        *reserved = reserved.saturating_sub(event.size.0);
        self.stats.decrease(Metric::ReservedBytes, small, event.size.0);
        self.stats.device_frees += 1;
        piece.region
    }
}
