//! The tools. Each file has one: its arguments, the command that they mean, and the calls that may follow.

mod compare;
mod explain_message;
mod holders;
mod lint;
mod list_recordings;
mod predict;
mod query;
mod report;
mod what_if;

use crate::answers::{CallAnswer, CallError, NextCall, PageRequest};
use crate::arguments::{self, CommandLine};
use crate::roots::AllowedRoots;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::PathBuf;

/// A tool: its arguments, and how they become a command.
trait AgentTool: DeserializeOwned + JsonSchema {
    const NAME: &str;
    const TITLE: &str;
    const DESCRIPTION: &str;
    /// Whether it runs the user's program.
    const RUNS_PROGRAMS: bool = false;

    /// Returns the schema of its structured content.
    fn output_schema() -> JsonObject;

    /// Returns what answers a call.
    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError>;
}

/// What answers a call.
pub(crate) enum ToolPlan {
    /// The answer is known.
    Answered(CallAnswer),
    /// A command answers.
    Command(PlannedCall),
}

/// A command that answers a call, and what becomes of its output.
pub(crate) struct PlannedCall {
    /// The root to work in.
    pub(crate) folder: PathBuf,
    /// The command, without `--json`.
    pub(crate) command: CommandLine,
    /// Standard input.
    pub(crate) input: Option<String>,
    /// Where the text for people comes from.
    pub(crate) text: AnswerText,
    /// Field for the JSON, if the command prints a list.
    pub(crate) list: Option<&'static str>,
    /// Which part of a list of the document is wanted.
    pub(crate) page: Option<PageRequest>,
    /// The calls that may follow the whole document.
    pub(crate) next: ProposeCalls,
}

/// Returns the calls that may follow a document.
pub(crate) type ProposeCalls = Box<dyn FnOnce(&Value) -> Vec<NextCall> + Send>;

/// Where the text for people comes from.
#[derive(Clone, Copy)]
pub(crate) enum AnswerText {
    /// The command prints it without `--json`.
    OfCommand,
    /// It is made from the document: the command is too slow to run twice, or prints more than a page.
    OfDocument(fn(&Value) -> String),
}

impl PlannedCall {
    fn new(folder: PathBuf, command: CommandLine) -> PlannedCall {
        let next = Box::new(|_: &Value| Vec::new());
        PlannedCall {
            folder,
            command,
            input: None,
            text: AnswerText::OfCommand,
            list: None,
            page: None,
            next,
        }
    }

    fn then(self, next: impl FnOnce(&Value) -> Vec<NextCall> + Send + 'static) -> PlannedCall {
        PlannedCall { next: Box::new(next), ..self }
    }

    fn paged(self, list: &'static str, offset: usize, limit: usize) -> PlannedCall {
        PlannedCall { page: Some(PageRequest { list, offset, limit }), ..self }
    }
}

/// A tool as the server lists and calls it.
pub(crate) struct ToolEntry {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) runs_programs: bool,
    pub(crate) input_schema: fn() -> JsonObject,
    pub(crate) output_schema: fn() -> JsonObject,
    pub(crate) plan: fn(JsonObject, &AllowedRoots) -> Result<ToolPlan, CallError>,
}

const fn entry<T: AgentTool>() -> ToolEntry {
    ToolEntry {
        name: T::NAME,
        title: T::TITLE,
        description: T::DESCRIPTION,
        runs_programs: T::RUNS_PROGRAMS,
        input_schema: arguments::input_schema::<T>,
        output_schema: T::output_schema,
        plan: |given, roots| arguments::read::<T>(T::NAME, given)?.plan(roots),
    }
}

/// All tools, in the order in which they are listed.
pub(crate) static TOOLS: [ToolEntry; 9] = [
    entry::<list_recordings::ListRecordingsCall>(),
    entry::<report::ReportCall>(),
    entry::<holders::HoldersCall>(),
    entry::<what_if::WhatIfCall>(),
    entry::<compare::CompareCall>(),
    entry::<explain_message::ExplainMessageCall>(),
    entry::<lint::LintCall>(),
    entry::<query::QueryCall>(),
    entry::<predict::PredictCall>(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_described_and_others_are_refused() {
        for tool in &TOOLS {
            let schema = (tool.input_schema)();
            assert_eq!(schema["type"], "object", "{}", tool.name);
            assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
            for (name, field) in schema["properties"].as_object().expect("properties") {
                let text = field["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{}: {name} has no description", tool.name);
                assert!(
                    field["type"].is_string() || field["enum"].is_array() || field["oneOf"].is_array(),
                    "{}: {name} has no simple type: {field}",
                    tool.name
                );
            }
            assert!(tool.description.len() < 500, "{} is described in few words", tool.name);
            let roots = AllowedRoots::new(&[PathBuf::from(".")]).expect("a root");
            let given = [("pth".to_owned(), Value::Null)].into_iter().collect();
            let error = (tool.plan)(given, &roots).map(|_| ()).expect_err("an unknown argument").text();
            assert!(error.contains("unknown field `pth`") && error.contains("its arguments are"), "{error}");
        }
    }

    #[test]
    fn structured_content_is_an_object() {
        for tool in &TOOLS {
            let schema = (tool.output_schema)();
            assert_eq!(schema["type"], "object", "{}", tool.name);
            assert!(
                schema["properties"]["next_calls"]["items"]["properties"]["tool"].is_object(),
                "{}",
                tool.name
            );
        }
    }
}
