//! One JSON document, written row by row: `{"version": 1, "tables": {"events": [{…}, …], …}}`. Public and
//! versioned: fields may be added, none renamed.

use super::cells::{CellValue, columns};
use crate::ExportSummary;
use crate::tables::ExportTable;
use std::fs::File;
use std::io::{BufWriter, Write};

/// Writes all tables and returns the number of rows of each.
pub(crate) fn write(tables: Vec<ExportTable<'_>>, file: &File) -> anyhow::Result<ExportSummary> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut written = ExportSummary::default();
    out.write_all(b"{\"version\":1,\"tables\":{")?;
    for (index, table) in tables.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}\n\"{}\":[", table.name)?;
        written.counts.push((table.name, rows(table, &mut out)?));
        out.write_all(b"\n]")?;
    }
    out.write_all(b"\n}}\n")?;
    out.flush()?;
    Ok(written)
}

fn rows(table: ExportTable<'_>, out: &mut impl Write) -> anyhow::Result<u64> {
    let keys: Vec<String> = table
        .schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| format!("{}\"{}\":", if index == 0 { "\n{" } else { "," }, field.name()))
        .collect();
    let mut rows = 0u64;
    for batch in table.batches {
        let batch = batch?;
        let columns = columns(&batch)?;
        for row in 0..batch.num_rows() {
            if rows > 0 {
                out.write_all(b",")?;
            }
            for (key, column) in keys.iter().zip(&columns) {
                out.write_all(key.as_bytes())?;
                match column.get(row) {
                    CellValue::Null => out.write_all(b"null")?,
                    CellValue::Unsigned(number) => write!(out, "{number}")?,
                    CellValue::Signed(number) => write!(out, "{number}")?,
                    CellValue::Flag(flag) => write!(out, "{flag}")?,
                    CellValue::Text(text) => serde_json::to_writer(&mut *out, text)?,
                }
            }
            out.write_all(b"}")?;
            rows += 1;
        }
    }
    Ok(rows)
}
