//! Recorded runs with their requests extracted, ready to be replayed.

use crate::addresses::{DriverCall, DriverObservations};
use crate::conf::{Conf, ParsedConf};
use crate::conf_timeline::ConfTimeline;
use crate::difference::ModelDifference;
use crate::infer::{failures, infer};
use crate::model::segment_size;
use crate::owners::Assumed;
use crate::rules::{Release, Rules};
use crate::start::is_plausible;
use crate::trace_environment::Threshold;
use crate::verify::{RunSettings, VerifiedRun};
use snapshot::{Action, History, Snapshot};
use std::sync::OnceLock;

/// Facts about a recorded run that are not in the file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct KnownConditions {
    /// Release of torch; by default the newest that writes such a file.
    pub release: Option<Release>,
    /// Settings; by default those in the file.
    pub conf: Option<Conf>,
    /// Memory limit in bytes (`set_per_process_memory_fraction`).
    pub limit: Option<u64>,
    /// Memory of the card in bytes.
    pub total: Option<u64>,
}

/// Recorded run with the requests of its program.
pub struct RecordedRun<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) history: &'a History,
    pub(crate) verified: VerifiedRun,
    pub(crate) assumed: Assumed,
    /// Computed for the first replay that needs it.
    driver: OnceLock<DriverObservations>,
    given_limit: Option<u64>,
    /// Release whose rules are used.
    pub release: Release,
    /// Settings of the recorded run.
    pub conf: ConfTimeline,
}

/// Agreement of the model with a recorded run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verification<'a> {
    /// Number of events of the recording.
    pub events: usize,
    /// Number of events up to the first difference.
    pub identical: usize,
    /// First difference.
    pub difference: Option<&'a ModelDifference>,
    /// Number of segments assumed to have belonged to private pools that were deleted before the end.
    pub assumed_private: usize,
    /// Whether the events at which settings changed are inferred, not recorded.
    pub infers_changes: bool,
    /// Number of requests served only after all cached memory had been released, as far as the model was
    /// verified.
    pub retries: u64,
}

impl<'a> RecordedRun<'a> {
    /// Verifies the model against the run of one device. If the file does not name the release, those that
    /// write its shape are tried, newest first, until one explains the run.
    pub fn new(snapshot: &'a Snapshot, history: &'a History, given: KnownConditions) -> RecordedRun<'a> {
        let likeliest = given.release.unwrap_or_else(|| Release::of(snapshot.torch));
        let as_release = |release: Release| {
            let recorded = || ConfTimeline::recorded(snapshot, history.device, release);
            let conf = given.conf.clone().map_or_else(recorded, ConfTimeline::from);
            let run_settings = RunSettings { conf, release, rules: Rules::of(release), limit: given.limit };
            RecordedRun::under(snapshot, history, run_settings, given.total)
        };
        let first = as_release(likeliest);
        if first.verified.difference.is_none() || given.release.is_some() {
            return first;
        }
        let older = (snapshot.torch.oldest..likeliest.0).rev().map(Release);
        let others = older.filter(|&release| Rules::of(release) != Rules::of(likeliest));
        others.map(as_release).find(|other| other.verified.difference.is_none()).unwrap_or(first)
    }

    fn under(
        snapshot: &'a Snapshot,
        history: &'a History,
        run_settings: RunSettings,
        total: Option<u64>,
    ) -> RecordedRun<'a> {
        let (verified, assumed) = infer(snapshot, history, &run_settings, total);
        let RunSettings { conf, release, limit, .. } = run_settings;
        let conf = assumed.conf.clone().unwrap_or(conf);
        let driver = OnceLock::new();
        RecordedRun { snapshot, history, verified, assumed, driver, given_limit: limit, release, conf }
    }

    /// Returns the settings of the same program started with other settings: options that the string contains
    /// stay as given, the others follow the calls with which the program changes them.
    pub fn conf_with(&self, given: &ParsedConf) -> ConfTimeline {
        self.conf.overridden(given, self.release)
    }

    /// Returns what the run reveals about the driver's choice of addresses.
    pub(crate) fn driver(&self) -> &DriverObservations {
        self.driver.get_or_init(|| driver(self.snapshot, self.history))
    }

    /// Returns the result of the verification.
    pub fn verification(&self) -> Verification<'_> {
        Verification {
            events: self.history.len(),
            identical: self.verified.identical,
            difference: self.verified.difference.as_ref(),
            assumed_private: self.assumed.owners.inferred(),
            infers_changes: self.assumed.conf.is_some(),
            retries: self.verified.retries,
        }
    }
}

