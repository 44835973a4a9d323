//! A recorded run, understood well enough to be replayed.

use crate::addresses::{Call, Driver};
use crate::conf::Conf;
use crate::difference::Difference;
use crate::follow::{Followed, follow};
use crate::model::segment_size;
use crate::owners::{Assumed, Collection, Owners, is_invented};
use crate::record::Threshold;
use crate::rules::Release;
use snapshot::{Action, History, PoolId, Snapshot};

/// What is known of a recorded run from outside the file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Given {
    /// The release of torch; otherwise the newest that writes such a file.
    pub release: Option<Release>,
    /// Its settings; otherwise those in the file.
    pub conf: Option<Conf>,
    /// Its memory limit in bytes (`set_per_process_memory_fraction`).
    pub limit: Option<u64>,
    /// Memory of the card.
    pub total: Option<u64>,
}

/// A recorded run with what the program asked for.
pub struct Recorded<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) history: &'a History,
    pub(crate) followed: Followed,
    pub(crate) assumed: Assumed,
    pub(crate) driver: Driver,
    given_limit: Option<u64>,
    /// The release whose rules are used.
    pub release: Release,
    /// The settings that it ran under.
    pub conf: Conf,
}

/// How far the model did what PyTorch did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verification<'a> {
    /// Events of the recording.
    pub events: usize,
    /// Events up to the first difference.
    pub identical: usize,
    /// The first difference.
    pub difference: Option<&'a Difference>,
    /// Segments that are taken to have belonged to private pools that were gone at the end.
    pub assumed_private: usize,
    /// Requests that were served only after everything had been released, as far as the model followed.
    pub retries: u64,
}

impl<'a> Recorded<'a> {
    /// Follows the run of one device with the model.
    pub fn new(snapshot: &'a Snapshot, history: &'a History, given: Given) -> Recorded<'a> {
        let release = given.release.unwrap_or_else(|| Release::of(snapshot.torch));
        let conf = given.conf.unwrap_or_else(|| Conf::recorded(snapshot, release));
        let (followed, assumed) = understand(snapshot, history, &conf, release, given.limit, given.total);
        let driver = driver(snapshot, history);
        Recorded { snapshot, history, followed, assumed, driver, given_limit: given.limit, release, conf }
    }

    /// Compares the model with the record.
    pub fn verification(&self) -> Verification<'_> {
        Verification {
            events: self.history.len(),
            identical: self.followed.identical,
            difference: self.followed.difference.as_ref(),
            assumed_private: self.assumed.owners.invented(),
            retries: self.followed.retries,
        }
    }
}

/// Events that are followed again to find out what the recording does not say.
const MOST_REPEATED: usize = 30_000_000;

/// Follows a run. Where that fails for want of something that the recording does not say, tries what it may have been;
/// what is kept explains everything, or it is not kept.
fn understand(
    snapshot: &Snapshot,
    history: &History,
    conf: &Conf,
    release: Release,
    limit: Option<u64>,
    total: Option<u64>,
) -> (Followed, Assumed) {
    let plain = Assumed { owners: Owners::new(snapshot, history), total, collection: Collection::Likely };
    let first = follow(snapshot, history, conf, release, limit, &plain);
    if first.difference.is_none() {
        return (first, plain);
    }
    let mut tries_left = MOST_REPEATED / history.len().max(1);
    let mut attempt = |assumed: &Assumed| {
        tries_left = tries_left.checked_sub(1)?;
        Some(follow(snapshot, history, conf, release, limit, assumed))
    };
    let mut starts = vec![plain.clone()];
    if conf.gc_threshold > 0.0 && limit.is_none() {
        let collections = [Collection::Off, Collection::Unlikely];
        starts.extend(collections.map(|collection| Assumed { collection, ..plain.clone() }));
    }
    if conf.expandable && total.is_none() {
        starts.extend(totals(snapshot, history).map(|total| Assumed { total: Some(total), ..plain.clone() }));
    }
    for start in starts {
        let Some(mut followed) = attempt(&start) else { break };
        let mut assumed = start;
        while followed.difference.is_some() {
            let mut best: Option<(Followed, Assumed)> = None;
            for owners in assumed.owners.other_guesses(&followed.suspects) {
                let other = Assumed { owners, ..assumed.clone() };
                let Some(tried) = attempt(&other) else { break };
                if tried.progress() > best.as_ref().map_or(followed.progress(), |(best, _)| best.progress()) {
                    best = Some((tried, other));
                }
            }
            let Some(better) = best else { break };
            (followed, assumed) = better;
        }
        if followed.difference.is_none() {
            // What ended at the same moment was one pool.
            let ids = |places: &Vec<u32>| -> Vec<PoolId> {
                let ids = places.iter().map(|&place| followed.requests.pools[place as usize].id);
                ids.filter(|&id| is_invented(id)).collect()
            };
            let groups: Vec<Vec<PoolId>> = followed.ended_together.iter().map(ids).collect();
            let joined = Assumed { owners: assumed.owners.joined(&groups), ..assumed.clone() };
            return match attempt(&joined) {
                Some(better) if better.difference.is_none() => (better, joined),
                _ => (followed, assumed),
            };
        }
    }
    (first, plain)
}

