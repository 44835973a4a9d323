//! What a program asked of the allocator, without what the allocator made of it.
//!
//! The requests of a recorded run do not depend on the allocator's settings, so the same list can be replayed under any.

use crate::model::{Lane, Pool};
use crate::owners::{Owners, UNSEEN};
use crate::rules::Release;
use snapshot::{Action, History, PoolId, Snapshot};

/// One request of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// Pool and stream, by place in [`Requests::lanes`]; for ends of pools the place of the pool.
    pub(crate) lane: u32,
    /// The block, by place in [`History::lives`].
    pub(crate) life: u32,
    /// The event of the recording that it comes from.
    pub(crate) event: u32,
    pub(crate) size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpKind {
    Alloc,
    Free,
    /// A free that has to wait for another stream.
    FreeLater,
    /// The other stream is done.
    Complete,
    /// `torch.cuda.empty_cache()`
    EmptyCache,
    /// A `MemPool` is deleted.
    EndPool,
    /// A private pool is used by nobody any more: the next release of everything may take it.
    RetirePool,
    /// A request that failed when it was recorded.
    Failed,
}

/// The requests of one device.
pub(crate) struct Requests {
    pub(crate) ops: Vec<Op>,
    /// Sorted.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) pools: Vec<Pool>,
}

/// The lanes and pools that a history mentions; the default pool is the first.
pub(crate) fn lanes(
    snapshot: &Snapshot,
    history: &History,
    release: Release,
    owners: &Owners,
) -> (Vec<Lane>, Vec<Pool>) {
    let mut pairs: Vec<(PoolId, u64)> = vec![(PoolId::DEFAULT, 0)];
    let streams = history.regions.iter().map(|region| region.stream);
    pairs.extend(owners.all().iter().copied().zip(streams));
    pairs.extend(history.segments_at_start.iter().map(|segment| (segment.pool, segment.stream)));
    for event in snapshot.events.iter(history.rows.clone()) {
        if matches!(event.action, Action::Alloc | Action::Oom) {
            let context = snapshot.events.context(event.context);
            let pair = (context.pool.unwrap_or_default(), context.stream);
            if pairs.last() != Some(&pair) {
                pairs.push(pair);
            }
        }
        // Many streams in turn: keeps the list as short as the number of different ones.
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
    // Up to 2.11 a failed request does not name its pool, which may have nothing else to show.
    if pairs.iter().any(|(pool, _)| *pool != PoolId::DEFAULT) && release < Release(12) {
        let mut streams: Vec<u64> = pairs.iter().map(|(_, stream)| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        pairs.extend(streams.into_iter().map(|stream| (UNSEEN, stream)));
    }
    let mut ids: Vec<PoolId> = pairs.iter().map(|(pool, _)| *pool).collect();
    ids.dedup();
    let is_custom = |id: PoolId| {
        let mut of_pool = history.regions.iter().filter(|region| region.pool == id);
        // From 2.5 on expandable segments serve private pools, except those with an allocator of their own.
        id != PoolId::DEFAULT
            && release >= Release(5)
            && snapshot.settings.expandable_segments
            && of_pool.any(|region| !region.expandable && !region.from_start)
    };
    let pools: Vec<Pool> = ids.iter().map(|&id| Pool { id, is_custom: is_custom(id) }).collect();
    let place = |id: PoolId| ids.partition_point(|&other| other < id) as u32;
    let lanes = pairs.iter().map(|&(pool, stream)| Lane { pool: place(pool), stream }).collect();
    (lanes, pools)
}
