//! SQL over the tables of a snapshot: one statement that only reads, limited in rows and time.
//!
//! The statement is prepared twice. The first time, an authorizer notes which columns it reads and refuses
//! everything that is not a query; only these columns are then copied into SQLite's memory.

use crate::formats::cells::columns;
use crate::formats::sqlite::{column_type, value};
use crate::tables::{self, ExportTable};
use analysis::Device;
use failure::Failure;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement};
use serde_json::Value;
use snapshot::Snapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest statement, and longest text that a statement may make, in bytes.
const MAX_TEXT_BYTES: i32 = 1 << 20;
/// Bytes of one answer; a page with more ends early.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Instructions of SQLite's machine between two looks at the clock.
const INSTRUCTIONS_PER_CHECK: i32 = 10_000;

/// What a query may cost, and which part of its answer is wanted.
#[derive(Clone, Copy, Debug)]
pub struct QueryLimits {
    /// Number of rows to skip.
    pub offset: u64,
    /// Number of rows to return at most.
    pub rows: usize,
    /// Time limit for copying the columns and running the statement.
    pub time: Duration,
}

/// Rows of a query.
#[derive(Debug)]
pub struct QueryAnswer {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows, each with one value per column.
    pub rows: Vec<Vec<Value>>,
    /// Whether more rows follow.
    pub has_more: bool,
}

/// The kind of join that compares all columns of the same name.
const NATURAL: &str = "natural";

/// Names of columns by table; among them may be words that are no columns.
type ColumnsRead = BTreeMap<&'static str, BTreeSet<String>>;

/// Runs one `SELECT` over the [tables] of a snapshot.
///
/// ```
/// use export::{QueryLimits, query};
/// use std::time::Duration;
///
/// let snapshot = snapshot::read(&br#"{"segments": [], "device_traces": []}"#[..])?;
/// let limits = QueryLimits { offset: 0, rows: 10, time: Duration::from_secs(10) };
/// let answer = query(&snapshot, &[], "SELECT count(*) AS events FROM events", limits)?;
/// assert_eq!((answer.columns, answer.rows), (vec!["events".to_owned()], vec![vec![0.into()]]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn query(
    snapshot: &Snapshot,
    devices: &[Device<'_>],
    statement: &str,
    limits: QueryLimits,
) -> anyhow::Result<QueryAnswer> {
    let deadline = Instant::now() + limits.time;
    let mut connection = Connection::open_in_memory()?;
    let tables = tables::tables(snapshot, devices)?;
    for table in &tables {
        connection.execute(&definition(table), [])?;
    }
    let explained = |error| explain(error, &tables, limits.time);
    let read = columns_read(&mut connection, statement).map_err(explained)?;
    connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
    for table in tables::tables(snapshot, devices)? {
        if let Some(wanted) = read.get(table.name) {
            fill(&connection, table, wanted, deadline, limits.time)?;
        }
    }
    restrict(&mut connection, Arc::default())?;
    connection.progress_handler(INSTRUCTIONS_PER_CHECK, Some(move || Instant::now() > deadline))?;
    Ok(rows(&connection, statement, limits).map_err(explained)?)
}

fn definition(table: &ExportTable<'_>) -> String {
    let columns: Vec<String> = table
        .schema
        .fields()
        .iter()
        .map(|field| format!("{} {}", field.name(), column_type(field.data_type())))
        .collect();
    format!("CREATE TABLE {} ({})", table.name, columns.join(", "))
}

/// The columns that a statement reads, by table: those that SQLite asks for, and all that it names, because
/// SQLite does not ask for what USING and NATURAL compare.
fn columns_read(connection: &mut Connection, statement: &str) -> rusqlite::Result<ColumnsRead> {
    let asked = Arc::new(Mutex::new(ColumnsRead::new()));
    restrict(connection, asked.clone())?;
    only_statement(connection, statement)?;
    let mut read = std::mem::take(&mut *asked.lock().unwrap_or_else(PoisonError::into_inner));
    let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words: BTreeSet<String> =
        statement.split(|letter| !is_in_name(letter)).map(str::to_ascii_lowercase).collect();
    for table in tables::NAMES.into_iter().filter(|name| words.contains(*name)) {
        read.entry(table).or_default().extend(words.iter().cloned());
    }
    Ok(read)
}

/// Allows queries only, and notes what they read.
fn restrict(connection: &mut Connection, read: Arc<Mutex<ColumnsRead>>) -> rusqlite::Result<()> {
    // Not `load_extension`, which SQLite refuses anyway unless it is switched on.
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_TEXT_BYTES)?;
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_TEXT_BYTES)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.authorizer(Some(move |context: AuthContext<'_>| match context.action {
        AuthAction::Select | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if function_name != "load_extension" => Authorization::Allow,
        AuthAction::Read { table_name, column_name } => {
            if let Some(name) = tables::NAMES.into_iter().find(|name| *name == table_name) {
                let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
                read.entry(name).or_default().insert(column_name.to_owned());
            }
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }))
}

