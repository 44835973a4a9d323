//! Inference of facts that a recording does not contain, by trying the possibilities.

use crate::owners::{Assumed, Collection, Owners, is_inferred};
use crate::simulate::LARGEST_CARD_BYTES;
use crate::toggles::{other_events, timeline, toggles};
use crate::verify::{COPY_BUDGET_ROWS, RunSettings, VerifiedRun, verify};
use snapshot::{Action, History, PoolId, Snapshot};

/// Maximum number of events replayed again for this.
const MAX_REPEATED_EVENTS: usize = 10_000_000;

/// Verifies a run. If that fails because of a fact that is not recorded, tries the possibilities: private
/// pools that were deleted before the end or never split blocks, when expandable segments were switched on or
/// off, the size of the card, whether there was a memory limit.
pub(crate) fn infer(
    snapshot: &Snapshot,
    history: &History,
    run_settings: &RunSettings,
    total: Option<u64>,
) -> (VerifiedRun, Assumed) {
    let plain = Assumed {
        owners: Owners::new(snapshot, history),
        total,
        collection: Collection::Likely,
        conf: None,
        never_split: Vec::new(),
    };
    let mut copies_left = COPY_BUDGET_ROWS;
    let first = verify(snapshot, history, run_settings, &plain, &mut copies_left);
    if first.difference.is_none() {
        return (first, plain);
    }
    let mut tries_left = MAX_REPEATED_EVENTS / history.len().max(1);
    let mut attempt = |assumed: &Assumed| {
        tries_left = tries_left.checked_sub(1).filter(|_| copies_left > 0)?;
        Some(verify(snapshot, history, run_settings, assumed, &mut copies_left))
    };
    let (first, plain) = switch_expandable(first, plain, snapshot, history, run_settings, &mut attempt);
    if first.difference.is_none() {
        return (first, plain);
    }
    let whole = pools_without_splits(snapshot, history, &plain.owners);
    let others = other_initial_assumptions(snapshot, history, run_settings, &plain);
    let (first, plain) = leave_whole(first, plain, &whole, &mut attempt);
    if first.difference.is_none() {
        return (first, plain);
    }
    if let Some((verified, assumed)) = improve(&first, &plain, &mut attempt) {
        return join_pools(verified, assumed, &mut attempt);
    }
    for start in others {
        let Some(verified) = attempt(&start) else { break };
        let (verified, start) = leave_whole(verified, start, &whole, &mut attempt);
        if verified.difference.is_none() {
            return (verified, start);
        }
        if let Some((verified, assumed)) = improve(&verified, &start, &mut attempt) {
            return join_pools(verified, assumed, &mut attempt);
        }
    }
    (first, plain)
}

/// Assumes that the program switched expandable segments on or off where growths show it, unless the
/// recording says when settings changed.
fn switch_expandable(
    mut best: VerifiedRun,
    mut assumed: Assumed,
    snapshot: &Snapshot,
    history: &History,
    run_settings: &RunSettings,
    attempt: &mut impl FnMut(&Assumed) -> Option<VerifiedRun>,
) -> (VerifiedRun, Assumed) {
    let end = &run_settings.conf;
    let switched = toggles(snapshot, history, end.last().expandable);
    if switched.is_empty() || !end.changes().is_empty() {
        return (best, assumed);
    }
    let mut candidates = vec![switched];
    while let Some(switched) = candidates.pop() {
        let conf = timeline(&switched, end, &snapshot.settings.conf, run_settings.release);
        let other = Assumed { conf: Some(conf), ..assumed.clone() };
        let Some(verified) = attempt(&other) else { break };
        if verified.progress() > best.progress() {
            // The last candidate is tried first: the event of the difference.
            candidates = other_events(&switched, &verified);
            candidates.reverse();
            (best, assumed) = (verified, other);
        }
    }
    (best, assumed)
}

/// Assumes that blocks of some pools are never split: all of them, then without each of them that the model
/// comes further without.
fn leave_whole(
    mut best: VerifiedRun,
    mut assumed: Assumed,
    pools: &[PoolId],
    attempt: &mut impl FnMut(&Assumed) -> Option<VerifiedRun>,
) -> (VerifiedRun, Assumed) {
    let one_less = pools.iter().map(|pool| Some(*pool));
    for left_out in std::iter::once(None).chain(one_less).filter(|_| !pools.is_empty()) {
        if best.difference.is_none() {
            break;
        }
        let before = if left_out.is_none() { pools } else { &assumed.never_split };
        let never_split = before.iter().copied().filter(|pool| Some(*pool) != left_out).collect();
        let other = Assumed { never_split, ..assumed.clone() };
        let Some(verified) = attempt(&other) else { break };
        if verified.progress() > best.progress() {
            (best, assumed) = (verified, other);
        }
    }
    (best, assumed)
}

