//! Apache Parquet, compressed with zstd.

use crate::tables::ExportTable;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::fs::File;

/// Writes one table and returns its number of rows.
pub(crate) fn write(table: ExportTable<'_>, file: &File) -> anyhow::Result<u64> {
    let properties =
        WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let mut writer = ArrowWriter::try_new(file, table.schema, Some(properties))?;
    for batch in table.batches {
        writer.write(&batch?)?;
    }
    Ok(writer.close()?.file_metadata().num_rows() as u64)
}