/// Prepares a text that is one statement with rows.
fn only_statement<'c>(connection: &'c Connection, statement: &str) -> rusqlite::Result<Statement<'c>> {
    let prepared = connection.prepare(statement)?;
    match prepared.readonly() && prepared.column_count() > 0 {
        true => Ok(prepared),
        false => Err(rusqlite::Error::InvalidQuery),
    }
}

/// Copies columns of a table.
fn fill(
    connection: &Connection,
    table: ExportTable<'_>,
    wanted: &BTreeSet<String>,
    deadline: Instant,
    time: Duration,
) -> anyhow::Result<()> {
    let fields = table.schema.fields().iter().enumerate();
    let is_read = |name: &String| wanted.contains(name) || wanted.contains(NATURAL);
    let mut chosen: Vec<usize> =
        fields.filter(|(_, field)| is_read(field.name())).map(|(index, _)| index).collect();
    if chosen.is_empty() {
        chosen.push(0);
    }
    let names: Vec<&str> = chosen.iter().map(|&index| table.schema.field(index).name().as_str()).collect();
    let transaction = connection.unchecked_transaction()?;
    let insert = format!(
        "INSERT INTO {} ({}) VALUES ({})",
        table.name,
        names.join(", "),
        vec!["?"; names.len()].join(", ")
    );
    let mut statement = transaction.prepare(&insert)?;
    for batch in table.batches {
        if Instant::now() > deadline {
            return Err(too_slow(time).into());
        }
        let batch = batch?.project(&chosen)?;
        let columns = columns(&batch)?;
        for row in 0..batch.num_rows() {
            for (index, column) in columns.iter().enumerate() {
                statement.raw_bind_parameter(index + 1, value(column.get(row)))?;
            }
            statement.raw_execute()?;
        }
    }
    drop(statement);
    Ok(transaction.commit()?)
}

fn rows(connection: &Connection, statement: &str, limits: QueryLimits) -> rusqlite::Result<QueryAnswer> {
    let mut statement = only_statement(connection, statement)?;
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut answer = QueryAnswer { columns, rows: Vec::new(), has_more: false };
    let (mut bytes, mut skipped) = (0, 0);
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        if skipped < limits.offset {
            skipped += 1;
            continue;
        }
        if answer.rows.len() == limits.rows || bytes > MAX_ANSWER_BYTES {
            answer.has_more = true;
            break;
        }
        let values = (0..answer.columns.len()).map(|index| Ok(json(row.get_ref(index)?)));
        let values = values.collect::<rusqlite::Result<Vec<Value>>>()?;
        bytes += values.iter().map(|value| value.as_str().map_or(8, str::len)).sum::<usize>();
        answer.rows.push(values);
    }
    Ok(answer)
}

fn json(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    }
}

/// An error of SQLite with its way out.
fn explain(error: rusqlite::Error, tables: &[ExportTable<'_>], time: Duration) -> Failure {
    let what = "the statement cannot be run";
    match &error {
        rusqlite::Error::MultipleStatement => Failure::new(
            what,
            Some("it is more than one statement".to_owned()),
            Some("send one SELECT at a time"),
        ),
        rusqlite::Error::InvalidQuery => only_queries(),
        _ => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => too_slow(time),
            Some(ErrorCode::AuthorizationForStatementDenied) => only_queries(),
            Some(ErrorCode::OutOfMemory) => Failure::new(
                "the query needs too much memory",
                None,
                Some("read fewer columns, or aggregate before you sort"),
            ),
            _ => {
                let names = |table: &ExportTable<'_>| {
                    let fields = table.schema.fields().iter();
                    let columns: Vec<&str> = fields.map(|field| field.name().as_str()).collect();
                    format!("{}({})", table.name, columns.join(", "))
                };
                let known: Vec<String> = tables.iter().map(names).collect();
                Failure::new(what, Some(message(&error)), None)
                    .hinting(format!("SQLite's dialect; the tables are {}", known.join(", ")))
            }
        },
    }
}

/// What SQLite says, without the statement that rusqlite repeats.
fn message(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        _ => error.to_string(),
    }
}

fn only_queries() -> Failure {
    Failure::new(
        "the statement is not a query",
        Some("the tables can only be read: no writes, ATTACH, PRAGMA or extensions".to_owned()),
        Some("send one SELECT, or WITH … SELECT"),
    )
}

