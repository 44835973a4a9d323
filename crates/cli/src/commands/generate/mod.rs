//! `oomph completions` and `oomph man`: files for the shell and for `man`.

use crate::ExitCode;
use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::terminal::Terminal;
use clap::CommandFactory;

pub(crate) fn completions(args: &CompletionsArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    clap_complete::generate(args.shell, &mut Cli::command(), "oomph", terminal.out());
    Ok(0)
}

pub(crate) fn man(_: &ManArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    clap_mangen::Man::new(Cli::command()).render(terminal.out())?;
    Ok(0)
}
