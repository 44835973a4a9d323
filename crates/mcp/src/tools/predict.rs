//! `predict`: the user's program on an emulated GPU.

use super::{AgentTool, AnswerText, PlannedCall, ToolPlan};
use crate::answers::CallError;
use crate::arguments::{self, CommandLine};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use snapshot::Bytes;
use std::path::Path;

/// Arguments of `predict`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictCall {
    /// Python script to run.
    script: String,
    /// Arguments of the script.
    #[serde(default)]
    args: Vec<String>,
    /// GPU to emulate: a name such as `l4`, `rtx4090` or `h100`, or its memory, such as `24GiB`.
    gpu: String,
    /// Number of steps to run; default: until memory repeats.
    steps: Option<u32>,
}

impl AgentTool for PredictCall {
    const NAME: &str = "predict";
    const TITLE: &str = "Run a program on an emulated GPU";
    const DESCRIPTION: &str = "Runs a training script on an emulated GPU, without a real one: does it fit, \
        how much memory it needs, what fills it. Executes the script.";
    const RUNS_PROGRAMS: bool = true;

    fn output_schema() -> JsonObject {
        arguments::output_schema("predict", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let found = roots.find(&self.script)?;
        // With a folder in front, no name is an option of the interpreter.
        let script = Path::new(".").join(&found.inner);
        if script.extension().is_none_or(|ending| ending != "py") {
            return Err(CallError::new(
                &format!("`{}` is not a Python script", roots.shown(&found)),
                "name a .py file",
            ));
        }
        let options = CommandLine::new("predict")
            .option("gpu", &self.gpu)
            .optional("steps", self.steps)
            .flag("quiet", true)
            .operand(script);
        let command = self.args.iter().fold(options, |command, word| command.operand(word));
        let planned = PlannedCall::new(found.root, command);
        Ok(ToolPlan::Command(PlannedCall { text: AnswerText::OfDocument(text), ..planned }))
    }
}

fn text(document: &Value) -> String {
    let bytes = |value: &Value| value.as_u64().map(|bytes| Bytes(bytes).to_string()).unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = vec![format!(
        "{} on {} ({}): it needs {}, of which {} is allocated by PyTorch at the peak; {}",
        word(&document["verdict"]),
        word(&document["gpu"]["name"]),
        bytes(&document["gpu"]["memory"]),
        bytes(&document["total"]),
        bytes(&document["peak_allocated"]),
        word(&document["confidence"]),
    )];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    lines.extend(list(&document["reasons"]).iter().map(word));
    lines.extend(document["exception"].as_str().map(|line| format!("the program failed: {line}")));
    for input in list(&document["report"]["inputs"]) {
        for finding in list(&input["devices"]).iter().flat_map(|device| list(&device["findings"])) {
            let (kind, summary) = (word(&finding["kind"]), word(&finding["summary"]));
            let site = &finding["site"];
            lines.push(format!("{kind}: {summary} ({}:{})", word(&site["file"]), site["line"]));
            lines.push(format!("  fix: {}", word(&finding["fix"])));
        }
    }
    lines.join("\n")
}
