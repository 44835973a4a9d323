//! One SQLite database with all tables.
//!
//! SQLite has only signed integers: an address or stream of 2^63 and more is stored as the negative number
//! with the same 64 bits.

use super::cells::{CellValue, columns};
use crate::ExportSummary;
use crate::tables::ExportTable;
use arrow_schema::{DataType, Schema};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Transaction};
use std::path::Path;

/// Indices for joins and lookups: name, and table with columns.
const INDICES: [(&str, &str); 3] = [
    ("events_by_event", "events (event, device)"),
    ("blocks_by_alloc_event", "blocks (alloc_event, device)"),
    ("stacks_by_stack_id", "stacks (stack_id, depth)"),
];

/// Tables whose rows are numbered by a column: table, and column.
const PRIMARY_KEYS: [(&str, &str); 3] =
    [("blocks", "block_id"), ("segments", "segment_id"), ("frames", "frame_id")];

/// Writes all tables and returns the number of rows of each.
pub(crate) fn write(tables: Vec<ExportTable<'_>>, file: &Path) -> anyhow::Result<ExportSummary> {
    let mut connection = Connection::open(file)?;
    // The file is removed if anything fails, so it needs no journal.
    connection.pragma_update(None, "journal_mode", "off")?;
    connection.pragma_update(None, "synchronous", "off")?;
    let mut written = ExportSummary::default();
    let transaction = connection.transaction()?;
    for table in tables {
        transaction.execute(&definition(table.name, &table.schema), [])?;
        written.counts.push((table.name, insert(table, &transaction)?));
    }
    for (name, columns) in INDICES {
        transaction.execute(&format!("CREATE INDEX {name} ON {columns}"), [])?;
    }
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(written)
}

fn definition(table: &str, schema: &Schema) -> String {
    let columns: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| {
            let kind = column_type(field.data_type());
            let rule = match field.is_nullable() {
                _ if PRIMARY_KEYS.contains(&(table, field.name())) => " PRIMARY KEY",
                true => "",
                false => " NOT NULL",
            };
            format!("{} {kind}{rule}", field.name())
        })
        .collect();
    format!("CREATE TABLE {table} ({})", columns.join(", "))
}

/// The type of a column in SQLite.
pub(crate) fn column_type(data: &DataType) -> &'static str {
    match data {
        DataType::Utf8 | DataType::Dictionary(..) => "TEXT",
        _ => "INTEGER",
    }
}

fn insert(table: ExportTable<'_>, transaction: &Transaction<'_>) -> anyhow::Result<u64> {
    let placeholders = vec!["?"; table.schema.fields().len()].join(", ");
    let mut statement =
        transaction.prepare(&format!("INSERT INTO {} VALUES ({placeholders})", table.name))?;
    let mut rows = 0;
    for batch in table.batches {
        let batch = batch?;
        let columns = columns(&batch)?;
        for row in 0..batch.num_rows() {
            for (index, column) in columns.iter().enumerate() {
                statement.raw_bind_parameter(index + 1, value(column.get(row)))?;
            }
            statement.raw_execute()?;
        }
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}

/// A value as SQLite stores it.
pub(crate) fn value(cell: CellValue<'_>) -> ToSqlOutput<'_> {
    let integer = |number: i64| ToSqlOutput::Owned(Value::Integer(number));
    match cell {
        CellValue::Null => ToSqlOutput::Owned(Value::Null),
        CellValue::Unsigned(number) => integer(number as i64),
        CellValue::Signed(number) => integer(number),
        CellValue::Flag(flag) => integer(flag.into()),
        CellValue::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
    }
}
