//! `holders`: what keeps tensors alive.

use super::{AgentTool, PlannedCall, ToolPlan};
use crate::answers::CallError;
use crate::arguments::{self, CommandLine, word_for};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Arguments of `holders`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldersCall {
    /// Recording with holders, as list_recordings names it.
    path: String,
    /// Only tensors allocated there: `train.py:20`, `train.py`, or the name of a function. Not with another
    /// `part` than `holders`.
    of: Option<String>,
    /// What to list: the largest holders, reference cycles, the tree of what each object keeps alive, or the
    /// reference path to each of the largest tensors.
    #[serde(default)]
    part: HeapPart,
    /// Earlier recording of the same program, to list what grew since.
    since: Option<String>,
    /// Number of entries.
    #[serde(default = "default_top")]
    top: usize,
}

fn default_top() -> usize {
    8
}

/// What to list.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum HeapPart {
    #[default]
    Holders,
    Cycles,
    Tree,
    Paths,
}

impl AgentTool for HoldersCall {
    const NAME: &str = "holders";
    const TITLE: &str = "What keeps tensors alive";
    const DESCRIPTION: &str = "Names the Python variables, containers and reference cycles that keep tensors \
        alive in a recording, and how much memory releasing each would free: why a leak is not freed.";

    fn output_schema() -> JsonObject {
        arguments::output_schema("holders", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let (found, _) = roots.find_recording(&self.path)?;
        let since = self.since.as_deref().map(|since| roots.find_recording(since)).transpose()?;
        let since = since.map(|(since, _)| word_for(&since, &found.root));
        let command = CommandLine::new("holders")
            .optional("of", self.of.as_ref())
            .flag("cycles", self.part == HeapPart::Cycles)
            .flag("tree", self.part == HeapPart::Tree)
            .flag("path", self.part == HeapPart::Paths)
            .path_option("since", since.as_deref())
            .option("top", self.top)
            .operand(&found.inner);
        Ok(ToolPlan::Command(PlannedCall::new(found.root, command)))
    }
}