/// What the card may have had, from what was free when a request failed.
fn totals(snapshot: &Snapshot, history: &History) -> impl Iterator<Item = u64> {
    let failures = failures(snapshot, history);
    let mut totals: Vec<u64> =
        failures.iter().map(|failure| failure.reserved.saturating_add(failure.device_free)).collect();
    totals.sort_unstable();
    totals.dedup();
    totals.into_iter().rev().take(3)
}

/// An allocation that failed in the recorded run.
struct RecordedFailure {
    /// Rounded bytes.
    size: u64,
    reserved: u64,
    device_free: u64,
}

fn failures(snapshot: &Snapshot, history: &History) -> Vec<RecordedFailure> {
    let mut cursor = history.cursor(snapshot);
    let events = snapshot.events.iter(history.rows.clone()).enumerate();
    events
        .filter(|(_, event)| event.action == Action::Oom)
        .map(|(index, event)| {
            cursor.seek(index);
            RecordedFailure {
                size: event.size.0,
                reserved: cursor.total().reserved.0,
                device_free: event.addr,
            }
        })
        .collect()
}

/// The memory that a recorded run could have, as far as its failed allocations tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conditions {
    /// Bytes of the device that PyTorch could have: the device had no more to give.
    pub available: Option<u64>,
    /// The limit of the process, at least: the device had more to give.
    pub limit: Option<u64>,
}

impl Recorded<'_> {
    /// The memory that the run could have: what a failed allocation met, or what garbage collection shows of the limit.
    pub fn conditions(&self) -> Conditions {
        let mut conditions = Conditions { available: None, limit: self.given_limit };
        for failure in failures(self.snapshot, self.history) {
            let wanted = segment_size(failure.size, &self.conf);
            if failure.device_free < wanted {
                let available = failure.reserved.saturating_add(failure.device_free);
                conditions.available =
                    Some(conditions.available.map_or(available, |least| least.min(available)));
            } else if self.given_limit.is_none() {
                // Somewhere between the most that was ever reserved and what this request would have made it.
                conditions.limit = Some(self.history.reserved_peak.bytes.0);
            }
        }
        if let Some(Threshold { low, high }) = self.followed.threshold
            && high != u64::MAX
            && self.given_limit.is_none()
        {
            let limit = ((low.midpoint(high)) as f64 / self.conf.gc_threshold) as u64;
            conditions.limit = Some(limit.max(self.history.reserved_peak.bytes.0));
        }
        conditions
    }
}

/// What the run tells about the driver's choice of addresses.
fn driver(snapshot: &Snapshot, history: &History) -> Driver {
    let at_start = history.segments_at_start.iter().filter(|segment| !segment.expandable);
    let rows = history.rows.clone();
    let calls = snapshot.events.iter(rows).enumerate().filter_map(|(index, event)| {
        let is_malloc = match event.action {
            Action::SegmentAlloc => true,
            Action::SegmentFree => false,
            _ => return None,
        };
        Some(Call { event: index as u32, is_malloc, addr: event.addr, size: event.size.0 })
    });
    Driver::new(at_start.map(|segment| (segment.addr, segment.size)), calls.collect())
}
