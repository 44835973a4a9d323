//! The JSON of `oomph diff`: public and versioned.

use super::DevicePair;
use crate::commands::report::json::{ChangeReport, site_name_report};
use analysis::{Category, FindingChange, FindingSummary, RenamedFile, changes, finding_changes};
use serde_json::{Value, json};
use snapshot::Bytes;

fn renamed_file(file: &RenamedFile) -> Value {
    json!({ "before": file.before, "after": file.after })
}

/// One pair of devices as JSON.
pub(super) fn pair(pair: &DevicePair<'_>, top: usize) -> Value {
    let DevicePair { before: a, after: b, renamed, doubts } = pair;
    let pair = |before: Bytes, after: Bytes| json!({ "before": before.0, "after": after.0 });
    let categories: serde_json::Map<String, Value> = Category::ALL
        .iter()
        .map(|&of| (of.name().to_owned(), pair(a.at_peak.get(of), b.at_peak.get(of))))
        .collect();
    let remark = |remark: &FindingSummary| {
        json!({
            "kind": remark.kind.name(),
            "severity": remark.severity.name(),
            "summary": remark.summary,
            "bytes": remark.bytes.0,
            "bytes_per_step": remark.bytes_per_step.map(|bytes| bytes.0),
            "site": remark.site.as_ref().map(site_name_report),
        })
    };
    let finding_changes = finding_changes(&a.findings, &b.findings);
    let with_change = |change: FindingChange| -> Vec<Value> {
        finding_changes.iter().filter(|found| found.0 == change).map(|found| remark(found.1)).collect()
    };
    let changes = changes(&a.sites, &b.sites);
    json!({
        "before": { "file": a.name, "device": a.device },
        "after": { "file": b.name, "device": b.device },
        "allocated": {
            "peak": pair(a.allocated.0, b.allocated.0),
            "end": pair(a.allocated.1, b.allocated.1),
        },
        "reserved": { "peak": pair(a.reserved.0, b.reserved.0), "end": pair(a.reserved.1, b.reserved.1) },
        "steps": { "before": a.steps, "after": b.steps },
        "settings": { "before": a.settings, "after": b.settings },
        "categories_at_peak": categories,
        "sites": changes.iter().take(top).map(ChangeReport::from).collect::<Vec<_>>(),
        "renamed": renamed.iter().map(renamed_file).collect::<Vec<_>>(),
        "notes": doubts,
        "more_sites": changes.len().saturating_sub(top),
        "findings": {
            "appeared": with_change(FindingChange::Appeared),
            "stayed": with_change(FindingChange::Stayed),
            "gone": with_change(FindingChange::Gone),
        },
    })
}
