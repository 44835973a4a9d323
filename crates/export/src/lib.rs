//! Exports a snapshot to the formats of other tools.
//!
//! Every tabular format is written from the same [`tables`], a batch of rows at a time, so that the formats
//! cannot disagree and a long history needs no second copy in memory. The Perfetto trace is a timeline, not a
//! set of tables, and is made from the history itself.
//!
//! ```
//! let snapshot = snapshot::read(&br#"{"segments": [], "device_traces": []}"#[..])?;
//! let devices = analysis::devices(&snapshot);
//! let events = export::tables::table("events", &snapshot, &devices).expect("a table of this name")?;
//! assert_eq!(events.schema.field(0).name(), "event");
//! assert_eq!(events.batches.count(), 0, "the snapshot has no events");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod formats;
mod output;
mod perfetto;
mod query;
pub mod tables;

pub use arrow_array::{RecordBatch, RecordBatchReader};
pub use arrow_schema::{ArrowError, SchemaRef};
pub use output::ExportTarget;
pub use query::{QueryAnswer, QueryLimits, query};

use analysis::Device;
use output::Draft;
use snapshot::Snapshot;

/// A format of `oomph export`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportFormat {
    /// Apache Parquet, one file per table.
    Parquet,
    /// Arrow IPC (Feather), one file per table.
    Arrow,
    /// One SQLite database.
    Sqlite,
    /// One JSON document.
    Json,
    /// A Perfetto trace with memory counters.
    Perfetto,
}

/// Contents of a written export.
#[derive(Default)]
pub struct ExportSummary {
    /// Name and number of rows of each table, or name and number of packets of each kind, in the order of
    /// the file.
    pub counts: Vec<(&'static str, u64)>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Writes `snapshot` in `format`. The output appears under its name once it is complete.
pub fn write(
    snapshot: &Snapshot,
    devices: &[Device<'_>],
    format: ExportFormat,
    output: &ExportTarget,
) -> anyhow::Result<ExportSummary> {
    let tables = || tables::tables(snapshot, devices);
    match format {
        ExportFormat::Parquet => one_file_each(tables()?, output, "parquet", formats::parquet::write),
        ExportFormat::Arrow => one_file_each(tables()?, output, "arrow", formats::arrow::write),
        ExportFormat::Sqlite => one_file(output, |draft| formats::sqlite::write(tables()?, draft.path())),
        ExportFormat::Json => one_file(output, |draft| formats::json::write(tables()?, draft.file())),
        ExportFormat::Perfetto => one_file(output, |draft| perfetto::write(snapshot, devices, draft.file())),
    }
}

fn one_file(
    output: &ExportTarget,
    write: impl FnOnce(&Draft) -> anyhow::Result<ExportSummary>,
) -> anyhow::Result<ExportSummary> {
    let draft = Draft::new(&output.file())?;
    let written = write(&draft)?;
    draft.keep()?;
    Ok(written)
}

fn one_file_each(
    tables: Vec<tables::ExportTable<'_>>,
    output: &ExportTarget,
    extension: &str,
    write: impl Fn(tables::ExportTable<'_>, &std::fs::File) -> anyhow::Result<u64>,
) -> anyhow::Result<ExportSummary> {
    let folder = output.folder()?;
    let mut written = ExportSummary::default();
    let mut drafts = Vec::new();
    for table in tables {
        let draft = Draft::new(&folder.join(format!("{}.{extension}", table.name)))?;
        written.counts.push((table.name, write(table, draft.file())?));
        drafts.push(draft);
    }
    // Last, so that the folder never holds tables of two different exports.
    drafts.into_iter().try_for_each(Draft::keep)?;
    Ok(written)
}
