//! `oomph fit`: the cheapest change with which the program fits on a card.

mod text;

use crate::args::FitArgs;
use crate::commands::document;
use crate::terminal::{TALK, Terminal};
use crate::{ExitCode, Host};
use documents::{FitDocument, FittedProgram};
use fit::FitOptions;
use launch::{Job, ProgramOutput, command_text};
use std::time::Duration;

pub(crate) fn run(args: &FitArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let job = Job {
        output: ProgramOutput::Captured,
        time_limit: Some(Duration::from_secs(args.time_limit)),
        ..Job::new(args.program.command(host), Some(args.emulated.gpu(host)), None, TALK)
    };
    let shown = command_text(args.program.words());
    terminal.say(&format!("running {shown} on an emulated {}", args.emulated.gpu.name));
    let options = FitOptions { techniques: args.techniques.clone(), margin: args.margin };
    let found = fit::fit(&job, &options)?;
    let program =
        FittedProgram { command: &shown, gpu: &args.emulated.gpu, gpus: args.emulated.gpus, fit: &found };
    match args.json {
        true => document::print(&FitDocument::new(&program), terminal)?,
        false => text::print(args, &program, terminal)?,
    }
    // What was found before Ctrl-C is printed.
    terminal.flush()?;
    launch::check_not_stopped()?;
    Ok(u8::from(!found.fits_already() && found.proposals.is_empty()))
}
