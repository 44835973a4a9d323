//! The arguments of `oomph query`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph query run/ 'SELECT action, count(*), sum(size) FROM events GROUP BY action'
  oomph query --json --limit 1000 a.pickle 'SELECT * FROM blocks ORDER BY size DESC'

One SELECT in SQLite's dialect; only the columns that it names are read. Tables and columns:
docs/reference/tables.md.")]
pub(crate) struct QueryArgs {
    /// A snapshot, or a folder with one, as for `oomph export`
    #[arg(value_name = "INPUT")]
    pub(crate) input: PathBuf,

    /// The query
    #[arg(value_name = "SQL")]
    pub(crate) statement: String,

    /// Number of rows to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,

    /// Number of rows to skip
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) offset: u64,

    /// Time limit in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) time_limit: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
