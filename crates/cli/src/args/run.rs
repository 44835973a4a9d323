//! The arguments of `oomph run`.

use super::programs::{EmulateArgs, ProgramArgs, steps};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph run [OPTIONS] SCRIPT [ARGS]...\n       \
        oomph run [OPTIONS] -m MODULE [ARGS]...\n       oomph run [OPTIONS] -- COMMAND...",
    after_help = "\
Examples:
  oomph run train.py --epochs 1                    record on this machine's GPU
  oomph run --emulate h100 -o recording train.py   record without a GPU
  oomph report recording
  oomph run --trace-driver train.py                split non-PyTorch memory by library
  oomph run --raise-on-leak train.py               stop a program whose memory grows every step
  oomph run --on-leak 'oomph report \"$OOMPH_RECORDING\" | mail -s leak me' train.py

The command of --on-leak gets OOMPH_RECORDING (the folder), OOMPH_MESSAGE, OOMPH_RANK, OOMPH_DEVICE,
OOMPH_STEP, OOMPH_BYTES_PER_STEP, OOMPH_ALLOCATED and OOMPH_PID.

Options go before the script; everything after it belongs to the program. The exit code is the
program's."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    /// Stop after N steps; default: run to the end
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) steps: Option<u32>,

    #[command(flatten)]
    pub(crate) emulate: EmulateArgs,

    /// Folder for the recording; default: `oomph-recording`, or the first unused of `oomph-recording-2`, …
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Replace a recording in that folder, or write next to other files in it
    #[arg(long, requires = "output")]
    pub(crate) force: bool,

    /// Keep the last N events of each device; default: a million
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_events: Option<u64>,

    /// Which steps to record with the stacks of their allocations
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = DetailArg::Auto)]
    pub(crate) detail: DetailArg,

    /// Record tensors on the CPU although there is a GPU; without a GPU they are recorded anyway
    #[arg(long, conflicts_with = "emulate")]
    pub(crate) cpu: bool,

    /// Count what each library takes from the CUDA driver, to split non-PyTorch memory by owner
    #[arg(long, conflicts_with_all = ["emulate", "cpu"])]
    pub(crate) trace_driver: bool,

    /// Hide the run from `oomph watch` and `oomph exporter`
    #[arg(long)]
    pub(crate) no_live: bool,

    /// Run a shell command when memory grows every step, once per rank and device; the program continues
    #[arg(long, value_name = "COMMAND")]
    pub(crate) on_leak: Option<OsString>,

    /// Raise `oomph.MemoryGrows` in a process whose memory grows step after step, at the end of a step
    #[arg(long)]
    pub(crate) raise_on_leak: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which steps are recorded with the stacks and modules of their allocations.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DetailArg {
    /// Steps that differ from the ones before; others are reported with the lines of the step they repeat
    Auto,
    /// All steps
    Full,
}

impl From<DetailArg> for launch::RecordingDetail {
    fn from(detail: DetailArg) -> launch::RecordingDetail {
        match detail {
            DetailArg::Auto => launch::RecordingDetail::Auto,
            DetailArg::Full => launch::RecordingDetail::Full,
        }
    }
}
