//! `what_if`: a recorded run on another GPU or with other allocator settings.

use super::{AgentTool, PlannedCall, ToolPlan};
use crate::answers::{CallError, NextCall};
use crate::arguments::{self, CommandLine};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// Arguments of `what_if`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhatIfCall {
    /// Snapshot or recording of one process, as list_recordings names it.
    path: String,
    /// GPU to try: a name such as `l4`, `rtx4090` or `h100`, or its memory, such as `24GiB`; default: what
    /// the run had.
    gpu: Option<String>,
    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF, such as `expandable_segments:True`; default: the
    /// recorded ones.
    settings: Option<String>,
    /// Try common settings and rank them. Not with `settings`.
    #[serde(default)]
    search: bool,
    /// Also find the smallest GPU memory that would do.
    #[serde(default)]
    smallest_gpu: bool,
    /// Of a search, number of settings to list.
    #[serde(default = "default_limit")]
    limit: usize,
    /// Of a search, number of settings to skip.
    #[serde(default)]
    offset: usize,
}

fn default_limit() -> usize {
    5
}

impl AgentTool for WhatIfCall {
    const NAME: &str = "what_if";
    const TITLE: &str = "Will it fit; other settings";
    const DESCRIPTION: &str = "Replays a recorded run on another GPU or with other allocator settings, \
        without a GPU: does it fit (`gpu`), what would PYTORCH_CUDA_ALLOC_CONF change (`settings`), which \
        settings are best (`search`), how small may the GPU be (`smallest_gpu`).";

    fn output_schema() -> JsonObject {
        arguments::output_schema("simulate", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let (found, files) = roots.find_recording(&self.path)?;
        if files.len() != 1 {
            let shown = roots.shown(&found);
            return Err(CallError::new(
                &format!("`{shown}` has {} snapshots", files.len()),
                "a run is one of them",
            )
            .then(NextCall::new("list_recordings", json!({"folder": shown}), "shows them")));
        }
        let command = CommandLine::new("simulate")
            .optional("gpu", self.gpu.as_ref())
            .optional("conf", self.settings.as_ref())
            .flag("search", self.search)
            .flag("smallest-gpu", self.smallest_gpu)
            .operand(&found.inner);
        let (path, gpu, search) = (roots.shown(&found), self.gpu.clone(), self.search);
        let planned = PlannedCall::new(found.root, command).paged("trials", self.offset, self.limit);
        Ok(ToolPlan::Command(planned.then(move |document| next_calls(document, &path, gpu, search))))
    }
}

/// What to ask after a run that does not fit.
fn next_calls(document: &Value, path: &str, gpu: Option<String>, search: bool) -> Vec<NextCall> {
    let fits = if search { !document["best"].is_null() } else { document["fits"] != false };
    if fits {
        return Vec::new();
    }
    let report = json!({"path": path, "by": "category"});
    let report = NextCall::new("report", report, "says what fills the memory, and what to change");
    let what_if = if search {
        let arguments = json!({"path": path, "smallest_gpu": true});
        NextCall::new("what_if", arguments, "finds how much memory the run needs")
    } else {
        let mut arguments = json!({"path": path, "search": true});
        arguments.as_object_mut().into_iter().for_each(|fields| {
            fields.extend(gpu.clone().map(|gpu| ("gpu".to_owned(), gpu.into())));
        });
        NextCall::new("what_if", arguments, "looks for settings with which it fits")
    };
    vec![what_if, report]
}
