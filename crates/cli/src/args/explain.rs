//! The arguments of `oomph explain`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph explain train.log                  a whole log, of one rank or many
  oomph explain                            paste the message, then Ctrl-D
  python train.py 2>&1 | oomph explain     a program's output
  dmesg | oomph explain                    what Linux killed
  oomph explain --json train.log | jq .    for programs

What each kind of message means: docs/reference/messages.md.")]
pub(crate) struct ExplainArgs {
    /// A log, or a file with the message; `-` or none for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
