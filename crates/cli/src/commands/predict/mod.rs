//! `oomph predict`: the program on an emulated card. Does it fit, what fills it, how certain is that.

mod job_text;
mod text;

pub(crate) use text::confidence;

use crate::args::{PredictArgs, ReportArgs};
use crate::commands::document;
use crate::terminal::{TALK, Terminal};
use crate::{ExitCode, Host};
use documents::{PredictDocument, PredictedProgram};
use launch::{Job, OutputFolder, Prediction, ProgramOutput, RunFolder, Variants, command_text, predict};
use std::time::Duration;

pub(crate) fn run(args: &PredictArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let job = job(args, host);
    let folder = RunFolder::new(OutputFolder::named_or_temporary(args.output.as_deref(), args.force))?;
    let shown = command_text(args.program.words());
    let name = args.emulated.gpu.name;
    let follows = if args.quiet { "" } else { "; its own output follows" };
    terminal.say(&format!("running {shown} on an emulated {name}{follows}"));
    // Starts while the program runs as it is.
    let has_variants = args.vary.is_some() || !args.techniques.is_empty();
    let for_variants = if has_variants { job.with_template() } else { job.clone() };
    let prediction = predict(&job, &folder, args.once)?;
    let variants = Variants::run(args.vary.as_ref(), &args.techniques, &for_variants)?;
    let answer = PredictAnswer { args, shown, prediction, variants };
    if args.json {
        let program = PredictedProgram {
            command: &answer.shown,
            gpu: &args.emulated.gpu,
            gpus: args.emulated.gpus,
            prediction: &answer.prediction,
            variants: &answer.variants,
        };
        let options = (&ReportArgs::for_new_run()).into();
        document::print(&PredictDocument::new(&program, &options), terminal)?;
    } else {
        text::print(&answer, terminal)?;
    }
    // What was found before Ctrl-C is printed.
    terminal.flush()?;
    launch::check_not_stopped()?;
    Ok(u8::from(!answer.prediction.verdict.fits()))
}

/// Everything that the output shows.
pub(super) struct PredictAnswer<'a> {
    pub(super) args: &'a PredictArgs,
    pub(super) shown: String,
    pub(super) prediction: Prediction,
    pub(super) variants: Variants,
}

fn job(args: &PredictArgs, host: &Host) -> Job {
    let command = args.program.command(host);
    let job = Job::new(command, Some(args.emulated.gpu(host)), args.steps, TALK);
    let output = if args.quiet { ProgramOutput::Captured } else { ProgramOutput::Stderr };
    let time_limit = args.steps.is_none().then(|| Duration::from_secs(args.time_limit));
    let job = Job { keep_files: args.keep_files, output, time_limit, ..job };
    job.with_ranks(args.nodes, args.ranks.clone(), &args.program.interpreter(host))
}
