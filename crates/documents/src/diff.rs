//! The JSON of `oomph diff`: public and versioned.

use crate::amounts::BeforeAfter;
use crate::sites::{ChangeReport, ReportedSite};
use analysis::{
    Category, DevicePair, DeviceSummary, FindingChange, FindingSummary, RenamedFile, changes, finding_changes,
};
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::Bytes;
use std::collections::BTreeMap;

/// Two runs compared, device by device.
#[derive(Serialize, JsonSchema)]
pub struct DiffDocument {
    /// Version of the format.
    version: u32,
    /// One pair per device or rank.
    pairs: Vec<PairReport>,
}

/// One device in both runs.
#[derive(Serialize, JsonSchema)]
struct PairReport {
    /// Device of the first run.
    before: DiffSide,
    /// Device of the second run.
    after: DiffSide,
    /// Allocated bytes.
    allocated: PeakAndEnd,
    /// Reserved bytes.
    reserved: PeakAndEnd,
    /// Number of steps.
    steps: BeforeAfter<usize>,
    /// Allocator settings; empty for PyTorch's defaults.
    settings: BeforeAfter<String>,
    /// Allocated bytes of each category at the peak.
    categories_at_peak: BTreeMap<&'static str, BeforeAfter<u64>>,
    /// Lines that hold other amounts at the peak, the largest change first.
    sites: Vec<ChangeReport>,
    /// Files that have another name in the second run.
    renamed: Vec<BeforeAfter<String>>,
    /// What makes the comparison doubtful, as sentences.
    notes: Vec<String>,
    /// Number of lines beyond `--top`.
    more_sites: usize,
    /// Findings of both runs.
    findings: FindingChanges,
}

/// One side of a pair.
#[derive(Serialize, JsonSchema)]
struct DiffSide {
    /// Name of the snapshot.
    file: String,
    /// Device ordinal.
    device: u32,
}

/// Bytes at the peak and at the end.
#[derive(Serialize, JsonSchema)]
struct PeakAndEnd {
    /// Highest number of bytes.
    peak: BeforeAfter<u64>,
    /// Bytes at the end.
    end: BeforeAfter<u64>,
}

/// Findings of both runs, by the runs that have them.
#[derive(Serialize, JsonSchema)]
struct FindingChanges {
    /// Findings of the second run only.
    appeared: Vec<ComparedFinding>,
    /// Findings of both runs, as in the second.
    stayed: Vec<ComparedFinding>,
    /// Findings of the first run only.
    gone: Vec<ComparedFinding>,
}

/// A finding without its details.
#[derive(Serialize, JsonSchema)]
struct ComparedFinding {
    /// Kind of finding, such as `leak`.
    kind: &'static str,
    /// `high`, `medium` or `low`.
    severity: &'static str,
    /// The finding in one sentence.
    summary: String,
    /// Bytes that it is about.
    bytes: u64,
    /// Bytes that each step adds; `null` if nothing grows.
    bytes_per_step: Option<u64>,
    /// Line to look at.
    site: Option<ReportedSite>,
}

impl DiffDocument {
    /// Pairs of devices, with at most `top` lines each.
    pub fn new(pairs: &[DevicePair<'_>], top: usize) -> DiffDocument {
        DiffDocument { version: 1, pairs: pairs.iter().map(|each| pair(each, top)).collect() }
    }
}

fn both(before: Bytes, after: Bytes) -> BeforeAfter<u64> {
    BeforeAfter { before: before.0, after: after.0 }
}

fn peak_and_end(before: (Bytes, Bytes), after: (Bytes, Bytes)) -> PeakAndEnd {
    PeakAndEnd { peak: both(before.0, after.0), end: both(before.1, after.1) }
}

/// One pair of devices.
fn pair(pair: &DevicePair<'_>, top: usize) -> PairReport {
    let DevicePair { before: a, after: b, renamed, doubts } = pair;
    let side = |of: &DeviceSummary| DiffSide { file: of.name.clone(), device: of.device };
    let renamed_file = |RenamedFile { before, after }: &RenamedFile| BeforeAfter {
        before: before.clone(),
        after: after.clone(),
    };
    let finding_changes = finding_changes(&a.findings, &b.findings);
    let with_change = |change: FindingChange| -> Vec<ComparedFinding> {
        finding_changes.iter().filter(|found| found.0 == change).map(|found| finding(found.1)).collect()
    };
    let changes = changes(&a.sites, &b.sites);
    PairReport {
        before: side(a),
        after: side(b),
        allocated: peak_and_end(a.allocated, b.allocated),
        reserved: peak_and_end(a.reserved, b.reserved),
        steps: BeforeAfter { before: a.steps, after: b.steps },
        settings: BeforeAfter { before: a.settings.clone(), after: b.settings.clone() },
        categories_at_peak: Category::ALL
            .iter()
            .map(|&of| (of.name(), both(a.at_peak.get(of), b.at_peak.get(of))))
            .collect(),
        sites: changes.iter().take(top).map(ChangeReport::from).collect(),
        renamed: renamed.iter().map(renamed_file).collect(),
        notes: doubts.clone(),
        more_sites: changes.len().saturating_sub(top),
        findings: FindingChanges {
            appeared: with_change(FindingChange::Appeared),
            stayed: with_change(FindingChange::Stayed),
            gone: with_change(FindingChange::Gone),
        },
    }
}

fn finding(finding: &FindingSummary) -> ComparedFinding {
    ComparedFinding {
        kind: finding.kind.name(),
        severity: finding.severity.name(),
        summary: finding.summary.clone(),
        bytes: finding.bytes.0,
        bytes_per_step: finding.bytes_per_step.map(|bytes| bytes.0),
        site: finding.site.as_ref().map(ReportedSite::from),
    }
}
