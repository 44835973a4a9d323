//! The arguments of `oomph predict`.

use super::gpu::names;
use super::programs::{EmulatedGpuArgs, ProgramArgs, steps};
use clap::Args;
use launch::{MAX_RANKS, RankChoice, TECHNIQUES, Vary, is_technique};
use std::path::PathBuf;

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

    /// Time limit in seconds for reaching later phases, such as evaluation, with repeating loops cut short
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: u64,

    #[command(flatten)]
    pub(crate) emulated: EmulatedGpuArgs,

    /// Number of machines with `--gpus` GPUs each, for a job of many ranks; default: as the launcher says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    pub(crate) nodes: Option<u32>,

    /// Ranks of the job to run besides rank 0, such as 3,7, or `all`; default: one for each position that
    /// differs
    #[arg(long, value_name = "RANKS", value_parser = RankChoice::parse)]
    pub(crate) ranks: Option<RankChoice>,

    /// Run again with an argument or environment variable changed: NAME=VALUE,VALUE… or NAME=MIN..MAX
    #[arg(long, value_name = "NAME=VALUES", value_parser = Vary::parse)]
    pub(crate) vary: Option<Vary>,

    /// Run again with techniques applied from outside: amp, checkpoint, batch/2, accumulate, set-to-none,
    /// fused, foreach-off, adafactor, offload, bf16, expandable; several at once with `+`
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
  oomph predict --gpu h100 --gpus 8 -- torchrun --nproc-per-node 8 train.py    every rank of a job
  oomph predict --gpu h100 --gpus 8 --nodes 64 -- torchrun --nproc-per-node 8 train.py
  oomph predict --gpu t4 -o recording/ train.py && oomph report recording/

The unmodified torch of your environment runs on a CUDA emulator whose kernels do nothing: memory
requests are real, values are not. torch.save writes nothing.
What that means: docs/explanation/emulation.md.

Options go before the script; everything after it belongs to the program.
GPUs: {cards}
Exit codes: 0 it fits, 1 it runs out of memory, at once or because memory grows from step to step, 2 error."
    )
}

fn technique(text: &str) -> Result<String, String> {
    match text.split('+').all(is_technique) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("expected some of {}, joined by `+`", TECHNIQUES.map(|(name, _)| name).join(", ")))
        }
    }
}
