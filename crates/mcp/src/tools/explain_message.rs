//! `explain_message`: an error message, or a log.

use super::{AgentTool, PlannedCall, ToolPlan};
use crate::answers::{CallError, NextCall};
use crate::arguments::{self, CommandLine};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Arguments of `explain_message`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainMessageCall {
    /// The error message, or the part of a log with it.
    text: Option<String>,
    /// Log file, in place of `text`.
    path: Option<String>,
    /// GPU of vLLM or SGLang, if their log does not say how large it is: a name or its memory.
    gpu: Option<String>,
    /// Number of messages to skip, for the next page.
    #[serde(default)]
    offset: usize,
    /// Number of distinct messages to have in the structured content.
    #[serde(default = "default_limit")]
    limit: usize,
}

fn default_limit() -> usize {
    5
}

impl AgentTool for ExplainMessageCall {
    const NAME: &str = "explain_message";
    const TITLE: &str = "Explain an out-of-memory message";
    const DESCRIPTION: &str = "Explains out-of-memory errors in a pasted message (`text`) or a log file \
        (`path`): PyTorch on any backend, NCCL, cuBLAS, the OOM killer, vLLM, SGLang, JAX and others. For \
        when there is no recording.";

    fn output_schema() -> JsonObject {
        arguments::output_schema("explain", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let command = CommandLine::new("explain").optional("gpu", self.gpu.as_ref());
        let planned = match (self.text, self.path) {
            (Some(text), None) => {
                let folder = roots.folders().first().cloned().unwrap_or_default();
                PlannedCall { input: Some(text), ..PlannedCall::new(folder, command.operand("-")) }
            }
            (None, Some(path)) => {
                let found = roots.find(&path)?;
                PlannedCall::new(found.root.clone(), command.operand(&found.inner))
            }
            _ => {
                return Err(CallError::new(
                    "invalid arguments of `explain_message`",
                    "give either `text` or `path`",
                ));
            }
        };
        let next =
            NextCall::new("list_recordings", json!({}), "a recording, if there is one, names the lines");
        Ok(ToolPlan::Command(planned.paged("messages", self.offset, self.limit).then(|_| vec![next])))
    }
}
