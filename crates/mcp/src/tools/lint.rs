//! `lint`: source code that keeps or wastes GPU memory.

use super::{AgentTool, AnswerText, PlannedCall, ToolPlan};
use crate::answers::CallError;
use crate::arguments::{self, CommandLine, word_for};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Arguments of `lint`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LintCall {
    /// Python files, notebooks, or folders of them.
    paths: Vec<String>,
    /// Only these rules, by code or name; default: all.
    #[serde(default)]
    select: Vec<String>,
    /// Only findings that are at least this severe.
    #[serde(default)]
    min_severity: LeastSeverity,
    /// Number of findings to skip, for the next page.
    #[serde(default)]
    offset: usize,
    /// Number of findings to list.
    #[serde(default = "default_limit")]
    limit: usize,
}

fn default_limit() -> usize {
    20
}

/// How severe a finding has to be.
#[derive(Clone, Copy, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum LeastSeverity {
    #[default]
    Low,
    Medium,
    High,
}

impl AgentTool for LintCall {
    const NAME: &str = "lint";
    const TITLE: &str = "Find code that wastes GPU memory";
    const DESCRIPTION: &str = "Checks Python files and notebooks for code that leaks or wastes GPU memory, \
        without running it: losses kept with their graphs, missing no_grad, gradients zeroed in place, and \
        more. For code without a recording.";

    fn output_schema() -> JsonObject {
        arguments::output_schema("lint", Some("findings"))
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let found = self.paths.iter().map(|path| roots.find(path)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = found.first() else {
            return Err(CallError::new("invalid arguments of `lint`", "`paths` is empty"));
        };
        let severity = match self.min_severity {
            LeastSeverity::Low => "low",
            LeastSeverity::Medium => "medium",
            LeastSeverity::High => "high",
        };
        let select = (!self.select.is_empty()).then(|| self.select.join(","));
        let options = CommandLine::new("lint").optional("select", select).option("min-severity", severity);
        let words = found.iter().map(|path| word_for(path, &first.root));
        let command = words.fold(options, CommandLine::operand);
        let planned =
            PlannedCall::new(first.root.clone(), command).paged("findings", self.offset, self.limit);
        Ok(ToolPlan::Command(PlannedCall {
            text: AnswerText::OfDocument(text),
            list: Some("findings"),
            ..planned
        }))
    }
}

fn text(document: &Value) -> String {
    let word = |finding: &Value, name: &str| match &finding[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let line = |finding: &Value| {
        let of = |name| word(finding, name);
        format!(
            "{}:{} {} {} {}: {}\n  fix: {}",
            of("file"),
            of("line"),
            of("severity"),
            of("code"),
            of("name"),
            of("message"),
            of("advice")
        )
    };
    let findings = document["findings"].as_array();
    let lines: Vec<String> = findings.into_iter().flatten().map(line).collect();
    if lines.is_empty() { "no findings".to_owned() } else { lines.join("\n") }
}
