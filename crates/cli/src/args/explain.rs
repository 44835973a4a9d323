//! The arguments of `oomph explain`.

use super::gpu::GpuParser;
use clap::Args;
use launch::GpuModel;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph explain train.log                  a whole log, of one rank or many
  oomph explain                            paste the message, then Ctrl-D
  python train.py 2>&1 | oomph explain     a program's output
  dmesg | oomph explain                    what Linux killed
  oomph explain --gpu h100 serve.log       vLLM or SGLang: whether to raise or lower the setting
  oomph explain --json train.log | jq .    for programs

What each kind of message means: docs/reference/messages.md.")]
pub(crate) struct ExplainArgs {
    /// A log, or a file with the message; `-` or none for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// The GPU of vLLM or SGLang, if its log does not say how large it is: a name, or its memory
    #[arg(long, value_name = "NAME|SIZE", value_parser = GpuParser, hide_possible_values = true)]
    pub(crate) gpu: Option<GpuModel>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
