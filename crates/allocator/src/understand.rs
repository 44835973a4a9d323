//! Finds out what a recording does not say, by trying what it may have been.

use crate::follow::{COPY_BUDGET, Followed, Terms, follow};
use crate::owners::{Assumed, Collection, Owners, is_invented};
use crate::simulate::LARGEST_CARD;
use snapshot::{Action, History, PoolId, Snapshot};

/// Events that are followed again for that.
const MOST_REPEATED: usize = 10_000_000;

/// Follows a run. Where that fails for want of something that the recording does not say, tries what it may have been:
/// private pools that were gone at the end, the size of the card, whether there was a memory limit. What is kept explains
/// everything, or it is not kept.
pub(crate) fn understand(
    snapshot: &Snapshot,
    history: &History,
    terms: &Terms,
    total: Option<u64>,
) -> (Followed, Assumed) {
    let plain = Assumed { owners: Owners::new(snapshot, history), total, collection: Collection::Likely };
    let mut copies_left = COPY_BUDGET;
    let first = follow(snapshot, history, terms, &plain, &mut copies_left);
    if first.difference.is_none() {
        return (first, plain);
    }
    let mut tries_left = MOST_REPEATED / history.len().max(1);
    let mut attempt = |assumed: &Assumed| {
        tries_left = tries_left.checked_sub(1).filter(|_| copies_left > 0)?;
        Some(follow(snapshot, history, terms, assumed, &mut copies_left))
    };
    if let Some((followed, assumed)) = improve(&first, &plain, &mut attempt) {
        return join_pools(followed, assumed, &mut attempt);
    }
    for start in other_beginnings(snapshot, history, terms, &plain) {
        let Some(followed) = attempt(&start) else { break };
        if followed.difference.is_none() {
            return (followed, start);
        }
        if let Some((followed, assumed)) = improve(&followed, &start, &mut attempt) {
            return join_pools(followed, assumed, &mut attempt);
        }
    }
    (first, plain)
}

/// What else can be assumed to begin with, apart from pools.
fn other_beginnings(snapshot: &Snapshot, history: &History, terms: &Terms, plain: &Assumed) -> Vec<Assumed> {
    let mut beginnings = Vec::new();
    if terms.conf.gc_threshold > 0.0 && terms.limit.is_none() {
        let collections = [Collection::Off, Collection::Unlikely];
        beginnings.extend(collections.map(|collection| Assumed { collection, ..plain.clone() }));
    }
    if terms.conf.expandable && plain.total.is_none() {
        let totals = totals(snapshot, history);
        beginnings.extend(totals.map(|total| Assumed { total: Some(total), ..plain.clone() }));
    }
    beginnings
}

/// Moves segments to other pools as long as the model then comes further; `None` if it never comes to the end.
fn improve(
    first: &Followed,
    plain: &Assumed,
    attempt: &mut impl FnMut(&Assumed) -> Option<Followed>,
) -> Option<(Followed, Assumed)> {
    let mut best: Option<(Followed, Assumed)> = None;
    loop {
        let (followed, assumed) =
            best.as_ref().map_or((first, plain), |(followed, assumed)| (followed, assumed));
        let mut better: Option<(Followed, Assumed)> = None;
        for owners in assumed.owners.other_guesses(&followed.suspects) {
            let other = Assumed { owners, ..assumed.clone() };
            let Some(tried) = attempt(&other) else { break };
            if tried.progress() > better.as_ref().map_or(followed.progress(), |(best, _)| best.progress()) {
                better = Some((tried, other));
            }
        }
        best = Some(better?);
        if best.as_ref().is_some_and(|(followed, _)| followed.difference.is_none()) {
            return best;
        }
    }
}

/// What ended at the same moment was one pool, if that explains the recording as well.
fn join_pools(
    followed: Followed,
    assumed: Assumed,
    attempt: &mut impl FnMut(&Assumed) -> Option<Followed>,
) -> (Followed, Assumed) {
    let ids = |places: &Vec<u32>| -> Vec<PoolId> {
        let ids = places.iter().map(|&place| followed.requests.pools[place as usize].id);
        ids.filter(|&id| is_invented(id)).collect()
    };
    let groups: Vec<Vec<PoolId>> =
        followed.ended_together.iter().map(ids).filter(|ids| !ids.is_empty()).collect();
    if groups.is_empty() {
        return (followed, assumed);
    }
    let joined = Assumed { owners: assumed.owners.joined(&groups), ..assumed.clone() };
    match attempt(&joined) {
        Some(better) if better.difference.is_none() => (better, joined),
        _ => (followed, assumed),
    }
}

/// What the card may have had, from what was free when a request failed.
fn totals(snapshot: &Snapshot, history: &History) -> impl Iterator<Item = u64> {
    let failures = failures(snapshot, history);
    let mut totals: Vec<u64> =
        failures.iter().map(|failure| failure.reserved.saturating_add(failure.device_free)).collect();
    totals.retain(|&total| total <= LARGEST_CARD);
    totals.sort_unstable();
    totals.dedup();
    totals.into_iter().rev().take(3)
}

/// An allocation that failed in the recorded run.
pub(crate) struct RecordedFailure {
    /// Rounded bytes.
    pub(crate) size: u64,
    pub(crate) reserved: u64,
    pub(crate) device_free: u64,
}

pub(crate) fn failures(snapshot: &Snapshot, history: &History) -> Vec<RecordedFailure> {
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
