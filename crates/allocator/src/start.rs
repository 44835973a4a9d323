//! Setup of the state before the first event in an empty allocator.

use crate::model::{Environment, Lane, Model, ModelBlock, ModelBlockState, ModelPool, NONE};
use crate::owners::Owners;
use rustc_hash::FxHashMap;
use snapshot::{Action, History, PoolId, SegmentAtStart, Snapshot};

/// Upper bound of the addresses and sizes of any device.
pub(crate) const ADDRESS_LIMIT: u64 = 1 << 60;

/// Returns whether a segment can be where a file says.
pub(crate) fn is_plausible(addr: u64, size: u64) -> bool {
    size > 0 && addr.max(size) < ADDRESS_LIMIT
}

/// Maximum distance in bytes of the start of an expandable segment: addresses further away belong to another
/// one.
const MAX_BASE_DISTANCE_BYTES: u64 = 1 << 38;

/// Adds the segments and blocks that existed before the first event. Returns the model's block of each
/// allocation of the history; allocations that do not fit are [`NONE`].
pub(crate) fn lay_out<W: Environment>(
    model: &mut Model<W>,
    snapshot: &Snapshot,
    history: &History,
    owners: &Owners,
    lanes: &[Lane],
    pools: &[ModelPool],
    page: u64,
) -> Vec<u32> {
    let mut block_of = vec![NONE; history.allocations.len()];
    let mut held: Vec<u32> = (0..history.allocations.len() as u32)
        .take_while(|&allocation| history.allocations[allocation as usize].alloc_event().is_none())
        .collect();
    held.sort_unstable_by_key(|&allocation| history.allocations[allocation as usize].addr);
    let old =
        history.regions.iter().enumerate().filter(|(_, region)| region.from_start && !region.expandable);
    let regions: FxHashMap<u64, usize> = old.map(|(place, region)| (region.addr, place)).collect();
    let list_of = |segment: &SegmentAtStart| {
        let region = regions.get(&segment.addr).filter(|_| !segment.expandable);
        let pool = region.and_then(|&region| owners.pool(region)).unwrap_or(segment.pool);
        lane_of(lanes, pools, pool, segment.stream) * 2 + u32::from(!segment.small)
    };
    let mut end_of_last = 0;
    let mut expandable: Vec<(u32, &SegmentAtStart)> = Vec::new();
    for segment in &history.segments_at_start {
        // Overlapping segments are a contradiction; the first one counts.
        if segment.addr < end_of_last || !is_plausible(segment.addr, segment.size) {
            continue;
        }
        end_of_last = segment.addr + segment.size;
        if segment.expandable {
            expandable.push((list_of(segment), segment));
            continue;
        }
        let whole = model.add_segment(list_of(segment), segment.addr, segment.size, false);
        model.adopt(whole, history, &held, &mut block_of);
    }
    expandable.sort_by_key(|(list, segment)| (*list, segment.addr));
    for of_list in expandable.chunk_by(|a, b| a.0 == b.0) {
        let (list, first) = of_list[0];
        let runs: Vec<(u64, u64)> = of_list.iter().map(|(_, run)| (run.addr, run.size)).collect();
        let base = lowest_page(snapshot, history, first);
        for run in model.adopt_range(list, base, &runs, page) {
            model.adopt(run, history, &held, &mut block_of);
        }
    }
    model.start_counting();
    model.end_of_start();
    block_of
}

/// Returns the start of an expandable segment: the lowest page ever mapped in it, as far as recorded.
fn lowest_page(snapshot: &Snapshot, history: &History, first: &SegmentAtStart) -> u64 {
    let is_near = |addr: u64| addr < first.addr && first.addr - addr < MAX_BASE_DISTANCE_BYTES;
    let rows = history.rows.clone();
    let mapped = snapshot.events.actions(rows).enumerate().filter(|&(index, (action, addr))| {
        action == Action::SegmentMap
            && is_near(addr)
            && history.region_of(index, action).is_some_and(|region| {
                let region = &history.regions[region];
                (region.stream, region.pool, region.small) == (first.stream, first.pool, first.small)
            })
    });
    mapped.map(|(_, (_, addr))| addr).min().unwrap_or(first.addr)
}

impl<W: Environment> Model<W> {
    /// Cuts a free run of memory into its blocks and the free pieces between them.
    fn adopt(&mut self, whole: u32, history: &History, held: &[u32], block_of: &mut [u32]) {
        let ModelBlock { addr, size, .. } = *self.block(whole);
        let end = addr + size;
        let first = held.partition_point(|&allocation| history.allocations[allocation as usize].addr < addr);
        let mut rest = whole;
        let mut at = addr;
        for &allocation in &held[first..] {
            let row = &history.allocations[allocation as usize];
            let Some(row_end) = row.addr.checked_add(row.size.0) else { continue };
            if row.addr >= end {
                break;
            }
            // A block that contradicts those before it is left out.
            if row.addr < at || row_end > end || row.size.0 == 0 {
                continue;
            }
            if row.addr > at {
                let behind = self.cut(rest, row.addr - at);
                self.list_free(rest);
                rest = behind;
            }
            let block = rest;
            at = row_end;
            let rest_of_segment = (at < end).then(|| self.cut(block, row.size.0));
            let pending = row.free_event() == Some(0) && !row.is_allocated_at(0);
            self.occupy(block, row.requested.0, pending.then_some(allocation));
            block_of[allocation as usize] = block;
            match rest_of_segment {
                Some(behind) => rest = behind,
                None => return,
            }
        }
        self.list_free(rest);
    }

    fn occupy(&mut self, block: u32, requested: u64, pending: Option<u32>) {
        let row = self.block_mut(block);
        row.requested = requested;
        row.state = if pending.is_some() { ModelBlockState::Pending } else { ModelBlockState::Allocated };
        if let Some(token) = pending {
            self.wait_for_streams(block, token);
        }
    }

    /// Sets the counters for the initial state.
    fn start_counting(&mut self) {
        let mut counts = self.counts;
        for (_, block) in self.all_blocks() {
            match block.state {
                ModelBlockState::Unmapped => continue,
                ModelBlockState::Allocated => {
                    counts.allocated += block.size;
                    counts.active += block.size;
                }
                ModelBlockState::Pending => counts.active += block.size,
                ModelBlockState::Free => {}
            }
            counts.reserved = counts.reserved.saturating_add(block.size);
        }
        counts.peak_reserved = counts.reserved;
        counts.peak_allocated = counts.allocated;
        self.counts = counts;
    }
}

/// Returns the index of a request's pool and stream among the lanes.
pub(crate) fn lane_of(lanes: &[Lane], pools: &[ModelPool], pool: PoolId, stream: u64) -> u32 {
    let pool = pools.binary_search_by_key(&pool, |pool| pool.id).unwrap_or(0) as u32;
    // The number of streams is limited; the excess ones of a hostile file count as the default stream.
    lanes.binary_search(&Lane { pool, stream }).unwrap_or(0) as u32
}
