//! `oomph completions`, `oomph man` and `oomph schema`: files for the shell, for `man` and for programs that
//! read our JSON.

use crate::ExitCode;
use crate::args::{Cli, CompletionsArgs, ManArgs, SchemaArgs};
use crate::commands::document;
use crate::terminal::Terminal;
use clap::CommandFactory;
use std::io::Write;

pub(crate) fn completions(args: &CompletionsArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    clap_complete::generate(args.shell, &mut Cli::command(), "oomph", terminal.out());
    Ok(0)
}

pub(crate) fn man(_: &ManArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    clap_mangen::Man::new(Cli::command()).render(terminal.out())?;
    Ok(0)
}

pub(crate) fn schema(args: &SchemaArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(command) => document::print(&documents::schema(command), terminal)?,
        None => {
            for command in documents::commands() {
                writeln!(terminal.out(), "{command}")?;
            }
        }
    }
    Ok(0)
}
