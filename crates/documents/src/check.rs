//! The JSON of `oomph check --json`: the numbers and the verdict. Fields may be added, none renamed.

use crate::amounts::{BeforeAfter, BytesByCategory, by_category};
use crate::sites::{ChangeReport, ReportedSite};
use analysis::SiteUsage;
use gate::{BaselineComparison, Breach, BudgetVerdict, DeviceVerdict, LimitResult, LimitState};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Number;
use std::collections::BTreeMap;

/// Lines of code reported per device.
const MAX_SITES: usize = 16;

/// A run's memory checked against a budget.
#[derive(Serialize, JsonSchema)]
pub struct CheckDocument {
    /// Version of the format.
    version: u32,
    /// Whether all limits are kept.
    ok: bool,
    /// `kept`, `broken` or `unmeasured`.
    verdict: &'static str,
    /// Every device of every rank.
    devices: Vec<CheckedDevice>,
    /// Remarks that do not affect the verdict, as sentences.
    notes: Vec<String>,
    /// With `--update`: whether the baseline was written, as a sentence.
    baseline_written: Option<String>,
}

/// Numbers of one device. Those that could not be measured are `null`.
#[derive(Serialize, JsonSchema)]
struct CheckedDevice {
    /// Name of the recording, such as `rank0`.
    input: String,
    /// Rank in the run.
    rank: usize,
    /// Device ordinal.
    device: u32,
    /// Number of steps.
    steps: usize,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest requested bytes, before rounding.
    peak_requested: u64,
    /// Highest reserved bytes as recorded, which depends on the GPU.
    peak_reserved: u64,
    /// Highest reserved bytes when replayed on an empty GPU.
    replayed_reserved: Option<u64>,
    /// Share of `replayed_reserved` that is never needed at one time, from 0 to 1.
    fragmentation: Option<f64>,
    /// Bytes by which allocated memory grows per step.
    growth_per_step: Option<u64>,
    /// Number of leaks.
    leaks: usize,
    /// Requested bytes of each category at the peak.
    categories: BytesByCategory,
    /// Lines that hold memory at the peak, the largest first.
    sites: Vec<SiteAtPeak>,
    /// All ways in which limits are broken, as sentences.
    broken: Vec<String>,
    /// One result per limit.
    limits: Vec<LimitReport>,
}

/// Memory of one line at the peak.
#[derive(Serialize, JsonSchema)]
struct SiteAtPeak {
    /// The line; `null` if unknown.
    site: Option<ReportedSite>,
    /// Whether it was allocated in the backward pass.
    in_backward: bool,
    /// Requested bytes, before rounding.
    requested: u64,
}

/// Result of one limit.
#[derive(Serialize, JsonSchema)]
struct LimitReport {
    /// Name of the option without dashes, such as `max-peak`.
    limit: &'static str,
    /// `kept`, `broken` or `unmeasured`.
    verdict: &'static str,
    /// Measured number: bytes, a share, or a number of leaks.
    value: Option<Number>,
    /// Highest number allowed, in the same unit.
    allowed: Option<Number>,
    /// Ways in which the limit is broken.
    broken: Vec<BreachReport>,
    /// Why the number could not be measured.
    unmeasured: Option<UnmeasuredReport>,
    /// Comparison with the baseline, for the limit `baseline`.
    baseline: Option<BaselineReport>,
}

/// One way in which a limit is broken.
#[derive(Serialize, JsonSchema)]
struct BreachReport {
    /// What is over the limit, as a sentence.
    message: String,
    /// Line to look at.
    site: Option<ReportedSite>,
    /// More detail, or what to change.
    advice: Option<String>,
}

/// Why a number could not be measured.
#[derive(Serialize, JsonSchema)]
struct UnmeasuredReport {
    /// The reason.
    why: String,
    /// What to do about it.
    hint: String,
}

