//! Findings in the JSON of `oomph report --json`.

use crate::holders::HolderReport;
use crate::sites::{ReportedSite, stack_report};
use analysis::{Device, Finding, SiteName};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use snapshot::Snapshot;
use source::linted::{LintCache, LintRemark};

/// Something that is wrong with a run's memory.
#[derive(Serialize, JsonSchema)]
pub struct ReportedFinding {
    /// Kind of finding, such as `leak` or `oom`.
    kind: &'static str,
    /// `high`, `medium` or `low`.
    severity: &'static str,
    /// Reason for the severity.
    severity_reason: String,
    /// The finding in one sentence.
    summary: String,
    /// Bytes that it is about.
    bytes: u64,
    /// Bytes that each step adds, for what grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_step: Option<u64>,
    /// Number of things that it is about, such as blocks.
    count: u64,
    /// Line to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    /// Module that the blocks of that line belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// Reference path to a typical block.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<String>,
    /// Object that keeps the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderReport>,
    /// Cause of a failed allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// More about it, as sentences; the most important first.
    details: Vec<String>,
    /// Numbers behind it, by name: bytes, numbers of things, microseconds, ratios, lines.
    evidence: Map<String, Value>,
    /// What to change.
    fix: String,
    /// What is not certain, as sentences.
    caveats: Vec<String>,
    /// What `oomph lint` says about that line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lint: Vec<RemarkReport>,
}

/// What `oomph lint` says about a line.
#[derive(Serialize, JsonSchema)]
struct RemarkReport {
    /// Code of the rule, such as `OOM101`.
    code: &'static str,
    /// Name of the rule.
    name: &'static str,
    /// Line number, from 1.
    line: usize,
    /// What is wrong.
    message: String,
}

impl From<LintRemark> for RemarkReport {
    fn from(LintRemark { line, found }: LintRemark) -> RemarkReport {
        RemarkReport { code: found.rule.code, name: found.rule.name, line, message: found.message }
    }
}

impl ReportedFinding {
    /// Converts a finding of a device; `linted` keeps what the linter said about files.
    pub fn new(device: &Device<'_>, finding: &Finding, linted: &mut LintCache) -> ReportedFinding {
        let snapshot = device.snapshot;
        ReportedFinding {
            kind: finding.kind.name(),
            severity: finding.severity.name(),
            severity_reason: finding.reason.clone(),
            summary: finding.summary.clone(),
            bytes: finding.bytes.0,
            bytes_per_step: finding.bytes_per_step.map(|bytes| bytes.0),
            count: finding.count,
            site: finding.site.map(|frame| ReportedSite::of(snapshot, frame)),
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
        analysis::EvidenceValue::Site(frame) => json!(ReportedSite::of(snapshot, *frame)),
        analysis::EvidenceValue::Stack(stack) => json!(stack_report(snapshot, *stack)),
        analysis::EvidenceValue::List(values) => {
            values.iter().map(|value| evidence(snapshot, value)).collect()
        }
        analysis::EvidenceValue::Record(values) => record(snapshot, values).into(),
    }
}
