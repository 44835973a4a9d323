//! `compare`: two runs.

use super::{AgentTool, PlannedCall, ToolPlan};
use crate::answers::{CallError, NextCall};
use crate::arguments::{self, CommandLine, word_for};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Arguments of `compare`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CompareCall {
    /// Recording or snapshot to compare with, or a folder of ranks.
    before: String,
    /// Recording or snapshot to look at, or a folder with the same ranks.
    after: String,
    /// Number of changed lines to list.
    #[serde(default = "default_top")]
    top: usize,
}

fn default_top() -> usize {
    10
}

impl AgentTool for CompareCall {
    const NAME: &str = "compare";
    const TITLE: &str = "Compare two runs";
    const DESCRIPTION: &str = "Compares two recorded runs: did the peak fall, which findings appeared or are \
        gone, and which lines hold more or less. Proves that a fix worked.";

    fn output_schema() -> JsonObject {
        arguments::output_schema("diff", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let (before, _) = roots.find_recording(&self.before)?;
        let (after, _) = roots.find_recording(&self.after)?;
        let command = CommandLine::new("diff")
            .option("top", self.top)
            .operand(word_for(&before, &after.root))
            .operand(&after.inner);
        let path = roots.shown(&after);
        let next = NextCall::new("report", json!({"path": path}), "says what is still wrong");
        Ok(ToolPlan::Command(PlannedCall::new(after.root, command).then(|_| vec![next])))
    }
}
