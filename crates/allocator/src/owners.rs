//! Which pool each segment belonged to, as far as the recording tells.
//!
//! Up to torch 2.11 only the final segments name their pool. A private pool that was gone by then left segments that
//! look like any other; where the model cannot follow the recording, such a segment may explain it.

use snapshot::{History, PoolId, Snapshot};

/// The pool of each row of [`History::regions`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owners {
    pools: Vec<PoolId>,
    sure: Vec<bool>,
    invented: u64,
}

/// The first number of the pools that were invented: no real pool has it.
const INVENTED: u64 = u64::MAX;

/// A pool of which nothing but failed requests may have been seen.
pub(crate) const UNSEEN: PoolId = PoolId(INVENTED, u64::MAX);

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
            invented: 0,
        }
    }

    pub(crate) fn pool(&self, region: usize) -> Option<PoolId> {
        self.pools.get(region).copied()
    }

    /// Whether the recording says whose it was.
    pub(crate) fn is_sure(&self, region: usize) -> bool {
        self.sure.get(region).copied().unwrap_or(true)
    }

    /// How many segments were given to pools that the recording does not name.
    pub(crate) fn invented(&self) -> usize {
        self.pools.iter().filter(|pool| is_invented(**pool)).count()
    }

    /// What else may be true of some segments: each in another pool, or one of them in the default pool after all and
    /// another one not.
    pub(crate) fn other_guesses(&self, suspects: &[usize]) -> Vec<Owners> {
        let mut guesses: Vec<Owners> =
            suspects.iter().flat_map(|&region| self.alternatives(region)).collect();
        for &cleared in suspects.iter().filter(|&&region| is_invented(self.pools[region])) {
            let mut without = self.clone();
            without.pools[cleared] = PoolId::DEFAULT;
            for &region in suspects.iter().filter(|&&region| region != cleared) {
                guesses.extend(without.alternatives(region));
            }
        }
        guesses
    }

    /// The other pools that a segment may have belonged to: those invented before, the newest first, a new one, the default
    /// pool, or a private one that the recording names.
    fn alternatives(&self, region: usize) -> impl Iterator<Item = Owners> {
        let newest = self.invented;
        let current = self.pools[region];
        let known = (0..newest).rev().take(MOST_TRIED).map(|number| PoolId(INVENTED, number));
        known.chain([PoolId(INVENTED, newest), PoolId::DEFAULT]).filter(move |pool| *pool != current).map(
            move |pool| {
                let mut other = self.clone();
                other.pools[region] = pool;
                if is_invented(pool) {
                    other.invented = other.invented.max(pool.1 + 1);
                }
                other
            },
        )
    }

    /// The same with the pools of each group made one.
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

/// Invented pools that are tried again for another segment.
const MOST_TRIED: usize = 4;

pub(crate) fn is_invented(pool: PoolId) -> bool {
    pool.0 == INVENTED
}

/// What is taken for granted where the recording is silent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Assumed {
    pub(crate) owners: Owners,
    /// Memory of the card.
    pub(crate) total: Option<u64>,
    pub(crate) collection: Collection,
}

/// Whether garbage collection released what it may have released, where the limit is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collection {
    /// Where that explains the events.
    Likely,
    /// Where nothing else explains the events.
    Unlikely,
    /// There was no limit, so it never ran.
    Off,
}
