//! Requests of a program to the allocator, independent of how the allocator served them.
//!
//! The requests of a recorded run do not depend on the allocator's settings, so the same list can be replayed
//! under any.

use crate::conf_timeline::ConfTimeline;
use crate::model::{Lane, ModelPool};
use crate::owners::{Assumed, UNSEEN_POOL};
use crate::rules::Release;
use snapshot::{Action, History, PoolId, Snapshot};

/// One request of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// Index of its pool and stream in [`Requests::lanes`]; for the end of a pool the index of the pool.
    pub(crate) lane: u32,
    /// Row of its block in [`History::allocations`].
    pub(crate) allocation: u32,
    /// Event of the recording that it comes from.
    pub(crate) event: u32,
    pub(crate) size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpKind {
    Alloc,
    Free,
    /// Free that has to wait for another stream.
    FreeLater,
    /// Completion of a free on the other stream.
    Complete,
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// Deletion of a `MemPool`.
    EndPool,
    /// End of use of a private pool: the next release of all cached memory may take it.
    RetirePool,
    /// Request that failed in the recorded run.
    Failed,
}

/// Requests of one device.
pub(crate) struct Requests {
    pub(crate) ops: Vec<Op>,
    /// Sorted by pool and stream.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) pools: Vec<ModelPool>,
}

/// Returns the lanes and pools that a history mentions; the default pool is the first.
pub(crate) fn lanes(
    snapshot: &Snapshot,
    history: &History,
    release: Release,
    assumed: &Assumed,
    conf: &ConfTimeline,
) -> (Vec<Lane>, Vec<ModelPool>) {
    let mut pairs: Vec<(PoolId, u64)> = vec![(PoolId::DEFAULT, 0)];
    let streams = history.regions.iter().map(|region| region.stream);
    pairs.extend(assumed.owners.all().iter().copied().zip(streams));
    pairs.extend(history.segments_at_start.iter().map(|segment| (segment.pool, segment.stream)));
    for event in snapshot.events.iter(history.rows.clone()) {
        if matches!(event.action, Action::Alloc | Action::Oom) {
            let context = snapshot.events.context(event.context);
            let pair = (context.pool.unwrap_or_default(), context.stream);
            if pairs.last() != Some(&pair) {
                pairs.push(pair);
            }
        }
        // Streams in alternation: keeps the list as short as the number of distinct ones.
        if pairs.len() > 4096 {
            pairs.sort_unstable();
            pairs.dedup();
            if pairs.len() > 2048 {
                break;
            }
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    // Up to torch 2.11 a failed request does not name its pool, which may have no other events.
    if pairs.iter().any(|(pool, _)| *pool != PoolId::DEFAULT) && release < Release(12) {
        let mut streams: Vec<u64> = pairs.iter().map(|(_, stream)| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        pairs.extend(streams.into_iter().map(|stream| (UNSEEN_POOL, stream)));
    }
    let mut ids: Vec<PoolId> = pairs.iter().map(|(pool, _)| *pool).collect();
    ids.dedup();
    // From torch 2.5 on expandable segments serve private pools, except those with a custom allocator.
    let mut custom: Vec<PoolId> = Vec::new();
    if ids.len() > 1 && release >= Release(5) && conf.all().any(|conf| conf.expandable) {
        let mut made = None;
        for (index, (action, _)) in snapshot.events.actions(history.rows.clone()).enumerate() {
            match action {
                Action::SegmentAlloc => made = history.region_of(index, action),
                // Settings that change apply to whole requests.
                Action::Alloc => {
                    let region = made.take().filter(|_| conf.at(index).expandable);
                    custom.extend(region.map(|region: usize| history.regions[region].pool));
                }
                _ => {}
            }
        }
        custom.sort_unstable();
        custom.dedup();
    }
    let is_custom = |id: PoolId| id != PoolId::DEFAULT && custom.binary_search(&id).is_ok();
    let pool = |&id: &PoolId| ModelPool {
        id,
        is_custom: is_custom(id),
        never_splits: assumed.never_split.contains(&id),
        lends: false,
    };
    let pools: Vec<ModelPool> = ids.iter().map(pool).collect();
    let place = |id: PoolId| ids.partition_point(|&other| other < id) as u32;
    let lanes = pairs.iter().map(|&(pool, stream)| Lane { pool: place(pool), stream }).collect();
    (lanes, pools)
}