/// Comparison with the baseline.
#[derive(Serialize, JsonSchema)]
struct BaselineReport {
    /// Path of the baseline.
    file: String,
    /// All numbers by their keys in the baseline.
    numbers: BTreeMap<&'static str, BaselineNumber>,
    /// Requested bytes at the peak of the categories that changed.
    categories: BTreeMap<&'static str, BeforeAfter<u64>>,
    /// Lines that changed, the largest change first.
    sites: Vec<ChangeReport>,
    /// Number of further lines that changed.
    more_sites: usize,
}

/// One number in the baseline and now, in bytes.
#[derive(Serialize, JsonSchema)]
struct BaselineNumber {
    /// Bytes in the baseline.
    before: u64,
    /// Bytes now.
    after: u64,
    /// Highest number of bytes allowed.
    allowed: u64,
}

impl CheckDocument {
    /// Converts a verdict.
    pub fn new(verdict: &BudgetVerdict) -> CheckDocument {
        CheckDocument {
            version: 1,
            ok: verdict.state() == LimitState::Kept,
            verdict: verdict.state().name(),
            devices: verdict.devices.iter().map(device).collect(),
            notes: verdict.notes.clone(),
            baseline_written: verdict.written.clone(),
        }
    }
}

fn device(judged: &DeviceVerdict) -> CheckedDevice {
    let measured = &judged.measured;
    let replayed = measured.replayed.as_ref().ok();
    let breaches = judged.results.iter().flat_map(|judgement| &judgement.breaches);
    let site = |usage: &SiteUsage| SiteAtPeak {
        site: usage.site.as_ref().map(ReportedSite::from),
        in_backward: usage.in_backward,
        requested: usage.bytes.0,
    };
    CheckedDevice {
        input: measured.input.clone(),
        rank: measured.rank,
        device: measured.device,
        steps: measured.steps,
        peak_allocated: measured.peak_allocated.0,
        peak_requested: measured.peak_requested.0,
        peak_reserved: measured.recorded_reserved.0,
        replayed_reserved: replayed.map(|replayed| replayed.reserved.0),
        fragmentation: replayed.map(|replayed| replayed.fragmentation),
        growth_per_step: measured.growth.as_ref().ok().map(|growth| growth.0),
        leaks: measured.leaks.len(),
        categories: by_category(&measured.categories),
        sites: measured.sites.iter().take(MAX_SITES).map(site).collect(),
        broken: breaches.map(|breach| breach.message.clone()).collect(),
        limits: judged.results.iter().map(limit).collect(),
    }
}

fn limit(judgement: &LimitResult) -> LimitReport {
    let breach = |breach: &Breach| BreachReport {
        message: breach.message.clone(),
        site: breach.site.as_ref().map(ReportedSite::from),
        advice: breach.advice.clone(),
    };
    LimitReport {
        limit: judgement.limit,
        verdict: judgement.state().name(),
        value: judgement.value.and_then(number),
        allowed: judgement.allowed.and_then(number),
        broken: judgement.breaches.iter().map(breach).collect(),
        unmeasured: judgement
            .unmeasured
            .as_ref()
            .map(|gap| UnmeasuredReport { why: gap.what.clone(), hint: gap.hint.clone() }),
        baseline: judgement.comparison.as_ref().map(compared),
    }
}

/// Bytes are whole numbers.
fn number(value: f64) -> Option<Number> {
    if value.fract() == 0.0 { Some((value as u64).into()) } else { Number::from_f64(value) }
}

fn compared(comparison: &BaselineComparison) -> BaselineReport {
    BaselineReport {
        file: comparison.file.clone(),
        numbers: comparison
            .rows
            .iter()
            .map(|row| {
                (row.key, BaselineNumber { before: row.before, after: row.after, allowed: row.allowed })
            })
            .collect(),
        categories: comparison
            .categories
            .iter()
            .map(|(of, before, after)| (of.name(), BeforeAfter { before: before.0, after: after.0 }))
            .collect(),
        sites: comparison.lines.iter().take(MAX_SITES).map(ChangeReport::from).collect(),
        more_sites: comparison.lines.len().saturating_sub(MAX_SITES),
    }
}
