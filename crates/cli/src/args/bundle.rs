//! The arguments of `oomph bundle`.

use super::size;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph bundle oomph-recording                    writes oomph-bundle.zip
  oomph bundle --anonymize snapshot.pickle        without the names of your files, functions and modules
  oomph report oomph-bundle.zip                   every command accepts the bundle instead of the recording

A bundle has the snapshots, what the recorder wrote about them, and the report as JSON. If it would be
larger than --max-size, the heap files are left out first, then the oldest events.
--anonymize numbers the names of your files, functions, modules and tensors, keeps those of PyTorch and
other public packages, and leaves out the command, the host, exception texts and heap files.")]
pub(crate) struct BundleArgs {
    #[arg(required = true, value_name = "INPUT", help = super::INPUT_HELP)]
    pub(crate) inputs: Vec<PathBuf>,

    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "oomph-bundle.zip")]
    pub(crate) output: PathBuf,

    /// Replace names of files, functions, modules and tensors by numbers
    #[arg(long)]
    pub(crate) anonymize: bool,

    /// Largest size of the file
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "24MiB")]
    pub(crate) max_size: u64,

    /// Replace the file if it exists
    #[arg(long)]
    pub(crate) force: bool,
}