fn too_slow(time: Duration) -> Failure {
    Failure::new(
        format!("the query took longer than {} s", time.as_secs()),
        None,
        Some("read fewer tables and columns, narrow it down with WHERE, and join on equal columns only"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: QueryLimits = QueryLimits { offset: 0, rows: 1000, time: Duration::from_secs(60) };

    fn fixture() -> Snapshot {
        snapshot::open("../../fixtures/zoo/leak_infer_outputs.pickle.xz".as_ref()).expect("a snapshot")
    }

    fn refused(statement: &str) -> String {
        let snapshot = snapshot::read(&br#"{"segments": [], "device_traces": []}"#[..]).expect("a snapshot");
        let error = query(&snapshot, &[], statement, MINUTE).expect_err(statement);
        Failure::from(error).message()
    }

    #[test]
    fn only_the_columns_of_the_statement_are_copied() {
        let read = |statement: &str| {
            let mut connection = Connection::open_in_memory().expect("memory");
            let snapshot =
                snapshot::read(&br#"{"segments": [], "device_traces": []}"#[..]).expect("a snapshot");
            for table in tables::tables(&snapshot, &[]).expect("tables") {
                connection.execute(&definition(&table), []).expect("a table");
            }
            let read = columns_read(&mut connection, statement).expect(statement);
            let schema = tables::tables(&snapshot, &[]).expect("tables");
            let names = |table: &ExportTable<'_>| {
                let columns = read.get(table.name)?;
                let fields = table.schema.fields().iter().map(|field| field.name().clone());
                let read: Vec<String> = fields.filter(|name| columns.contains(name)).collect();
                Some(format!("{}:{}", table.name, read.join(",")))
            };
            schema.iter().filter_map(names).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(read("SELECT size FROM events WHERE action = 'alloc'"), "events:action,size");
        assert_eq!(read("SELECT count(*) FROM blocks"), "blocks:");
        let joined = "WITH a AS (SELECT * FROM stacks) SELECT file FROM a JOIN frames USING (frame_id)";
        assert_eq!(read(joined), "frames:frame_id,file stacks:stack_id,depth,frame_id");
        assert_eq!(read("SELECT 1"), "");
    }

    #[test]
    fn pages_make_up_the_whole_answer() {
        let snapshot = fixture();
        let devices = analysis::devices(&snapshot);
        let statement = "SELECT event, allocated FROM events ORDER BY allocated DESC, event";
        let page =
            |offset, rows| query(&snapshot, &devices, statement, QueryLimits { offset, rows, ..MINUTE });
        let whole = page(0, 5000).expect("all rows");
        assert_eq!((whole.rows.len(), whole.has_more), (3193, false));
        let (first, second) = (page(0, 3000).expect("a page"), page(3000, 193).expect("a page"));
        assert!(first.has_more && !second.has_more);
        assert_eq!([first.rows, second.rows].concat(), whole.rows);
    }

    #[test]
    fn sums_are_those_of_the_history() {
        let snapshot = fixture();
        let devices = analysis::devices(&snapshot);
        for join in ["JOIN blocks USING (block_id)", "NATURAL JOIN (SELECT block_id FROM blocks)"] {
            let statement = format!("SELECT max(allocated), count(DISTINCT block_id) FROM events {join}");
            let answer = query(&snapshot, &devices, &statement, MINUTE).expect(join);
            assert_eq!(answer.rows[0][0], devices[0].history.allocated_peak.bytes.0, "{join}");
        }
        let natural = "SELECT count(*) FROM stacks NATURAL JOIN frames";
        let answer = query(&snapshot, &devices, natural, MINUTE).expect("an answer");
        let stacks = query(&snapshot, &devices, "SELECT count(*) FROM stacks", MINUTE).expect("an answer");
        assert!(stacks.rows[0][0].as_u64() > Some(0) && answer.rows == stacks.rows);
    }

    #[test]
    fn nothing_but_one_query_runs() {
        for statement in [
            "DELETE FROM events",
            "INSERT INTO events (event) VALUES (1)",
            "DROP TABLE events",
            "CREATE TABLE t (a)",
            "CREATE TEMP TABLE t (a)",
            "ATTACH 'x.db' AS x",
            "PRAGMA table_info(events)",
            "PRAGMA hard_heap_limit = 1",
            "SELECT load_extension('x')",
            "SELECT * FROM pragma_database_list",
            "VACUUM INTO '/tmp/x.db'",
            "BEGIN",
            "EXPLAIN DELETE FROM events",
        ] {
            let message = refused(statement);
            assert!(
                message.contains("not a query") || message.contains("cannot be run"),
                "{statement}: {message}"
            );
        }
        assert!(refused("SELECT 1; SELECT 2").contains("more than one statement"));
        assert!(refused("").contains("not a query"));
    }

    #[test]
    fn a_wrong_name_lists_the_right_ones() {
        let message = refused("SELECT bytes FROM blocks");
        assert!(message.contains("no such column: bytes"), "{message}");
        assert!(message.contains("blocks(block_id, device, addr, size"), "{message}");
    }

    #[test]
    fn endless_and_large_answers_are_stopped() {
        let snapshot = fixture();
        let quick = QueryLimits { time: Duration::from_millis(200), ..MINUTE };
        let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
        let error = query(&snapshot, &[], endless, quick).expect_err("endless");
        assert!(Failure::from(error).message().contains("took longer"), "a time limit");
        assert!(refused("SELECT length(zeroblob(100000000))").contains("too big"));
        let long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100) \
                    SELECT printf('%100000d', i) FROM n";
        let answer = query(&snapshot, &[], long, MINUTE).expect("an answer");
        assert!(answer.has_more && answer.rows.len() < 20, "{} rows", answer.rows.len());
    }
}
