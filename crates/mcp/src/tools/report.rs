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

/// Arguments of `report`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    /// Snapshot, folder of a recording, or bundle, as list_recordings names it; the ranks of a job in one folder
    /// are compared.
    path: String,
    /// Moment whose live memory is listed: `peak`, `oom`, `end`, or the number of an event; default: the last
    /// OOM, else the peak.
    at: Option<String>,
    /// What to group live memory by. `module` needs a recording.
    #[serde(default)]
    by: GroupBy,
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
enum GroupBy {
    #[default]
    Site,
    Category,
    Stack,
    Module,
    Size,
}

impl GroupBy {
    fn name(self) -> &'static str {
        match self {
            GroupBy::Site => "site",
            GroupBy::Category => "category",
            GroupBy::Stack => "stack",
            GroupBy::Module => "module",
            GroupBy::Size => "size",
        }
    }
}

impl AgentTool for Report {
    const NAME: &str = "report";
    const TITLE: &str = "Report on a run's GPU memory";
    const DESCRIPTION: &str = "Says what is wrong with the GPU memory of a recorded run: leaks in bytes per step, \
        failed allocations (OOM), fragmentation and more, each with its line of code and the fix; then the peak, \
        and what fills it by line. The first call for any recording.";

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
        let is_heap = |file: &std::path::PathBuf| file.extension().is_some_and(|ending| ending == "heap");
        let has_holders = files.iter().any(|file| Sidecars::files(file).iter().any(is_heap));
        let path = roots.shown(&found);
        let planned = PlannedCall::new(found.root, command).paged("inputs", self.offset, self.limit);
        Ok(ToolPlan::Command(planned.then(move |document| next_calls(document, &path, has_holders))))
    }
}

/// What to ask after the findings of all devices.
fn next_calls(document: &Value, path: &str, has_holders: bool) -> Vec<NextCall> {
    let findings: Vec<&Value> = findings(document).collect();
    let of_kind = |kind: &str| findings.iter().find(|finding| finding["kind"] == kind);
    let mut next = Vec::new();
    if let Some(leak) = of_kind("leak")
        && has_holders
    {
        let site = &leak["site"];
        let file = site["file"].as_str().and_then(|file| file.rsplit(['/', '\\']).next());
        let arguments = match (file, site["line"].as_u64()) {
            (Some(file), Some(line)) => json!({"path": path, "of": format!("{file}:{line}")}),
            _ => json!({"path": path}),
        };
        next.push(NextCall::new("holders", arguments, "shows the variables that keep the leaked tensors alive"));
    }
    if of_kind("oom").is_some() {
        let arguments = json!({"path": path, "search": true});
        next.push(NextCall::new("what_if", arguments, "finds allocator settings with which it would have fit"));
    }
    if next.is_empty() {
        let arguments = json!({"path": path, "gpu": "24GiB"});
        next.push(NextCall::new("what_if", arguments, "says whether the run fits on a GPU with less memory"));
    }
    next
}

fn findings(document: &Value) -> impl Iterator<Item = &Value> {
    let inputs = document["inputs"].as_array().into_iter().flatten();
    let devices = inputs.flat_map(|input| input["devices"].as_array().into_iter().flatten());
    devices.flat_map(|device| device["findings"].as_array().into_iter().flatten())
}
