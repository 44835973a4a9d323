//! Follows every event through the segments.
//!
//! The state is a map from address to the piece that starts there, in use or free, and a map from the end of
//! each free piece to its start; neighbours are found in constant time and each event costs a few look-ups.
//! Replay cannot fail: an event that contradicts the state is put right as far as it can be, and counted.

use super::start::{SMALL_SEGMENT, SPLIT_THRESHOLD, Start};
use super::stats::{Metric, PoolClass, Stats, signed};
use super::{BEFORE, Counters, History, Life, NONE, Peak, Region};
use crate::bytes::Bytes;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::tables::{Action, BlockState, Event, PoolId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

pub(super) fn replay(snapshot: &Snapshot, device: u32, start: Start) -> History {
    let rows = snapshot.rows(device);
    let mut replay = Replay::new(snapshot, device, &start);
    for (index, event) in snapshot.events.iter(rows.clone()).enumerate() {
        if index == replay.next_sample {
            replay.samples.push(replay.allocated());
            replay.next_sample += replay.samples_every;
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
        lives: replay.lives,
        regions: replay.regions,
        end: replay.stats.counters(),
        region_ends,
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

/// Enough for a picture as wide as any terminal.
const MAX_SAMPLES: usize = 512;

/// What starts at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    Free { size: u64, region: u32 },
    Used(u32),
}

type ByAddress<T> = HashMap<u64, T, FxBuildHasher>;

/// What did not fit, for the caveats.
#[derive(Default)]
struct Surprises {
    unknown_frees: u64,
    unplaced: u64,
    overlaps: u64,
    segments: u64,
    active_mismatches: u64,
}

struct Replay<'a> {
    snapshot: &'a Snapshot,
    device: u32,
    settings: &'a Settings,
    pieces: ByAddress<Piece>,
    free_ends: ByAddress<u64>,
    /// Final segments by address: they know the pool of those that the trace made.
    final_pools: ByAddress<(u64, PoolId)>,
    /// Expandable memory by stream, pool and size class.
    arenas: HashMap<(u64, PoolId, bool), u32, FxBuildHasher>,
    lives: Vec<Life>,
    regions: Vec<Region>,
    /// Reserved bytes of each region.
    reserved: Vec<u64>,
    /// The block given back last, while it is not free yet.
    last_freed: Option<(u64, u32)>,
    subjects: Vec<u32>,
    implied_ends: Vec<(u32, u32)>,
    stats: Stats,
    allocated_peak: Peak,
    reserved_peak: Peak,
    /// Allocated before the first event.
    at_start: Bytes,
    samples: Vec<Bytes>,
    samples_every: usize,
    next_sample: usize,
    surprises: Surprises,
    /// Steps left for searches that go through all pieces: a file that contradicts itself in every event
    /// must not take forever.
    search_budget: u64,
}

impl<'a> Replay<'a> {
    fn new(snapshot: &'a Snapshot, device: u32, start: &Start) -> Replay<'a> {
        let final_pools = snapshot
            .segments_of(device)
            .map(|segment| (segment.addr, (segment.size.0, segment.pool)))
            .collect();
        let mut replay = Replay {
            snapshot,
            device,
            settings: &snapshot.settings,
            pieces: ByAddress::default(),
            free_ends: ByAddress::default(),
            final_pools,
            arenas: HashMap::default(),
            lives: Vec::with_capacity(
                start.blocks.len() + snapshot.events.allocations(snapshot.rows(device)),
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
            surprises: Surprises::default(),
            search_budget: 100_000_000,
        };
        replay.set_up(start);
        replay
    }

    /// Lays out the state before the first event.
    fn set_up(&mut self, start: &Start) {
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
            while let Some(block) = blocks.next_if(|block| block.segment.is_none_or(|of| of <= place)) {
                if block.segment.is_none() {
                    self.start_block(block, NONE, segment.small);
                    continue;
                }
                used = true;
                if block.addr > free_from {
                    gaps.push((free_from, block.addr - free_from));
                }
                free_from = free_from.max(block.addr.saturating_add(block.size)).min(end);
                self.start_block(block, region, segment.small);
            }
            if end > free_from {
                gaps.push((free_from, end - free_from));
            }
            for (addr, size) in gaps {
                self.insert_free(addr, size, region);
                if used && !segment.expandable {
                    self.stats.increase(Metric::InactiveSplit, segment.small, 1);
                    self.stats.increase(Metric::InactiveSplitBytes, segment.small, size);
                }
            }
        }
        for block in blocks {
            self.start_block(block, NONE, block.size <= SPLIT_THRESHOLD);
        }
        self.note_allocated(0);
        self.note_reserved(0);
        self.at_start = self.allocated_peak.bytes;
    }

    fn start_block(&mut self, block: &super::start::StartBlock, region: u32, small: bool) {
        let life = self.lives.len() as u32;
        self.lives.push(Life {
            addr: block.addr,
            size: Bytes(block.size),
            requested: Bytes(block.requested),
            stack: block.stack,
            region,
            born: NONE,
            freed: if block.pending { BEFORE } else { NONE },
            completed: NONE,
        });
        self.pieces.insert(block.addr, Piece::Used(life));
        self.count_alloc(small, block.size, block.requested);
        if block.pending {
            self.count_free_request(small, block.size);
        }
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
                // PyTorch notes the active bytes of the moment: a check of everything before it.
                let active = self.stats.get(Metric::ActiveBytes, PoolClass::All).current;
                self.surprises.active_mismatches += u64::from(active as u64 != event.size.0);
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

    /// The row that stands for the expandable memory of a stream, pool and size class.
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

    fn is_small(&self, life: &Life) -> bool {
        match self.regions.get(life.region as usize) {
            Some(region) => region.small,
            None => life.size.0 <= SPLIT_THRESHOLD,
        }
    }

    fn insert_free(&mut self, addr: u64, size: u64, region: u32) {
        self.pieces.insert(addr, Piece::Free { size, region });
        self.free_ends.insert(addr.saturating_add(size), addr);
    }

    fn remove_free(&mut self, addr: u64, size: u64) {
        self.pieces.remove(&addr);
        self.free_ends.remove(&addr.saturating_add(size));
    }

    #[inline]
    fn alloc(&mut self, index: u32, event: &Event) -> u32 {
        let life = self.lives.len() as u32;
        let piece = match self.pieces.get_mut(&event.addr) {
            Some(piece) if let Piece::Free { size, region } = *piece => {
                *piece = Piece::Used(life);
                Some((size, region))
            }
            _ => {
                let room = self.make_room(index, event);
                self.pieces.insert(event.addr, Piece::Used(life));
                room
            }
        };
        let rounded = self.settings.round(event.size.0);
        let (size, region, small) = match piece {
            Some((available, region)) => {
                let of = self.regions[region as usize];
                let size = self.block_size(available, rounded, &of);
                let end = event.addr.saturating_add(available);
                if size < available {
                    let rest = event.addr.saturating_add(size);
                    self.pieces.insert(rest, Piece::Free { size: available - size, region });
                    self.free_ends.insert(end, rest);
                } else {
                    self.free_ends.remove(&end);
                }
                if !of.expandable {
                    let whole = available == of.size.0;
                    let (count, bytes) = match (size < available, whole) {
                        (true, false) => (0, -signed(size)),
                        (true, true) => (1, signed(available - size)),
                        (false, false) => (-1, -signed(available)),
                        (false, true) => (0, 0),
                    };
                    self.stats.change(Metric::InactiveSplit, of.small, count);
                    self.stats.change(Metric::InactiveSplitBytes, of.small, bytes);
                }
                (size, region, of.small)
            }
            None => {
                self.surprises.unplaced += 1;
                (rounded, NONE, rounded <= SPLIT_THRESHOLD)
            }
        };
        self.lives.push(Life {
            addr: event.addr,
            size: Bytes(size),
            requested: event.size,
            stack: event.stack,
            region,
            born: index,
            freed: NONE,
            completed: NONE,
        });
        self.count_alloc(small, size, event.size.0);
        self.note_allocated(index as usize + 1);
        life
    }

    /// How much of a free piece a request takes: all of it, unless what is left is worth keeping.
    fn block_size(&self, available: u64, rounded: u64, region: &Region) -> u64 {
        let rest = available.saturating_sub(rounded);
        let splits = if region.small || region.expandable || self.settings.expandable_segments {
            rest >= 512
        } else {
            rest > SPLIT_THRESHOLD && self.settings.max_split.is_none_or(|limit| rounded < limit)
        };
        if splits { rounded } else { available }
    }

    /// An allocation where no free piece begins: either something was freed without a record, or the memory was
    /// placed by force (a restored CUDA graph pool). Makes a free piece begin there, if it can.
    #[cold]
    fn make_room(&mut self, index: u32, event: &Event) -> Option<(u64, u32)> {
        if let Some(&Piece::Used(life)) = self.pieces.get(&event.addr) {
            self.surprises.overlaps += 1;
            self.implied_ends.push((index, life));
            self.complete(life, index);
        }
        let (addr, size, region) = self.free_around(event.addr)?;
        if addr < event.addr {
            self.remove_free(addr, size);
            self.insert_free(addr, event.addr - addr, region);
            self.insert_free(event.addr, size - (event.addr - addr), region);
            let of = self.regions[region as usize];
            if !of.expandable {
                let whole = size == of.size.0;
                self.stats.change(Metric::InactiveSplit, of.small, if whole { 2 } else { 1 });
                self.stats.change(Metric::InactiveSplitBytes, of.small, if whole { signed(size) } else { 0 });
            }
        }
        Some((size - (event.addr - addr), region))
    }

    /// The free piece that holds `addr`.
    fn free_around(&mut self, addr: u64) -> Option<(u64, u64, u32)> {
        if let Some(&Piece::Free { size, region }) = self.pieces.get(&addr) {
            return Some((addr, size, region));
        }
        self.search_budget = self.search_budget.checked_sub(self.pieces.len() as u64)?;
        self.pieces.iter().find_map(|(&start, piece)| match *piece {
            Piece::Free { size, region } if start <= addr && addr - start < size => {
                Some((start, size, region))
            }
            _ => None,
        })
    }

    #[inline]
    fn free_requested(&mut self, index: u32, event: &Event) -> u32 {
        let Some(&Piece::Used(life)) = self.pieces.get(&event.addr) else {
            self.surprises.unknown_frees += 1;
            return NONE;
        };
        let block = self.lives[life as usize];
        if block.freed != NONE {
            self.surprises.unknown_frees += 1;
            return NONE;
        }
        self.lives[life as usize].freed = index;
        self.last_freed = Some((event.addr, life));
        let small = self.is_small(&block);
        self.count_free_request(small, block.size.0);
        life
    }

    #[inline]
    fn free_completed(&mut self, index: u32, event: &Event) -> u32 {
        // Nearly always the block that was given back just before.
        let life = match self.last_freed {
            Some((addr, life)) if addr == event.addr => life,
            _ => match self.pieces.get(&event.addr) {
                Some(&Piece::Used(life)) => life,
                _ => {
                    self.surprises.unknown_frees += 1;
                    return NONE;
                }
            },
        };
        self.complete(life, index);
        life
    }

    /// Returns a block to the free pieces and joins it with free neighbours in its segment.
    #[inline]
    fn complete(&mut self, life: u32, index: u32) {
        self.last_freed = None;
        let block = self.lives[life as usize];
        let small = self.is_small(&block);
        if block.freed == NONE {
            self.lives[life as usize].freed = index;
            self.count_free_request(small, block.size.0);
        }
        self.lives[life as usize].completed = index;
        self.stats.decrease(Metric::Active, small, 1);
        self.stats.decrease(Metric::ActiveBytes, small, block.size.0);
        self.stats.decrease(Metric::RequestedBytes, small, block.requested.0);
        if block.region == NONE {
            self.pieces.remove(&block.addr);
            return;
        }
        let region = self.regions[block.region as usize];
        let (size, joined_count, joined_bytes) = self.join(block.addr, block.size.0, block.region);
        if !region.expandable {
            let split = size < region.size.0;
            let count = i64::from(split) - joined_count;
            let bytes = if split { signed(size) } else { 0 } - signed(joined_bytes);
            self.stats.change(Metric::InactiveSplit, small, count);
            self.stats.change(Metric::InactiveSplitBytes, small, bytes);
        }
    }

    /// Makes [addr, addr + size) free, merged with its free neighbours; returns the size of the whole piece, how
    /// many were merged into it and their bytes.
    #[inline]
    fn join(&mut self, addr: u64, size: u64, region: u32) -> (u64, i64, u64) {
        let (mut start, mut end) = (addr, addr.saturating_add(size));
        let (mut count, mut bytes) = (0, 0);
        if let Some(&before) = self.free_ends.get(&addr)
            && let Some(&Piece::Free { size, region: of }) = self.pieces.get(&before)
            && of == region
        {
            self.free_ends.remove(&addr);
            self.pieces.remove(&addr);
            start = before;
            count += 1;
            bytes += size;
        }
        if let Some(&Piece::Free { size, region: of }) = self.pieces.get(&end)
            && of == region
            && end > start
        {
            self.pieces.remove(&end);
            end = end.saturating_add(size);
            count += 1;
            bytes = bytes.saturating_add(size);
        }
        self.insert_free(start, end - start, region);
        (end - start, count, bytes)
    }

    fn segment_alloc(&mut self, index: u32, event: &Event) -> u32 {
        let context = self.snapshot.events.context(event.context);
        let final_pool = self.final_pools.get(&event.addr).filter(|(size, _)| *size == event.size.0);
        let small = event.size.0 == SMALL_SEGMENT;
        let region = self.region(Region {
            addr: event.addr,
            size: event.size,
            stream: context.stream,
            pool: context.pool.or(final_pool.map(|(_, pool)| *pool)).unwrap_or_default(),
            small,
            expandable: false,
            from_start: false,
        });
        self.insert_free(event.addr, event.size.0, region);
        self.stats.increase(Metric::Segment, small, 1);
        self.stats.increase(Metric::ReservedBytes, small, event.size.0);
        let oversize = self.is_oversize(event.size.0);
        Stats::oversize(&mut self.stats.oversize_segments, oversize, 1);
        self.stats.device_allocs += 1;
        self.note_reserved(index as usize + 1);
        region
    }

    fn segment_free(&mut self, event: &Event) -> u32 {
        match self.pieces.get(&event.addr) {
            Some(&Piece::Free { size, region }) if self.regions[region as usize].addr == event.addr => {
                let of = self.regions[region as usize];
                self.surprises.segments += u64::from(size != of.size.0);
                self.remove_free(event.addr, size);
                self.reserved[region as usize] = 0;
                self.stats.decrease(Metric::Segment, of.small, 1);
                self.stats.decrease(Metric::ReservedBytes, of.small, of.size.0);
                let oversize = self.is_oversize(of.size.0);
                Stats::oversize(&mut self.stats.oversize_segments, oversize, -1);
                self.stats.device_frees += 1;
                region
            }
            _ => {
                self.surprises.segments += 1;
                NONE
            }
        }
    }

    fn segment_map(&mut self, index: u32, event: &Event) -> u32 {
        let context = self.snapshot.events.context(event.context);
        // A small pool maps one page of 2 MiB at a time, a large one never so little.
        let small = event.size.0 == SMALL_SEGMENT;
        let pool = context.pool.unwrap_or_else(|| {
            // Address ranges are used again by other pools, so a final segment speaks only for its own kind.
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
        self.join(event.addr, event.size.0, region);
        let reserved = &mut self.reserved[region as usize];
        *reserved = reserved.saturating_add(event.size.0);
        self.stats.increase(Metric::ReservedBytes, small, event.size.0);
        self.stats.device_allocs += 1;
        self.note_reserved(index as usize + 1);
        region
    }

    fn segment_unmap(&mut self, event: &Event) -> u32 {
        let Some((addr, size, region)) = self.free_around(event.addr) else {
            self.surprises.segments += 1;
            return NONE;
        };
        let small = self.regions[region as usize].small;
        let before = event.addr - addr;
        let unmapped = event.size.0;
        if unmapped > size - before {
            self.surprises.segments += 1;
            return NONE;
        }
        self.remove_free(addr, size);
        if before > 0 {
            self.insert_free(addr, before, region);
        }
        if before + unmapped < size {
            self.insert_free(event.addr + unmapped, size - before - unmapped, region);
        }
        let reserved = &mut self.reserved[region as usize];
        *reserved = reserved.saturating_sub(event.size.0);
        self.stats.decrease(Metric::ReservedBytes, small, event.size.0);
        self.stats.device_frees += 1;
        region
    }

    /// The counters of each region now.
    fn region_ends(&self) -> Vec<Counters> {
        let mut ends: Vec<Counters> = self
            .reserved
            .iter()
            .map(|&reserved| Counters { reserved: Bytes(reserved), ..Counters::default() })
            .collect();
        for piece in self.pieces.values() {
            let Piece::Used(life) = *piece else { continue };
            let life = &self.lives[life as usize];
            let Some(end) = ends.get_mut(life.region as usize) else { continue };
            end.active += life.size;
            end.requested += life.requested;
            if life.freed == NONE {
                end.allocated += life.size;
            }
        }
        for (end, region) in ends.iter_mut().zip(&self.regions) {
            if !region.expandable && end.active > Bytes::ZERO {
                end.inactive_split = end.reserved - end.active;
            }
        }
        ends
    }

    /// What was surprising, in words; also holds the end of the replay against the final segments.
    fn report(&self, complete: bool, caveats: &mut Vec<String>) {
        let rows = self.snapshot.rows(self.device);
        let mut say = |count: u64, text: &str| {
            if count > 0 {
                caveats.push(format!("{count} {text}"));
            }
        };
        let surprises = &self.surprises;
        say(surprises.unknown_frees, "frees of blocks that were not in use: those events were passed over");
        say(
            surprises.unplaced,
            "allocations outside every known segment (segment events were not recorded?): counted with their \
             rounded size",
        );
        say(
            surprises.overlaps,
            "allocations over blocks that no event had freed (free events were not recorded?): those blocks are \
             taken as freed at that moment",
        );
        say(surprises.segments, "segment events that do not fit the state: reserved bytes may be off");
        say(
            surprises.active_mismatches,
            "snapshots in the history noted other active bytes than the replay: sizes may be off",
        );
        let reserved = self.stats.counters().reserved;
        let segments: Bytes = self.snapshot.segments_of(self.device).map(|segment| segment.size).sum();
        if reserved != segments && surprises.segments == 0 {
            caveats.push(format!(
                "the segment events lead to {reserved} reserved at the end, the final segments have {segments}"
            ));
        }
        let (blocks, bytes) = self.differences_at_the_end();
        if blocks > 0 {
            caveats.push(format!(
                "{blocks} blocks ({bytes}) of the final segments differ from the replay: settings were probably \
                 changed while recording"
            ));
        }
        if rows.is_empty() {
            caveats.insert(0, "no history was recorded: only the state at the end is known".to_owned());
        } else if !complete {
            caveats.insert(
                0,
                format!(
                    "the history is truncated: {} were already allocated when it begins; peaks and totals count \
                     from there",
                    self.at_start
                ),
            );
        }
    }

    fn differences_at_the_end(&self) -> (u64, Bytes) {
        let (mut count, mut bytes) = (0, Bytes::ZERO);
        for segment in self.snapshot.segments_of(self.device) {
            for block in &self.snapshot.blocks[segment.blocks.clone()] {
                let replayed = match self.pieces.get(&block.addr) {
                    Some(&Piece::Used(life)) => Some(&self.lives[life as usize]),
                    _ => None,
                };
                let state = |life: &Life| match life.freed {
                    NONE => BlockState::Allocated,
                    _ => BlockState::PendingFree,
                };
                let equal = match (block.state, replayed) {
                    (BlockState::Inactive, None) => true,
                    (BlockState::Inactive, Some(_)) | (_, None) => false,
                    (expected, Some(life)) => life.size == block.size && state(life) == expected,
                };
                if !equal {
                    count += 1;
                    bytes += block.size;
                }
            }
        }
        (count, bytes)
    }
}
