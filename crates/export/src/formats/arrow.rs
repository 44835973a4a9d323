//! The Arrow IPC file format, also known as Feather 2: not compressed, so that it can be mapped into memory.

use crate::tables::ExportTable;
use arrow_ipc::writer::FileWriter;
use std::fs::File;

/// Writes one table and returns its number of rows.
pub(crate) fn write(table: ExportTable<'_>, file: &File) -> anyhow::Result<u64> {
    let mut writer = FileWriter::try_new_buffered(file, &table.schema)?;
    let mut rows = 0;
    for batch in table.batches {
        let batch = batch?;
        writer.write(&batch)?;
        rows += batch.num_rows() as u64;
    }
    writer.finish()?;
    Ok(rows)
}
