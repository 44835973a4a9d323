//! Pool of each segment, as far as it is recorded.
//!
//! Up to torch 2.11 only the final segments name their pool. A private pool that was deleted by then left
//! segments that look like any other; if the model diverges from the recording, one of these segments may be
//! the reason.

use crate::conf_timeline::ConfTimeline;
use snapshot::{History, PoolId, Snapshot};

/// Pool of each row of [`History::regions`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owners {
    pools: Vec<PoolId>,
    sure: Vec<bool>,
    inferred: u64,
}

/// First number of inferred pools; no real pool has it.
const INFERRED_POOL: u64 = u64::MAX;

/// Pool that may have had only failed requests.
pub(crate) const UNSEEN_POOL: PoolId = PoolId(INFERRED_POOL, u64::MAX);

impl Owners {
    pub(crate) fn new(snapshot: &Snapshot, history: &History) -> Owners {
        let names_pools = snapshot.torch.oldest >= 1;
        let events_name_pools = snapshot.torch.oldest >= 12;
        Owners {
            pools: history.regions.iter().map(|region| region.pool).collect(),
            sure: (0..history.regions.len())
                .map(|region| {
                    let is_there_at_the_end = history.region_ends[region].reserved.0 > 0;
                    events_name_pools
                        || history.regions[region].expandable
                        || (names_pools && is_there_at_the_end)
                })
                .collect(),
            inferred: 0,
        }
    }

    pub(crate) fn pool(&self, region: usize) -> Option<PoolId> {
        self.pools.get(region).copied()
    }

    /// Returns whether the recording names the pool.
    pub(crate) fn is_sure(&self, region: usize) -> bool {
        self.sure.get(region).copied().unwrap_or(true)
    }

    /// Returns the number of segments assigned to pools that the recording does not name.
    pub(crate) fn inferred(&self) -> usize {
        self.pools.iter().filter(|pool| is_inferred(**pool)).count()
    }

    /// Returns alternative assignments for some segments: each in another pool, or one of them in the default
    /// pool and another one not.
    pub(crate) fn other_guesses(&self, suspects: &[usize]) -> Vec<Owners> {
        let mut guesses: Vec<Owners> =
            suspects.iter().flat_map(|&region| self.alternatives(region)).collect();
        for &cleared in suspects.iter().filter(|&&region| is_inferred(self.pools[region])) {
            let mut without = self.clone();
            without.pools[cleared] = PoolId::DEFAULT;
            for &region in suspects.iter().filter(|&&region| region != cleared) {
                guesses.extend(without.alternatives(region));
            }
        }
        guesses
    }

    /// Iterates over the other pools that a segment may have belonged to: those inferred before, newest
    /// first, a new one, the default pool, or a private one that the recording names.
    fn alternatives(&self, region: usize) -> impl Iterator<Item = Owners> {
        let newest = self.inferred;
        let current = self.pools[region];
        let known = (0..newest).rev().take(MAX_TRIED_POOLS).map(|number| PoolId(INFERRED_POOL, number));
        known
            .chain([PoolId(INFERRED_POOL, newest), PoolId::DEFAULT])
            .filter(move |pool| *pool != current)
            .map(move |pool| {
                let mut other = self.clone();
                other.pools[region] = pool;
                if is_inferred(pool) {
                    other.inferred = other.inferred.max(pool.1 + 1);
                }
                other
            })
    }

    /// Returns the assignment with the pools of each group merged.
    pub(crate) fn joined(&self, groups: &[Vec<PoolId>]) -> Owners {
        let mut joined = self.clone();
        for group in groups {
            for pool in joined.pools.iter_mut().filter(|pool| group.contains(pool)) {
                *pool = group[0];
            }
        }
        joined
    }

    pub(crate) fn all(&self) -> &[PoolId] {
        &self.pools
    }
}

/// Maximum number of inferred pools tried for another segment.
const MAX_TRIED_POOLS: usize = 4;

pub(crate) fn is_inferred(pool: PoolId) -> bool {
    pool.0 == INFERRED_POOL
}

/// Assumptions about facts that are not recorded.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Assumed {
    pub(crate) owners: Owners,
    /// Memory of the device in bytes.
    pub(crate) total: Option<u64>,
    pub(crate) collection: Collection,
    /// Settings over the course of the run, in place of those that are recorded.
    pub(crate) conf: Option<ConfTimeline>,
    /// Private pools whose blocks are never split.
    pub(crate) never_split: Vec<PoolId>,
}

/// Assumption about whether garbage collection released segments, if the limit is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collection {
    /// It did if that explains the events.
    Likely,
    /// It did only if nothing else explains the events.
    Unlikely,
    /// There was no limit, so it never ran.
    Off,
}
