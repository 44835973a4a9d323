//! `report`: what is wrong with a run's memory.

use super::{AgentTool, PlannedCall, ToolPlan};
use crate::answers::{CallError, NextCall};
use crate::arguments::{self, CommandLine};
use crate::roots::AllowedRoots;
use recording::Sidecars;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `report`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportCall {
    /// Snapshot, folder of a recording, or bundle, as list_recordings names it; the ranks of a job in one
    /// folder are compared.
    path: String,
    /// Moment whose live memory is listed: `peak`, `oom`, `end`, or the number of an event; default: the last
    /// OOM, else the peak.
    at: Option<String>,
    /// What to group live memory by. `module` needs a recording.
    #[serde(default)]
    by: LiveGrouping,
    /// Number of groups to list.
    #[serde(default = "default_top")]
    top: usize,
    /// Of several ranks, how many to skip in the structured content.
    #[serde(default)]
    offset: usize,
    /// Of several ranks, how many to have in the structured content.
    #[serde(default = "default_limit")]
    limit: usize,
}

fn default_top() -> usize {
    5
}

fn default_limit() -> usize {
    4
}

/// What to group live memory by.
#[derive(Clone, Copy, Default, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum LiveGrouping {
    #[default]
    Site,
    Category,
    Stack,
    Module,
    Size,
}

impl LiveGrouping {
    fn name(self) -> &'static str {
        match self {
            LiveGrouping::Site => "site",
            LiveGrouping::Category => "category",
            LiveGrouping::Stack => "stack",
            LiveGrouping::Module => "module",
            LiveGrouping::Size => "size",
        }
    }
}

impl AgentTool for ReportCall {
    const NAME: &str = "report";
    const TITLE: &str = "Report on a run's GPU memory";
    const DESCRIPTION: &str = "Says what is wrong with the GPU memory of a recorded run: leaks in bytes per \
        step, failed allocations (OOM), fragmentation and more, each with its line of code and the fix; then \
        the peak, and what fills it by line. The first call for any recording.";

    fn output_schema() -> JsonObject {
        arguments::output_schema("report", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let (found, files) = roots.find_recording(&self.path)?;
        let command = CommandLine::new("report")
            .optional("at", self.at.as_ref())
            .option("by", self.by.name())
            .option("top", self.top)
            .operand(&found.inner);
        let is_heap = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "heap");
        let sidecars: Vec<PathBuf> = files.iter().flat_map(|file| Sidecars::files(file)).collect();
        let about =
            AskedRun { is_recording: !sidecars.is_empty(), has_holders: sidecars.iter().any(is_heap) };
        let (path, roots) = (roots.shown(&found), roots.clone());
        let planned = PlannedCall::new(found.root, command).paged("inputs", self.offset, self.limit);
        Ok(ToolPlan::Command(planned.then(move |document| next_calls(document, &path, about, &roots))))
    }
}

/// What there is about a run besides its snapshot.
#[derive(Clone, Copy)]
struct AskedRun {
    is_recording: bool,
    has_holders: bool,
}

/// What to ask after the findings of all devices.
fn next_calls(document: &Value, path: &str, about: AskedRun, roots: &AllowedRoots) -> Vec<NextCall> {
    let findings: Vec<&Value> = findings(document).collect();
    let of_kind = |kind: &str| findings.iter().find(|finding| finding["kind"] == kind);
    let mut next = Vec::new();
    if let Some(leak) = of_kind("leak") {
        let file = leak["site"]["file"].as_str().unwrap_or_default();
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        let source = [file, name].into_iter().find_map(|file| roots.located(file).ok());
        if about.has_holders {
            let arguments = json!({"path": path, "of": format!("{name}:{}", leak["site"]["line"])});
            next.push(NextCall::new("holders", arguments, "shows what keeps the leaked tensors alive"));
        } else if let Some(source) = source {
            let arguments = json!({"paths": [roots.shown(&source)]});
            next.push(NextCall::new("lint", arguments, "looks for the line that keeps the leaked tensors"));
        }
    }
    if let Some(oom) = of_kind("oom") {
        let by = if about.is_recording { "module" } else { "category" };
        next.extend(match oom["cause"].as_str() {
            Some("fragmentation") => vec![NextCall::new(
                "what_if",
                json!({"path": path, "search": true}),
                "finds allocator settings with which it would have fit",
            )],
            _ => vec![
                NextCall::new(
                    "report",
                    json!({"path": path, "at": "oom", "by": by, "top": 10}),
                    "names what filled the memory",
                ),
                NextCall::new(
                    "what_if",
                    json!({"path": path, "smallest_gpu": true}),
                    "finds how much memory the recorded part would have needed",
                ),
            ],
        });
    }
    next
}

fn findings(document: &Value) -> impl Iterator<Item = &Value> {
    let inputs = document["inputs"].as_array().into_iter().flatten();
    let devices = inputs.flat_map(|input| input["devices"].as_array().into_iter().flatten());
    devices.flat_map(|device| device["findings"].as_array().into_iter().flatten())
}
