//! Findings in the JSON of `oomph report --json`.

use super::json::{ReportedSite, site_report, stack_report};
use crate::commands::holders::json::HolderReport;
use analysis::{Device, Finding, SiteName};
use serde::Serialize;
use serde_json::{Map, Value, json};
use snapshot::Snapshot;
use source::linted::{LintCache, LintRemark};

#[derive(Serialize)]
pub(crate) struct ReportedFinding {
    kind: &'static str,
    severity: &'static str,
    severity_reason: String,
    summary: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_step: Option<u64>,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    /// The module that the blocks of that line belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// The reference path from its holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    details: Vec<String>,
    evidence: Map<String, Value>,
    fix: String,
    caveats: Vec<String>,
    /// What `oomph lint` says of that line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lint: Vec<RemarkReport>,
}

#[derive(Serialize)]
struct RemarkReport {
    code: &'static str,
    name: &'static str,
    line: usize,
    message: String,
}

impl From<LintRemark> for RemarkReport {
    fn from(LintRemark { line, found }: LintRemark) -> RemarkReport {
        RemarkReport { code: found.rule.code, name: found.rule.name, line, message: found.message }
    }
}

/// One finding.
pub(crate) fn finding_report(
    device: &Device<'_>,
    finding: &Finding,
    linted: &mut LintCache,
) -> ReportedFinding {
    let snapshot = device.snapshot;
    ReportedFinding {
        kind: finding.kind.name(),
        severity: finding.severity.name(),
        severity_reason: finding.reason.clone(),
        summary: finding.summary.clone(),
        bytes: finding.bytes.0,
        bytes_per_step: finding.bytes_per_step.map(|bytes| bytes.0),
        count: finding.count,
        site: finding.site.map(|frame| site_report(snapshot, frame)),
        module: finding.module.map(|module| device.modules.path(module).to_owned()),
        held_by: finding.held.as_ref().map(|held| held.by.clone()),
        holder: finding.held.as_ref().map(|held| {
            HolderReport::new(held, finding.site.map(|frame| SiteName::of(snapshot, frame)).as_ref())
        }),
        cause: finding.cause.map(|cause| cause.name()),
        details: finding.details.clone(),
        evidence: record(snapshot, &finding.evidence),
        fix: finding.fix.clone(),
        caveats: finding.caveats.clone(),
        lint: linted.of(finding, snapshot).into_iter().map(RemarkReport::from).collect(),
    }
}

fn record(snapshot: &Snapshot, values: &[(&'static str, analysis::EvidenceValue)]) -> Map<String, Value> {
    values.iter().map(|(name, value)| ((*name).to_owned(), evidence(snapshot, value))).collect()
}

fn evidence(snapshot: &Snapshot, value: &analysis::EvidenceValue) -> Value {
    match value {
        analysis::EvidenceValue::Bytes(bytes) => bytes.0.into(),
        analysis::EvidenceValue::Count(number)
        | analysis::EvidenceValue::Micros(number)
        | analysis::EvidenceValue::Pid(number) => (*number).into(),
        analysis::EvidenceValue::Ratio(ratio) => json!((ratio * 1e4).round() / 1e4),
        analysis::EvidenceValue::Text(text) => text.clone().into(),
        analysis::EvidenceValue::Flag(flag) => (*flag).into(),
        analysis::EvidenceValue::Site(frame) => json!(site_report(snapshot, *frame)),
        analysis::EvidenceValue::Stack(stack) => json!(stack_report(snapshot, *stack)),
        analysis::EvidenceValue::List(values) => {
            values.iter().map(|value| evidence(snapshot, value)).collect()
        }
        analysis::EvidenceValue::Record(values) => record(snapshot, values).into(),
    }
}
