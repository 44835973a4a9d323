//! Free memory at one moment, and what keeps it from being used or returned.

use crate::run::step_peaks::StepPeaks;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, History, PoolId};

/// A segment, or the expandable memory of a pool and stream, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct RegionNow {
    /// Row of [`History::regions`].
    pub(crate) region: usize,
    pub(crate) reserved: Bytes,
    pub(crate) active: Bytes,
    /// Rounding inside its active blocks.
    pub(crate) rounding: Bytes,
    /// Free pieces, for ordinary segments. Free pages of expandable memory can be moved, unless they are in
    /// use in part: there it is one piece, and an upper bound.
    pub(crate) pieces: u64,
    pub(crate) largest: Bytes,
    /// Rows of [`History::allocations`] that are in use in it.
    pub(crate) allocations: Vec<u32>,
}

impl RegionNow {
    pub(crate) fn free(&self) -> Bytes {
        self.reserved.saturating_sub(self.active)
    }
}

/// All memory that is reserved once `position` events have happened.
pub(crate) fn layout(history: &History, step_peaks: &StepPeaks, position: usize) -> Vec<RegionNow> {
    let mut reserved: Vec<u64> =
        history.regions.iter().map(|region| if region.from_start { region.size.0 } else { 0 }).collect();
    for event in step_peaks.segments.iter().take_while(|event| event.event < position) {
        let Some(region) = event.region else { continue };
        let bytes = event.bytes.0;
        reserved[region] = if event.reserves {
            reserved[region].saturating_add(bytes)
        } else {
            reserved[region].saturating_sub(bytes)
        };
    }
    let mut allocations: Vec<Vec<u32>> = vec![Vec::new(); history.regions.len()];
    for (row, allocation) in history.allocations[..history.first_allocated_from(position)].iter().enumerate()
    {
        if allocation.is_active_at(position)
            && let Some(inside) = allocations.get_mut(allocation.region as usize)
        {
            inside.push(row as u32);
        }
    }
    let regions = reserved.into_iter().zip(allocations).enumerate();
    regions
        .filter(|(_, (reserved, _))| *reserved > 0)
        .map(|(region, (reserved, allocations))| region_now(history, region, Bytes(reserved), allocations))
        .collect()
}

fn region_now(history: &History, region: usize, reserved: Bytes, mut allocations: Vec<u32>) -> RegionNow {
    let allocation = |row: &u32| &history.allocations[*row as usize];
    allocations.sort_unstable_by_key(|row| allocation(row).addr);
    let active: Bytes = allocations.iter().map(|row| allocation(row).size).sum();
    let requested: Bytes = allocations.iter().map(|row| allocation(row).requested).sum();
    let mut now = RegionNow {
        region,
        reserved,
        active,
        rounding: active.saturating_sub(requested),
        pieces: 0,
        largest: Bytes::ZERO,
        allocations,
    };
    let here = &history.regions[region];
    if here.expandable {
        now.largest = now.free();
        now.pieces = u64::from(now.largest > Bytes::ZERO);
        return now;
    }
    let mut at = here.addr;
    let ends = now
        .allocations
        .iter()
        .map(|row| (allocation(row).addr, allocation(row).addr.saturating_add(allocation(row).size.0)));
    for (start, end) in ends.chain([(here.addr.saturating_add(reserved.0), u64::MAX)]) {
        let piece = start.saturating_sub(at);
        if piece > 0 {
            now.pieces += 1;
            now.largest = now.largest.max(Bytes(piece));
        }
        at = at.max(end);
    }
    now
}

/// Free memory of a moment, by what prevents its use. The parts add up to what is reserved and
/// not in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Free {
    /// Whole segments that `empty_cache()` would return.
    pub(crate) returnable: Bytes,
    /// In segments pinned by live blocks.
    pub(crate) pinned: Bytes,
    /// Cached for another stream, or for blocks of the other pool.
    pub(crate) elsewhere: Bytes,
    /// In private pools of CUDA graphs and `MemPool`s.
    pub(crate) private: Bytes,
    /// Lost inside blocks: allocated minus requested bytes. Not part of the sum.
    pub(crate) rounding: Bytes,
    /// The largest block that could be had without `cudaMalloc`.
    pub(crate) largest: Bytes,
    /// Pieces that this memory is in.
    pub(crate) pieces: u64,
    /// Whether `largest` is exact and not an upper bound.
    pub(crate) is_exact: bool,
}

impl Free {
    /// All of it that ordinary allocations could hope for.
    pub(crate) fn total(&self) -> Bytes {
        self.returnable + self.pinned + self.elsewhere
    }
}

/// Sorts the free memory as the main stream's large requests see it.
pub(crate) fn free(history: &History, regions: &[RegionNow]) -> Free {
    free_for(history, regions, Bytes(u64::MAX), main_stream(history, regions))
}

/// Requests up to this size have a pool of their own.
const MAX_SMALL_REQUEST: Bytes = Bytes(1 << 20);

/// Sorts the free memory as a request of this size on this stream sees it.
pub(crate) fn free_for(history: &History, regions: &[RegionNow], requested: Bytes, stream: u64) -> Free {
    let mut free = Free { is_exact: true, ..Free::default() };
    for now in regions {
        let region = &history.regions[now.region];
        free.is_exact &= !region.expandable;
        free.rounding += now.rounding;
        if region.pool != PoolId::DEFAULT {
            free.private += now.free();
        } else if region.stream != stream || region.small != (requested <= MAX_SMALL_REQUEST) {
            free.elsewhere += now.free();
        } else {
            if now.active == Bytes::ZERO {
                free.returnable += now.free();
            } else {
                free.pinned += now.free();
            }
            free.largest = free.largest.max(now.largest);
            free.pieces += now.pieces;
        }
    }
    free
}

/// The stream with the most memory.
fn main_stream(history: &History, regions: &[RegionNow]) -> u64 {
    let mut streams: FxHashMap<u64, Bytes> = FxHashMap::default();
    for now in regions {
        let region = &history.regions[now.region];
        if region.pool == PoolId::DEFAULT {
            *streams.entry(region.stream).or_default() += now.reserved;
        }
    }
    let most = streams.into_iter().max_by_key(|&(stream, bytes)| (bytes, std::cmp::Reverse(stream)));
    most.map_or(0, |(stream, _)| stream)
}
