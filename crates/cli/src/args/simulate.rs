//! The arguments of `oomph simulate`.

use super::{gpu_memory, size};
use allocator::Release;
use clap::Args;
use std::path::PathBuf;
use whatif::WhatIfOptions;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph simulate --search a.pickle                         settings that need less memory
  oomph simulate --gpu 24GiB a.pickle                      would it fit on a 24 GiB GPU
  oomph simulate --conf expandable_segments:True a.pickle  what one setting would have done
  oomph simulate --smallest-gpu --search a.pickle          the least memory for each setting
  oomph simulate --verify a.pickle                         does the model match the recording
  oomph simulate --conf max_split_size_mb:128 -o sim.pickle a.pickle && oomph report sim.pickle

Sizes: 24GiB, 512MiB, 80GB (decimal), or bytes. The model and its limits: docs/how-to/simulate.md.
Exit codes: 0 it fits, or all is identical; 1 it runs out of memory, or differs; 2 error.")]
pub(crate) struct SimulateArgs {
    #[arg(
        required = true,
        value_name = "INPUT",
        help = "A snapshot, as for `oomph report`; several, a folder or a glob with --verify"
    )]
    pub(crate) inputs: Vec<PathBuf>,

    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; default: the recorded ones
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) conf: Option<String>,

    /// The GPU to try, by its memory or its name; default: what the recorded run had available
    #[arg(long, value_name = "SIZE|NAME", value_parser = gpu_memory)]
    pub(crate) gpu: Option<u64>,

    /// Memory of that GPU that PyTorch cannot use: the CUDA context, libraries, other processes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "700MiB")]
    pub(crate) non_pytorch: u64,

    /// `set_per_process_memory_fraction`: a share of the GPU's memory (needs --gpu)
    #[arg(long, value_name = "SHARE", value_parser = fraction, conflicts_with = "limit", requires = "gpu")]
    pub(crate) fraction: Option<f64>,

    /// Memory limit of the process itself
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<u64>,

    /// Try common allocator settings and rank them
    #[arg(long, conflicts_with_all = ["conf", "verify", "output"])]
    pub(crate) search: bool,

    /// Find the smallest GPU memory that still works
    #[arg(long, conflicts_with = "verify")]
    pub(crate) smallest_gpu: bool,

    /// Compare every decision of the model with the recording, under the recorded settings
    #[arg(long)]
    pub(crate) verify: bool,

    /// Write the replayed run as a snapshot for other commands and PyTorch's viewer
    #[arg(short, long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) output: Option<PathBuf>,

    /// torch release whose rules to use, such as 2.11; default: the file's
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    pub(crate) torch: Option<Release>,

    /// The settings of the recorded run, where the file does not have them (torch 2.0 to 2.2)
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) recorded_conf: Option<String>,

    /// The device to replay; default: the one with the most events
    #[arg(long, value_name = "ORDINAL", conflicts_with = "verify")]
    pub(crate) device: Option<u32>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl SimulateArgs {
    /// The what-if question that the options ask.
    pub(crate) fn question(&self) -> WhatIfOptions {
        WhatIfOptions {
            conf: self.conf.clone(),
            gpu: self.gpu,
            non_pytorch: self.non_pytorch,
            fraction: self.fraction,
            limit: self.limit,
            search: self.search,
            smallest_gpu: self.smallest_gpu,
            verify: self.verify,
            torch: self.torch,
            recorded_conf: self.recorded_conf.clone(),
            device: self.device,
        }
    }
}

/// Default non-PyTorch memory of a process, in bytes.
pub const DEFAULT_NON_PYTORCH: u64 = 700 << 20;

fn fraction(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

/// Parses a torch release, such as `2.11`.
pub fn release(text: &str) -> Result<Release, String> {
    let minor = text.strip_prefix("2.").and_then(|rest| rest.split('.').next()?.parse().ok());
    minor
        .filter(|&minor| minor <= Release::NEWEST.0)
        .map(Release)
        .ok_or_else(|| format!("expected a release from 2.0 to {}", Release::NEWEST))
}
