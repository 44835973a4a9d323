//! One device of a snapshot, with what every question about it needs.

use crate::backward::Backward;
use crate::order::Order;
use crate::parallel::join;
use crate::roles::Roles;
use crate::site::Sites;
use crate::steps::{Steps, steps};
use snapshot::{Action, Bytes, Counters, History, PoolId, Snapshot};
use std::collections::BTreeMap;

/// A device: its history, its steps and the sites of its stacks.
pub struct Device<'a> {
    /// The snapshot that it belongs to.
    pub snapshot: &'a Snapshot,
    /// Its rebuilt history.
    pub history: History,
    /// Where each stack comes from.
    pub sites: Sites,
    /// Its steps.
    pub steps: Steps,
    pub(crate) roles: Roles,
    pub(crate) backward: Backward,
}

/// Events from which on a second thread pays.
const LARGE: usize = 20_000;

/// A moment that a user can ask about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Highest allocated bytes.
    Peak,
    /// The last allocation that failed.
    Oom,
    /// When the snapshot was taken.
    End,
    /// Just after the event with this number.
    Event(usize),
}

/// Every device that holds memory or recorded events.
pub fn devices(snapshot: &Snapshot) -> Vec<Device<'_>> {
    devices_with_marks(snapshot, &[])
}

/// The same, with the times (microseconds since the Unix epoch) at which a recorder saw steps end.
pub fn devices_with_marks<'a>(snapshot: &'a Snapshot, marks_us: &[i64]) -> Vec<Device<'a>> {
    snapshot
        .devices()
        .into_iter()
        .map(|device| {
            let sites = Sites::new(snapshot);
            let order = Order::new(snapshot, device);
            let (history, (roles, steps, backward)) = join(
                order.len() > LARGE,
                || History::new(snapshot, device),
                || {
                    let roles = Roles::new(snapshot, &sites);
                    let steps = steps(&order, &sites, &roles, marks_us);
                    let backward = Backward::new(&order, &roles, &sites);
                    (roles, steps, backward)
                },
            );
            Device { snapshot, history, sites, steps, roles, backward }
        })
        .collect()
}

impl Device<'_> {
    /// Whether there is enough of it to share work between threads.
    pub(crate) fn is_large(&self) -> bool {
        self.history.len() > LARGE
    }

    /// How many events had happened at a moment; `None` if there was no such moment.
    pub fn position_of(&self, moment: Moment) -> Option<usize> {
        match moment {
            Moment::Peak => Some(self.history.allocated_peak.position),
            Moment::End => Some(self.history.len()),
            Moment::Event(event) => (event < self.history.len()).then_some(event + 1),
            Moment::Oom if self.history.stats.ooms == 0 => None,
            Moment::Oom => self
                .snapshot
                .events
                .actions(self.history.rows.clone())
                .rposition(|(action, _)| action == Action::Oom)
                .map(|event| event + 1),
        }
    }
}

/// One kind of memory of a device: a pool on a stream, small or large, expandable or not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pool {
    /// The pool.
    pub pool: PoolId,
    /// The stream that it serves.
    pub stream: u64,
    /// Whether it is the small half (requests up to 1 MiB).
    pub small: bool,
    /// Whether it is expandable memory.
    pub expandable: bool,
}

impl Device<'_> {
    /// The counters of every pool and stream at the end; pools that hold nothing any more are left out.
    pub fn pools_at_end(&self) -> Vec<(Pool, Counters)> {
        let mut pools: BTreeMap<Pool, Counters> = BTreeMap::new();
        for (region, counters) in self.history.regions.iter().zip(&self.history.region_ends) {
            let pool = Pool {
                pool: region.pool,
                stream: region.stream,
                small: region.small,
                expandable: region.expandable,
            };
            *pools.entry(pool).or_default() += *counters;
        }
        pools.into_iter().filter(|(_, counters)| counters.reserved > Bytes::ZERO).collect()
    }
}
