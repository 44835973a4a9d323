//! Reproducible numbers of one device of a run, independent of its snapshot.

use crate::checkout::Checkout;
use crate::exit::ProgramExit;
use crate::replay::{Replayed, replay};
use analysis::words::printable;
use analysis::{
    ByCategory, Diagnosis, Finding, FindingKind, Key, MIN_STEPS_FOR_LEAK, Origin, SiteName, SiteUsage,
    site_usage,
};
use inputs::Input;
use snapshot::{Bytes, Metric, PoolClass};
use std::path::Path;

/// Numbers of one device of one rank.
pub struct Measured {
    /// Name of the recording, such as `rank0`.
    pub input: String,
    /// Rank in the run.
    pub rank: usize,
    /// Device ordinal.
    pub device: u32,
    /// `GPU 0` or `CPU`.
    pub device_name: String,
    /// Number of steps.
    pub steps: usize,
    /// Peak of allocated memory.
    pub peak_allocated: Bytes,
    /// Peak of requested memory, before rounding.
    pub peak_requested: Bytes,
    /// Why the peak may have been higher.
    pub peak_doubt: Option<MeasurementGap>,
    /// Peak of reserved memory as recorded, which depends on the GPU.
    pub recorded_reserved: Bytes,
    /// Reserved memory and fragmentation when replayed on an empty GPU.
    pub replayed: Result<Replayed, MeasurementGap>,
    /// Growth of allocated memory per step.
    pub growth: Result<Bytes, MeasurementGap>,
    /// Leaks.
    pub leaks: Vec<LimitFinding>,
    /// Requested bytes of each category at the peak.
    pub categories: ByCategory,
    /// Requested bytes of each site at the peak, largest first.
    pub sites: Vec<SiteUsage>,
    /// The failed allocation that ended the run.
    pub oom: Option<LimitFinding>,
}

/// Why a number could not be measured, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeasurementGap {
    /// The reason.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl MeasurementGap {
    /// Hint for a history that starts too late.
    pub const RECORD: &str =
        "record from before the first CUDA allocation, with enough events; `oomph check -- COMMAND` does";
}

/// A finding that may break a limit.
pub struct LimitFinding {
    /// Line of code that it is about.
    pub site: Option<SiteName>,
    /// Summary of the finding.
    pub summary: String,
    /// Suggested change.
    pub fix: String,
    /// Growth per step; zero for what does not grow.
    pub per_step: Bytes,
}

impl LimitFinding {
    /// Returns the finding for a failed allocation that is not in the history.
    pub fn unrecorded_oom() -> LimitFinding {
        let summary = "the program ended with an allocation that failed".to_owned();
        let fix = "`oomph report` shows what memory was filled with".to_owned();
        LimitFinding { site: None, summary, fix, per_step: Bytes::ZERO }
    }
}

impl Measured {
    /// Measures one device. `index` is the rank if the name of the recording does not contain one.
    pub fn new(
        input: &Input,
        index: usize,
        diagnosis: &Diagnosis<'_>,
        exit: &ProgramExit,
        checkout: &Checkout,
    ) -> Measured {
        let device = diagnosis.model.device;
        let history = &device.history;
        let found = |finding: &Finding| LimitFinding {
            site: finding.site.map(|frame| checkout.portable(SiteName::of(device.snapshot, frame))),
            summary: finding.summary.clone(),
            fix: finding.fix.clone(),
            per_step: finding.bytes_per_step.filter(|_| finding.is_growing()).unwrap_or_default(),
        };
        let leaks: Vec<LimitFinding> = diagnosis
            .findings
            .iter()
            .filter(|finding| finding.kind == FindingKind::Leak)
            .map(found)
            .collect();
        let oom = diagnosis.findings.iter().find(|finding| finding.kind == FindingKind::Oom).map(found);
        let requested = history.stats.get(Metric::RequestedBytes, PoolClass::All).peak;
        let steps = device.steps.count();
        let name = Path::new(&input.name)
            .file_stem()
            .map_or_else(|| input.name.clone(), |stem| stem.to_string_lossy().into_owned());
        Measured {
            rank: name.strip_prefix("rank").and_then(|number| number.parse().ok()).unwrap_or(index),
            input: printable(&name).into_owned(),
            device: history.device,
            device_name: device.name(),
            steps,
            peak_allocated: history.allocated_peak.bytes,
            peak_requested: Bytes(requested.max(0) as u64),
            peak_doubt: peak_doubt(diagnosis),
            recorded_reserved: history.reserved_peak.bytes,
            replayed: replay(device),
            growth: growth(steps, &leaks),
            leaks,
            categories: categories(diagnosis),
            sites: sites(diagnosis, checkout),
            oom: oom.filter(|_| exit.is_oom()),
        }
    }

    /// Returns the name of the device in the run, such as `rank0 · GPU 0`.
    pub fn name(&self) -> String {
        format!("{} · {}", self.input, self.device_name)
    }
}

/// Returns why the peak may have been higher: memory before the start of the history is unknown.
fn peak_doubt(diagnosis: &Diagnosis<'_>) -> Option<MeasurementGap> {
    let history = &diagnosis.model.device.history;
    let what = match (history.is_empty(), history.complete) {
        (_, true) => return None,
        (true, _) => "the snapshot has no history: it shows one moment, not the peak",
        (false, false) => "the history starts late: memory may have been higher before",
    };
    Some(MeasurementGap { what: what.to_owned(), hint: MeasurementGap::RECORD.to_owned() })
}

fn growth(steps: usize, leaks: &[LimitFinding]) -> Result<Bytes, MeasurementGap> {
    if steps < MIN_STEPS_FOR_LEAK {
        let what = match steps {
            0 => "no steps were found, so growth cannot be distinguished from warm-up".to_owned(),
            steps => format!("{steps} steps are too few to tell growth from warm-up"),
        };
        let hint = format!(
            "run at least {MIN_STEPS_FOR_LEAK} steps, better 20; `oomph.record()` and `rec.step()` mark them"
        );
        return Err(MeasurementGap { what, hint });
    }
    Ok(leaks.iter().map(|leak| leak.per_step).sum())
}

/// Returns the requested bytes of each category at the peak.
fn categories(diagnosis: &Diagnosis<'_>) -> ByCategory {
    let peak = diagnosis.model.device.history.allocated_peak.position;
    let mut requested = ByCategory::default();
    for group in diagnosis.model.live_at(peak, Key::Category).groups {
        if let Origin::Category(category) = group.origin {
            requested.0[category as usize] = group.requested;
        }
    }
    requested
}

/// Returns the requested bytes of each site at the peak. Rounding is not the program's and is left out.
fn sites(diagnosis: &Diagnosis<'_>, checkout: &Checkout) -> Vec<SiteUsage> {
    let peak = diagnosis.model.device.history.allocated_peak.position;
    let portable = |usage: SiteUsage| SiteUsage {
        site: usage.site.map(|site| checkout.portable(site)),
        bytes: usage.requested,
        ..usage
    };
    let mut sites: Vec<SiteUsage> = site_usage(&diagnosis.model, peak).into_iter().map(portable).collect();
    sites.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| (&a.site, a.in_backward).cmp(&(&b.site, b.in_backward)))
    });
    sites
}
