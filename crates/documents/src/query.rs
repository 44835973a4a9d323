//! The JSON of `oomph query --json`: public and versioned. Fields may be added, none renamed.

use export::QueryAnswer;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// Version of the format.
const VERSION: u32 = 1;

/// Rows of a query over the tables of a snapshot.
#[derive(Serialize, JsonSchema)]
pub struct QueryDocument {
    /// Version of the format.
    version: u32,
    /// Names of the columns.
    columns: Vec<String>,
    /// Rows, each with one value per column: a number, a string or null.
    rows: Vec<Vec<Value>>,
    /// Number of rows before the first that is listed.
    offset: u64,
    /// `--offset` of the rows that follow; null if there are none.
    next_offset: Option<u64>,
}

impl QueryDocument {
    /// Describes rows of which `offset` were skipped.
    pub fn new(answer: QueryAnswer, offset: u64) -> QueryDocument {
        let QueryAnswer { columns, rows, has_more } = answer;
        let next_offset = has_more.then_some(offset + rows.len() as u64);
        QueryDocument { version: VERSION, columns, rows, offset, next_offset }
    }
}