/// Returns the private pools in which every block starts where a segment or a page does: they may never split
/// blocks (`MemPool(no_split=True)`). By the first such block.
fn pools_without_splits(snapshot: &Snapshot, history: &History, owners: &Owners) -> Vec<PoolId> {
    let (mut whole, mut split) = (Vec::new(), Vec::new());
    for allocation in &history.allocations {
        let region = allocation.region as usize;
        let (Some(of), Some(pool)) = (history.regions.get(region), owners.pool(region)) else { continue };
        let starts_page = (allocation.addr - of.addr).is_multiple_of(PAGE_UNIT_BYTES);
        let is_at_start = if of.expandable { starts_page } else { allocation.addr == of.addr };
        let seen = if is_at_start { &mut whole } else { &mut split };
        if pool != PoolId::DEFAULT && !seen.contains(&pool) {
            seen.push(pool);
        }
    }
    let since = snapshot.torch.newest >= FIRST_RELEASE_WITHOUT_SPLITS;
    whole.into_iter().filter(|pool| since && !split.contains(pool)).collect()
}

/// Pages of expandable segments are multiples of this many bytes.
const PAGE_UNIT_BYTES: u64 = 1 << 20;

/// First minor release of torch with `MemPool(no_split=True)`.
const FIRST_RELEASE_WITHOUT_SPLITS: u8 = 10;

/// Returns further initial assumptions, apart from pools.
fn other_initial_assumptions(
    snapshot: &Snapshot,
    history: &History,
    run_settings: &RunSettings,
    plain: &Assumed,
) -> Vec<Assumed> {
    let mut beginnings = Vec::new();
    if run_settings.conf.all().any(|conf| conf.gc_threshold > 0.0) && run_settings.limit.is_none() {
        let collections = [Collection::Off, Collection::Unlikely];
        beginnings.extend(collections.map(|collection| Assumed { collection, ..plain.clone() }));
    }
    if run_settings.conf.all().any(|conf| conf.expandable) && plain.total.is_none() {
        let totals = totals(snapshot, history);
        beginnings.extend(totals.map(|total| Assumed { total: Some(total), ..plain.clone() }));
    }
    beginnings
}

/// Moves segments to other pools as long as the model then comes further; `None` if it never reaches the end.
fn improve(
    first: &VerifiedRun,
    plain: &Assumed,
    attempt: &mut impl FnMut(&Assumed) -> Option<VerifiedRun>,
) -> Option<(VerifiedRun, Assumed)> {
    let mut best: Option<(VerifiedRun, Assumed)> = None;
    loop {
        let (verified, assumed) =
            best.as_ref().map_or((first, plain), |(verified, assumed)| (verified, assumed));
        let mut better: Option<(VerifiedRun, Assumed)> = None;
        for owners in assumed.owners.other_guesses(&verified.suspects) {
            let other = Assumed { owners, ..assumed.clone() };
            let Some(tried) = attempt(&other) else { break };
            if tried.progress() > better.as_ref().map_or(verified.progress(), |(best, _)| best.progress()) {
                better = Some((tried, other));
            }
        }
        best = Some(better?);
        if best.as_ref().is_some_and(|(verified, _)| verified.difference.is_none()) {
            return best;
        }
    }
}

/// Merges pools that ended at the same moment, if that also explains the recording.
fn join_pools(
    verified: VerifiedRun,
    assumed: Assumed,
    attempt: &mut impl FnMut(&Assumed) -> Option<VerifiedRun>,
) -> (VerifiedRun, Assumed) {
    let ids = |places: &Vec<u32>| -> Vec<PoolId> {
        let ids = places.iter().map(|&place| verified.requests.pools[place as usize].id);
        ids.filter(|&id| is_inferred(id)).collect()
    };
    let groups: Vec<Vec<PoolId>> =
        verified.ended_together.iter().map(ids).filter(|ids| !ids.is_empty()).collect();
    if groups.is_empty() {
        return (verified, assumed);
    }
    let joined = Assumed { owners: assumed.owners.joined(&groups), ..assumed.clone() };
    match attempt(&joined) {
        Some(better) if better.difference.is_none() => (better, joined),
        _ => (verified, assumed),
    }
}

/// Iterates over possible sizes of the card in bytes, derived from the free memory at failed requests.
fn totals(snapshot: &Snapshot, history: &History) -> impl Iterator<Item = u64> {
    let failures = failures(snapshot, history);
    let mut totals: Vec<u64> =
        failures.iter().map(|failure| failure.reserved.saturating_add(failure.device_free)).collect();
    totals.retain(|&total| total <= LARGEST_CARD_BYTES);
    totals.sort_unstable();
    totals.dedup();
    totals.into_iter().rev().take(3)
}

/// Allocation that failed in the recorded run.
pub(crate) struct RecordedFailure {
    /// Index of its event.
    pub(crate) event: usize,
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
                event: index,
                size: event.size.0,
                reserved: cursor.total().reserved.0,
                device_free: event.addr,
            }
        })
        .collect()
}
