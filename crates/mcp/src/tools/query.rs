//! `query`: SQL over the tables of a snapshot.

use super::{AgentTool, AnswerText, PlannedCall, ToolPlan};
use crate::answers::{CallError, NextCall};
use crate::arguments::{self, CommandLine};
use crate::roots::AllowedRoots;
use analysis::words::{printable, shortened};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// Longest cell in the text, in characters.
const MAX_CELL_CHARS: usize = 80;

/// Arguments of `query`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryCall {
    /// Snapshot or recording of one process, as list_recordings names it.
    path: String,
    /// One SELECT in SQLite's dialect, such as `SELECT site_file, site_line, sum(size) AS bytes FROM blocks
    /// WHERE state_at_end = 'active_allocated' GROUP BY 1, 2 ORDER BY bytes DESC`.
    sql: String,
    /// Number of rows to skip, for the next page.
    #[serde(default)]
    offset: u64,
    /// Number of rows to return, at most 1000.
    #[serde(default = "default_limit")]
    limit: u64,
}

fn default_limit() -> u64 {
    50
}

impl AgentTool for QueryCall {
    const NAME: &str = "query";
    const TITLE: &str = "Query a snapshot with SQL";
    const DESCRIPTION: &str = "Runs one read-only SQL query over a snapshot, for what no other tool answers. \
        Tables: events(event, device, action, addr, size, time_us, stack_id, block_id, allocated, reserved, \
        …), blocks(block_id, size, alloc_event, free_requested_event, site_file, site_line, site_function, \
        state_at_end, module, label, tensor, …), segments, frames, stacks. Sizes are bytes.";

    fn output_schema() -> JsonObject {
        arguments::output_schema("query", None)
    }

    fn plan(self, roots: &AllowedRoots) -> Result<ToolPlan, CallError> {
        let (found, _) = roots.find_recording(&self.path)?;
        let command = CommandLine::new("query")
            .option("offset", self.offset)
            .option("limit", self.limit)
            .operand(&found.inner)
            .operand(&self.sql);
        let (path, sql, limit) = (roots.shown(&found), self.sql.clone(), self.limit);
        let planned = PlannedCall::new(found.root, command).then(move |document: &Value| {
            let next = document["next_offset"].as_u64().map(|offset| {
                let arguments = json!({"path": path, "sql": sql, "offset": offset, "limit": limit});
                NextCall::new("query", arguments, "returns the rows that follow")
            });
            next.into_iter().collect()
        });
        Ok(ToolPlan::Command(PlannedCall { text: AnswerText::OfDocument(text), ..planned }))
    }
}

/// A line per row, which needs fewer letters than a table.
fn text(document: &Value) -> String {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => shortened(&printable(text), MAX_CELL_CHARS),
        other => other.to_string(),
    };
    let line =
        |cells: &Value| cells.as_array().into_iter().flatten().map(cell).collect::<Vec<_>>().join(" | ");
    let rows = document["rows"].as_array().into_iter().flatten();
    std::iter::once(&document["columns"]).chain(rows).map(line).collect::<Vec<_>>().join("\n")
}
