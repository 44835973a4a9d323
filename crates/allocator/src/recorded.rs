//! A recorded run, understood well enough to be replayed.

use crate::addresses::{Call, Driver};
use crate::conf::Conf;
use crate::difference::Difference;
use crate::follow::{Followed, Terms};
use crate::model::segment_size;
use crate::owners::Assumed;
use crate::record::Threshold;
use crate::rules::{Release, Rules};
use crate::start::is_plausible;
use crate::understand::{failures, understand};
use snapshot::{Action, History, Snapshot};
use std::sync::OnceLock;

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
    /// Worked out when the first replay needs it.
    driver: OnceLock<Driver>,
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
    /// Follows the run of one device with the model. Where the file does not tell the release, those that write its shape
    /// are tried from the newest on until one explains it.
    pub fn new(snapshot: &'a Snapshot, history: &'a History, given: Given) -> Recorded<'a> {
        let likeliest = given.release.unwrap_or_else(|| Release::of(snapshot.torch));
        let as_release = |release: Release| {
            let conf = given.conf.clone().unwrap_or_else(|| Conf::recorded(snapshot, release));
            let terms = Terms { conf, release, rules: Rules::of(release), limit: given.limit };
            Recorded::under(snapshot, history, terms, given.total)
        };
        let first = as_release(likeliest);
        if first.followed.difference.is_none() || given.release.is_some() {
            return first;
        }
        let older = (snapshot.torch.oldest..likeliest.0).rev().map(Release);
        let others = older.filter(|&release| Rules::of(release) != Rules::of(likeliest));
        others.map(as_release).find(|other| other.followed.difference.is_none()).unwrap_or(first)
    }

    fn under(snapshot: &'a Snapshot, history: &'a History, terms: Terms, total: Option<u64>) -> Recorded<'a> {
        let (followed, assumed) = understand(snapshot, history, &terms, total);
        let Terms { conf, release, limit, .. } = terms;
        let driver = OnceLock::new();
        Recorded { snapshot, history, followed, assumed, driver, given_limit: limit, release, conf }
    }

    /// What the run tells about the driver's choice of addresses.
    pub(crate) fn driver(&self) -> &Driver {
        self.driver.get_or_init(|| driver(self.snapshot, self.history))
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

/// The memory that a recorded run could have, as far as its failed allocations tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conditions {
    /// Bytes of the device that PyTorch could have: the device had no more to give.
    pub available: Option<u64>,
    /// The limit of the process, at least: the device had more to give.
    pub limit: Option<u64>,
}

impl Recorded<'_> {
    /// The memory that the run could have: what a failed allocation met, what garbage collection shows of the limit, or what
    /// was granted at most where more was refused.
    pub fn conditions(&self) -> Conditions {
        let failures = failures(self.snapshot, self.history);
        let met =
            failures.iter().filter(|failure| failure.device_free < segment_size(failure.size, &self.conf));
        let available = met.map(|failure| failure.reserved.saturating_add(failure.device_free)).min();
        // Somewhere between the most that was ever granted and what the refused request would have made of it.
        let granted = self.followed.refused_above.or((!failures.is_empty()).then_some(0));
        let granted = granted.map(|most| most.max(self.history.reserved_peak.bytes.0));
        let collected = self
            .followed
            .threshold
            .filter(|threshold| threshold.high != u64::MAX)
            .map(|Threshold { low, high }| (low.midpoint(high) as f64 / self.conf.gc_threshold) as u64);
        let inferred = match (collected, granted) {
            (Some(limit), granted) => {
                Some(limit.max(granted.unwrap_or(0)).max(self.history.reserved_peak.bytes.0))
            }
            // The device had no more to give: then that was it.
            (None, granted) => granted.filter(|_| available.is_none()),
        };
        Conditions { available, limit: self.given_limit.or(inferred) }
    }
}

fn driver(snapshot: &Snapshot, history: &History) -> Driver {
    let at_start = history.segments_at_start.iter().filter(|segment| !segment.expandable);
    let at_start = at_start.filter(|segment| is_plausible(segment.addr, segment.size));
    let rows = history.rows.clone();
    let calls = snapshot.events.iter(rows).enumerate().filter_map(|(index, event)| {
        let is_malloc = match event.action {
            Action::SegmentAlloc => true,
            Action::SegmentFree => false,
            _ => return None,
        };
        let call = Call { event: index as u32, is_malloc, addr: event.addr, size: event.size.0 };
        is_plausible(call.addr, call.size).then_some(call)
    });
    Driver::new(at_start.map(|segment| (segment.addr, segment.size)), calls.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Tie;
    use std::path::Path;

    /// The model of one release with one thing changed: whether it still follows a recording of the zoo.
    fn follows(recording: &str, change: impl Fn(&mut Rules)) -> bool {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(recording);
        let snapshot = snapshot::open(&path).expect("a snapshot");
        let history = History::new(&snapshot, 0);
        let release = Release::of(snapshot.torch);
        let mut rules = Rules::of(release);
        change(&mut rules);
        let terms = Terms { conf: Conf::recorded(&snapshot, release), release, rules, limit: None };
        Recorded::under(&snapshot, &history, terms, None).verification().difference.is_none()
    }

    #[test]
    fn one_changed_line_of_the_model_is_noticed() {
        let varied = "zoo/frag_variable_length.pickle.xz";
        assert!(follows(varied, |_| {}));
        assert!(!follows(varied, |rules| rules.split_above *= 2), "the rest that is worth splitting off");
        assert!(!follows(varied, |rules| rules.split_above /= 2), "the same, the other way");
        assert!(!follows(varied, |rules| rules.tie = Tie::Segment), "what decides between equal sizes");
        let pools = "traffic/2.4.1-10.pickle.xz";
        assert!(follows(pools, |_| {}));
        assert!(
            !follows(pools, |rules| rules.expandable_private_pools = true),
            "whom expandable segments serve"
        );
    }
}
