//! The arguments of `oomph diff`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph diff before.pickle after.pickle        did the change help, and where
  oomph diff monday/ tuesday/                  two folders with the same ranks
  oomph diff --json a.pickle b.pickle | jq .pairs[0].findings")]
pub(crate) struct DiffArgs {
    /// The run to compare with: a snapshot, or a folder of ranks
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,

    /// The run to look at
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,

    /// Number of lines to show; the rest is summed
    #[arg(long, value_name = "N", default_value_t = DiffArgs::TOP)]
    pub(crate) top: usize,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl DiffArgs {
    pub(crate) const TOP: usize = 10;
}
