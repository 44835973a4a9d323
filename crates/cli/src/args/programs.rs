//! The arguments of commands that run a program.

use super::gpu::{GpuParser, names};
use super::size;
use crate::Host;
use clap::{Args, ValueEnum};
use launch::{EmulatedGpu, GpuModel, TECHNIQUES, Vary};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A program to run.
#[derive(Args, Debug)]
pub(crate) struct ProgramArgs {
    /// The script or `-m MODULE`, and its arguments
    #[arg(required_unless_present = "command", value_name = "SCRIPT", allow_hyphen_values = true)]
    pub(crate) script: Vec<OsString>,

    /// A command that runs Python, such as `python train.py` or `torchrun train.py`, and its arguments
    #[arg(last = true, value_name = "COMMAND", allow_hyphen_values = true, conflicts_with = "script")]
    pub(crate) command: Vec<OsString>,

    /// The Python interpreter; default: the active environment's, the one oomph is installed for, or python3
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
}

impl ProgramArgs {
    /// The program as the user wrote it.
    pub(crate) fn words(&self) -> &[OsString] {
        if self.script.is_empty() { &self.command } else { &self.script }
    }

    /// The command to run. A script or `-m MODULE` is run by the interpreter, also after `--`.
    pub(crate) fn command(&self, host: &Host) -> Vec<OsString> {
        if self.script.is_empty() && !is_script(&self.command) {
            return self.command.clone();
        }
        let python = self.python.clone().unwrap_or_else(|| python(host));
        std::iter::once(python.into_os_string()).chain(self.words().iter().cloned()).collect()
    }
}

/// The interpreter of the active environment, or the one oomph is installed for, or python3.
pub(super) fn python(host: &Host) -> PathBuf {
    let active = std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin/python"));
    let active = active.filter(|path| path.exists());
    active.or_else(|| host.python.clone()).unwrap_or_else(|| PathBuf::from("python3"))
}

/// Whether these words are for the interpreter: `train.py …`, `-m MODULE …`, `- …`.
pub(super) fn is_script(words: &[OsString]) -> bool {
    words.first().is_some_and(|first| {
        first == "-m" || first == "-" || Path::new(first).extension().is_some_and(|ending| ending == "py")
    })
}

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph predict --gpu NAME [OPTIONS] SCRIPT [ARGS]...\n       \
        oomph predict --gpu NAME [OPTIONS] -m MODULE [ARGS]...\n       \
        oomph predict --gpu NAME [OPTIONS] -- COMMAND...",
    after_help = predict_help()
)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    /// Stop after N steps, or `all` to run everything; default: each loop until its memory repeats
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) steps: Option<u32>,

    /// Seconds to look for later phases, such as evaluation, by cutting loops over data loaders short
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: u64,

    /// The GPU to emulate: a name, or the memory of any GPU
    #[arg(long, value_name = "NAME|SIZE", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: GpuModel,

    /// Memory of the GPU, if not the usual size
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) gpu_memory: Option<u64>,

    /// Number of such GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) gpus: u32,

    /// Run again with an argument or environment variable changed: NAME=VALUE,VALUE… or NAME=MIN..MAX
    #[arg(long, value_name = "NAME=VALUES", value_parser = Vary::parse)]
    pub(crate) vary: Option<Vary>,

    /// Run again with techniques applied from outside: amp, checkpoint, batch/2, accumulate, set-to-none,
    /// fused, foreach-off, offload, bf16, expandable; several at once with `+`
    #[arg(long = "try", value_name = "TECHNIQUES", value_delimiter = ',', value_parser = technique)]
    pub(crate) techniques: Vec<String>,

    /// Skip the second run that tests whether values only a real GPU computes matter
    #[arg(long)]
    pub(crate) once: bool,

    /// Let the program write checkpoints, although their values are not computed
    #[arg(long)]
    pub(crate) keep_files: bool,

    /// Keep the recording in this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Replace a recording in that folder, or write next to other files in it
    #[arg(long, requires = "output")]
    pub(crate) force: bool,

    /// Do not show the program's own output
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn predict_help() -> String {
    let cards = names().join(" ");
    format!(
        "\
Examples:
  oomph predict --gpu l4 train.py --batch-size 16              does it fit on an L4
  oomph predict --gpu h100 --vary batch-size=8,16,32 train.py  one run for each
  oomph predict --gpu a10g --vary batch-size=1..512 train.py   the largest batch that fits
  oomph predict --gpu rtx4090 --try amp,checkpoint,amp+checkpoint,expandable train.py
  oomph predict --gpu h100 --gpus 2 -m torch.distributed.run --nproc-per-node 2 train.py
  oomph predict --gpu t4 -o recording/ train.py && oomph report recording/

The unmodified torch of your environment runs on a CUDA emulator whose kernels do nothing: memory
requests are real, values are not. torch.save writes nothing.
What that means: docs/explanation/emulation.md.

Options go before the script; everything after it belongs to the program.
GPUs: {cards}
Exit codes: 0 it fits, 1 it runs out of memory, at once or because memory grows from step to step, 2 error."
    )
}

/// A GPU to emulate, where that is a choice.
#[derive(Args, Debug)]
pub(crate) struct EmulateArgs {
    /// Run on an emulated GPU instead of a real one; same models as `oomph predict`
    #[arg(long, value_name = "NAME|SIZE", value_parser = GpuParser, hide_possible_values = true)]
    emulate: Option<GpuModel>,

    /// Memory of the emulated GPU, if not the usual size
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "emulate")]
    gpu_memory: Option<u64>,

    /// Number of such GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus: u32,
}

impl EmulateArgs {
    pub(crate) fn gpu(&self, host: &Host) -> Option<EmulatedGpu> {
        Some(EmulatedGpu::new(self.emulate.as_ref()?, self.gpu_memory, self.gpus, host))
    }
}

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph run [OPTIONS] SCRIPT [ARGS]...\n       \
        oomph run [OPTIONS] -m MODULE [ARGS]...\n       oomph run [OPTIONS] -- COMMAND...",
    after_help = "\
Examples:
  oomph run train.py --epochs 1                    record on this machine's GPU
  oomph run --emulate h100 -o recording train.py   record without a GPU
  oomph report recording
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

fn technique(text: &str) -> Result<String, String> {
    let names = TECHNIQUES.map(|(name, _)| name);
    match text.split('+').all(|name| names.contains(&name)) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected some of {}, joined by `+`", names.join(", "))),
    }
}

/// A number of steps; 0 stands for all.
pub(super) fn steps(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(0),
        _ => text
            .parse()
            .ok()
            .filter(|&steps| steps > 0)
            .ok_or_else(|| "expected a number or `all`".to_owned()),
    }
}
