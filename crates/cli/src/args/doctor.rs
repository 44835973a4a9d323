//! The arguments of `oomph doctor`.

use super::programs::InterpreterArgs;
use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph doctor                                 the Python that `oomph run` would use
  oomph doctor --python ~/venv/bin/python      another one

Records a small program on the CPU, and one on an emulated GPU. Takes no GPU memory.
Exit codes: 0 programs can be recorded, 1 they cannot.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) interpreter: InterpreterArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
