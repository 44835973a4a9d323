//! The arguments of `oomph doctor`.

use crate::Host;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph doctor                                 the Python that `oomph run` would use
  oomph doctor --python ~/venv/bin/python      another one

Records a small program on the CPU, and one on an emulated GPU. Takes no GPU memory.
Exit codes: 0 programs can be recorded, 1 they cannot.")]
pub(crate) struct DoctorArgs {
    /// The Python interpreter; default: the active environment's, the one oomph is installed for, or python3
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl DoctorArgs {
    pub(crate) fn python(&self, host: &Host) -> PathBuf {
        self.python.clone().unwrap_or_else(|| super::programs::python(host))
    }
}
