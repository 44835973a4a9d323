//! The arguments of `oomph fit`.

use super::gpu::names;
use super::programs::{EmulatedGpuArgs, ProgramArgs};
use clap::Args;
use launch::TECHNIQUES;

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph fit --gpu NAME [OPTIONS] SCRIPT [ARGS]...\n       \
        oomph fit --gpu NAME [OPTIONS] -m MODULE [ARGS]...\n       \
        oomph fit --gpu NAME [OPTIONS] -- COMMAND...",
    after_help = fit_help()
)]
pub(crate) struct FitArgs {
    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    #[command(flatten)]
    pub(crate) emulated: EmulatedGpuArgs,

    /// Share of the GPU's memory that has to stay free, in percent
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = margin)]
    pub(crate) margin: f64,

    /// Techniques that may be used; default: all
    #[arg(long = "try", value_name = "TECHNIQUES", value_delimiter = ',', value_parser = technique)]
    pub(crate) techniques: Vec<String>,

    /// Time limit in seconds for reaching later phases, such as evaluation, in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) time_limit: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn fit_help() -> String {
    format!(
        "\
Examples:
  oomph fit --gpu rtx4090 train.py --batch-size 64
  oomph fit --gpu 24GiB --margin 10 train.py
  oomph fit --gpu l4 --try checkpoint,accumulate,amp train.py

Runs the program on an emulated GPU, as `oomph predict` does, with techniques switched on from outside:
each alone, with as few checkpointed layers and as large batches as fit, then combined. Every proposal
was run. The best is printed as a change to the program.

GPUs: {}
Exit codes: 0 it fits, as it is or with a change; 1 no change was found; 2 error.",
        names().join(" ")
    )
}

fn margin(text: &str) -> Result<f64, String> {
    let percent =
        text.trim_end_matches('%').parse::<f64>().ok().filter(|percent| (0.0..=90.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "expected a percentage from 0 to 90".to_owned())
}

fn technique(text: &str) -> Result<String, String> {
    // Half of the samples is no change that keeps the program what it is; `accumulate` is.
    let names: Vec<&str> =
        TECHNIQUES.iter().map(|(name, _)| *name).filter(|name| *name != "batch/2").collect();
    match names.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected some of {}", names.join(", "))),
    }
}
