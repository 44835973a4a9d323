//! The arguments of `oomph fleet` and `oomph summarize`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph fleet /shared/run                     all ranks below a folder
  oomph fleet s3://bucket/run                 in an object store; also gs://, az://, http(s)://
  oomph fleet --by pp /shared/run             one row per pipeline stage
  oomph fleet --rank 7 /shared/run            the whole report of one rank
  oomph fleet --to parquet -o tables/ run/    tables for DuckDB, Polars, Spark
  oomph fleet --engine ray s3://bucket/run    read where the data is, on a Ray cluster (RAY_ADDRESS)

Summaries that `oomph run` and `oomph summarize` leave next to snapshots are used if they match.")]
pub(crate) struct FleetArgs {
    /// Folders, globs, files, or addresses: s3://, gs://, az://, http(s)://
    #[arg(required = true, value_name = "URI")]
    pub(crate) inputs: Vec<String>,

    /// Dimension to compare by: one of the mesh such as pp or dp, node, or local_rank
    #[arg(long, value_name = "DIMENSION", conflicts_with_all = ["rank", "to", "list"])]
    pub(crate) by: Option<String>,

    /// Print the whole report of one rank
    #[arg(long, value_name = "N", conflicts_with_all = ["to", "list"])]
    pub(crate) rank: Option<u32>,

    /// Write the tables of all ranks, in folders job=…/rank=…
    #[arg(long, value_enum, value_name = "FORMAT", requires = "output", conflicts_with = "list")]
    pub(crate) to: Option<FleetFormatArg>,

    /// Folder for the tables
    #[arg(short, long, value_name = "DIR", requires = "to")]
    pub(crate) output: Option<PathBuf>,

    /// Where to read: on this machine, or on a Ray cluster
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = EngineArg::Local)]
    pub(crate) engine: EngineArg,

    /// Print the files of all ranks as JSON, and read none of them
    #[arg(long, conflicts_with = "json")]
    pub(crate) list: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "to")]
    pub(crate) json: bool,
}

/// Where the ranks are read.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EngineArg {
    /// On all cores of this machine
    Local,
    /// On a Ray cluster (`pip install oomph[ray]`)
    Ray,
}

/// A format of `oomph fleet --to`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FleetFormatArg {
    /// Apache Parquet
    Parquet,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph summarize /shared/run                   rankN.summary.arrow next to each snapshot
  oomph summarize -o summaries/ s3://bucket/run all of them in one folder
  oomph summarize -o - rank0.pickle > a.arrow   one, to standard output")]
pub(crate) struct SummarizeArgs {
    /// Folders, globs, files, or addresses: s3://, gs://, az://, http(s)://
    #[arg(required = true, value_name = "URI")]
    pub(crate) inputs: Vec<String>,

    /// Folder for the summaries, or `-` for standard output; default: next to each snapshot
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Write where the summary comes from into it, and for a file that cannot be read the reason
    #[arg(long, hide = true)]
    pub(crate) for_fleet: bool,
}
