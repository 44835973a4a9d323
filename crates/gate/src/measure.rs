//! One device of a run in numbers that do not jitter, in a form that outlives its snapshot.

use crate::checkout::Checkout;
use crate::ending::Ending;
use crate::replay::{Replayed, replay};
use analysis::words::printable;
use analysis::{
    ByCategory, Diagnosis, FEWEST_STEPS, Finding, FindingKind, Key, Origin, SiteName, SiteUsage, site_usage,
};
use inputs::Input;
use snapshot::{Bytes, Metric, PoolClass};
use std::path::Path;

/// What was measured of one device of one rank.
pub struct Measured {
    /// `rank0`
    pub input: String,
    pub rank: usize,
    pub device: u32,
    /// `GPU 0` or `CPU`.
    pub device_name: String,
    pub steps: usize,
    pub peak_allocated: Bytes,
    pub peak_requested: Bytes,
    /// Why the peak may have been higher than that.
    pub peak_doubt: Option<Why>,
    /// As recorded: it hangs on the card.
    pub recorded_reserved: Bytes,
    pub replayed: Result<Replayed, Why>,
    /// Bytes that still pile up every step.
    pub growth: Result<Bytes, Why>,
    pub leaks: Vec<Found>,
    /// What each category had asked for and held at the peak.
    pub categories: ByCategory,
    /// What each line had asked for and held at the peak, largest first.
    pub sites: Vec<SiteUsage>,
    /// How the run ran out of memory.
    pub shortage: Option<Found>,
}

/// Why something could not be measured, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    pub what: String,
    pub hint: String,
}

impl Why {
    /// For a history that lacks its beginning.
    pub const RECORD: &str =
        "record from before the first CUDA allocation, with enough events; `oomph check -- COMMAND` does";
}

/// A finding that may break a limit.
pub struct Found {
    pub place: Option<SiteName>,
    pub summary: String,
    pub fix: String,
    /// Bytes that it adds every step; none if it has stopped.
    pub per_step: Bytes,
}

impl Found {
    /// A failed allocation that only the program's end tells of.
    pub fn unseen_shortage() -> Found {
        let summary = "the program ended with an allocation that failed".to_owned();
        let fix = "`oomph report` shows what memory was filled with".to_owned();
        Found { place: None, summary, fix, per_step: Bytes::ZERO }
    }
}

impl Measured {
    pub fn new(
        input: &Input,
        place: usize,
        answer: &Diagnosis<'_>,
        ending: &Ending,
        checkout: &Checkout,
    ) -> Measured {
        let device = answer.model.device;
        let history = &device.history;
        let found = |finding: &Finding| Found {
            place: finding.site.map(|frame| checkout.place(SiteName::of(device.snapshot, frame))),
            summary: finding.summary.clone(),
            fix: finding.fix.clone(),
            per_step: finding.bytes_per_step.filter(|_| finding.is_growing()).unwrap_or_default(),
        };
        let leaks: Vec<Found> =
            answer.findings.iter().filter(|finding| finding.kind == FindingKind::Leak).map(found).collect();
        let shortage = answer.findings.iter().find(|finding| finding.kind == FindingKind::Oom).map(found);
        let requested = history.stats.get(Metric::RequestedBytes, PoolClass::All).peak;
        let steps = device.steps.count();
        let name = Path::new(&input.name)
            .file_stem()
            .map_or_else(|| input.name.clone(), |stem| stem.to_string_lossy().into_owned());
        Measured {
            rank: name.strip_prefix("rank").and_then(|number| number.parse().ok()).unwrap_or(place),
            input: printable(&name).into_owned(),
            device: history.device,
            device_name: device.name(),
            steps,
            peak_allocated: history.allocated_peak.bytes,
            peak_requested: Bytes(requested.max(0) as u64),
            peak_doubt: peak_doubt(answer),
            recorded_reserved: history.reserved_peak.bytes,
            replayed: replay(device),
            growth: growth(steps, &leaks),
            leaks,
            categories: categories(answer),
            sites: sites(answer, checkout),
            shortage: shortage.filter(|_| *ending == Ending::OutOfMemory),
        }
    }

    /// `rank0 · GPU 0`
    pub fn name(&self) -> String {
        format!("{} · {}", self.input, self.device_name)
    }
}

/// Whether memory was higher before the history begins cannot be told from what follows.
fn peak_doubt(answer: &Diagnosis<'_>) -> Option<Why> {
    let history = &answer.model.device.history;
    let what = match (history.is_empty(), history.complete) {
        (_, true) => return None,
        (true, _) => "the snapshot has no history: it shows one moment, not the peak",
        (false, false) => "the history begins late: memory may have been higher before",
    };
    Some(Why { what: what.to_owned(), hint: Why::RECORD.to_owned() })
}

fn growth(steps: usize, leaks: &[Found]) -> Result<Bytes, Why> {
    if steps < FEWEST_STEPS {
        let what = match steps {
            0 => "no steps were found, so growth cannot be told from warm-up".to_owned(),
            steps => format!("{steps} steps are too few to tell growth from warm-up"),
        };
        let hint = format!(
            "let the program make at least {FEWEST_STEPS} steps, better 20; `oomph.record()` and `rec.step()` mark them"
        );
        return Err(Why { what, hint });
    }
    Ok(leaks.iter().map(|leak| leak.per_step).sum())
}

/// Categories by what was asked for, as the lines are.
fn categories(answer: &Diagnosis<'_>) -> ByCategory {
    let peak = answer.model.device.history.allocated_peak.position;
    let mut requested = ByCategory::default();
    for group in answer.model.live_at(peak, Key::Category).groups {
        if let Origin::Category(category) = group.origin {
            requested.0[category as usize] = group.requested;
        }
    }
    requested
}

/// Lines by what they asked for: what PyTorch rounds that up to is not the program's.
fn sites(answer: &Diagnosis<'_>, checkout: &Checkout) -> Vec<SiteUsage> {
    let peak = answer.model.device.history.allocated_peak.position;
    let portable = |holding: SiteUsage| SiteUsage {
        place: holding.place.map(|place| checkout.place(place)),
        bytes: holding.requested,
        ..holding
    };
    let mut sites: Vec<SiteUsage> = site_usage(&answer.model, peak).into_iter().map(portable).collect();
    sites.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| (&a.place, a.in_backward).cmp(&(&b.place, b.in_backward)))
    });
    sites
}
