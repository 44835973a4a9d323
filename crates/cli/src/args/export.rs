//! The arguments of `oomph export`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph export --to parquet -o tables/ snapshot.pickle         one file per table
  oomph export --to sqlite -o snapshot.db snapshot.pickle      one database
  oomph export --to perfetto -o trace.pftrace snapshot.pickle  then open it in ui.perfetto.dev

The tables and their columns are described in docs/reference/tables.md.")]
pub(crate) struct ExportArgs {
    #[arg(
        value_name = "INPUT",
        help = "A snapshot, or a folder with one: pickle, `torch.save` zip or JSON, plain or compressed; \
        `-` for \
        standard input"
    )]
    pub(crate) input: PathBuf,

    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: ExportFormatArg,

    /// File to write; for parquet and arrow a folder, which gets one file per table
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// A format of `oomph export`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExportFormatArg {
    /// Apache Parquet, one file per table
    Parquet,
    /// Arrow IPC (Feather), one file per table
    Arrow,
    /// One SQLite database
    Sqlite,
    /// One JSON document
    Json,
    /// A Perfetto trace with memory counters
    Perfetto,
}

impl From<ExportFormatArg> for export::ExportFormat {
    fn from(format: ExportFormatArg) -> export::ExportFormat {
        match format {
            ExportFormatArg::Parquet => export::ExportFormat::Parquet,
            ExportFormatArg::Arrow => export::ExportFormat::Arrow,
            ExportFormatArg::Sqlite => export::ExportFormat::Sqlite,
            ExportFormatArg::Json => export::ExportFormat::Json,
            ExportFormatArg::Perfetto => export::ExportFormat::Perfetto,
        }
    }
}