/// Memory available to a recorded run, as far as its failed allocations show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conditions {
    /// Bytes of the device available to PyTorch: the device had no more.
    pub available: Option<u64>,
    /// Lower bound of the process's limit in bytes: the device had more.
    pub limit: Option<u64>,
}

impl RecordedRun<'_> {
    /// Returns the memory available to the run: the state of a failed allocation, the limit shown by garbage
    /// collection, or the most that was granted if more was refused.
    pub fn conditions(&self) -> Conditions {
        let failures = failures(self.snapshot, self.history);
        let met = failures
            .iter()
            .filter(|failure| failure.device_free < segment_size(failure.size, self.conf.at(failure.event)));
        let available = met.map(|failure| failure.reserved.saturating_add(failure.device_free)).min();
        // Between the most that was ever granted and the total that the refused request would have reached.
        let granted = self.verified.refused_above.or((!failures.is_empty()).then_some(0));
        let granted = granted.map(|most| most.max(self.history.reserved_peak.bytes.0));
        let collected = self.verified.threshold.filter(|threshold| threshold.high != u64::MAX).map(
            |Threshold { low, high }| (low.midpoint(high) as f64 / self.conf.last().gc_threshold) as u64,
        );
        let inferred = match (collected, granted) {
            (Some(limit), granted) => {
                Some(limit.max(granted.unwrap_or(0)).max(self.history.reserved_peak.bytes.0))
            }
            // The device had no more, so this is its size.
            (None, granted) => granted.filter(|_| available.is_none()),
        };
        Conditions { available, limit: self.given_limit.or(inferred) }
    }
}

fn driver(snapshot: &Snapshot, history: &History) -> DriverObservations {
    let at_start = history.segments_at_start.iter().filter(|segment| !segment.expandable);
    let at_start = at_start.filter(|segment| is_plausible(segment.addr, segment.size));
    let rows = history.rows.clone();
    let calls = snapshot.events.iter(rows).enumerate().filter_map(|(index, event)| {
        let is_malloc = match event.action {
            Action::SegmentAlloc => true,
            Action::SegmentFree => false,
            _ => return None,
        };
        let call = DriverCall { event: index as u32, is_malloc, addr: event.addr, size: event.size.0 };
        is_plausible(call.addr, call.size).then_some(call)
    });
    DriverObservations::new(at_start.map(|segment| (segment.addr, segment.size)), calls.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Tie;
    use std::path::Path;

    /// Returns whether the model of one release, with one rule changed, still reproduces a recording of the
    /// zoo.
    fn follows(recording: &str, change: impl Fn(&mut Rules)) -> bool {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(recording);
        let snapshot = snapshot::open(&path).expect("a snapshot");
        let history = History::new(&snapshot, 0);
        let release = Release::of(snapshot.torch);
        let mut rules = Rules::of(release);
        change(&mut rules);
        let run_settings =
            RunSettings { conf: Conf::recorded(&snapshot, release).into(), release, rules, limit: None };
        RecordedRun::under(&snapshot, &history, run_settings, None).verification().difference.is_none()
    }

    #[test]
    fn a_change_of_any_rule_is_detected() {
        let varied = "zoo/frag_variable_length.pickle.xz";
        assert!(follows(varied, |_| {}));
        assert!(
            !follows(varied, |rules| rules.split_above *= 2),
            "smallest remainder that is split off, doubled"
        );
        assert!(
            !follows(varied, |rules| rules.split_above /= 2),
            "smallest remainder that is split off, halved"
        );
        assert!(!follows(varied, |rules| rules.tie = Tie::Segment), "tie-breaker between equal sizes");
        let pools = "traffic/2.4.1-10.pickle.xz";
        assert!(follows(pools, |_| {}));
        assert!(
            !follows(pools, |rules| rules.expandable_private_pools = true),
            "pools served by expandable segments"
        );
    }
}
