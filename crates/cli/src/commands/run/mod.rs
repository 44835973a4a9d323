//! `oomph run`: a program under the recorder, on this machine's GPU or on an emulated one, then its report.

use crate::args::{ReportArgs, RunArgs};
use crate::commands::{report, summarize};
use crate::terminal::{Failure, TALK, Terminal};
use crate::{ExitCode, Host};
use launch::{
    CompletedRun, DEFAULT_FOLDER, Job, OutputFolder, ProgramOutput, RunFolder, command_text, nothing_recorded,
};
use std::path::PathBuf;

/// A recording is of the whole program, unless something else is asked for.
const ALL_STEPS: u32 = 0;

pub(crate) fn run(args: &RunArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let command = args.program.command(host);
    let job = Job::new(command, args.emulate.gpu(host), args.steps, TALK);
    let tracer = args.trace_driver.then(|| launch::tracer_library(host)).transpose()?;
    let output = if args.json { ProgramOutput::Stderr } else { ProgramOutput::Inherited };
    let job = Job {
        max_events: args.max_events,
        detail: args.detail.into(),
        is_on_cpu: args.cpu,
        tracer,
        keep_files: args.emulate.keep_files,
        on_leak: args.on_leak.clone(),
        raise_on_leak: args.raise_on_leak,
        output,
        is_live: !args.no_live,
        ..job
    };
    let output = args.output.as_deref();
    let output =
        output.map_or(OutputFolder::Default, |folder| OutputFolder::Named { folder, force: args.force });
    let folder = RunFolder::new(output)?;
    let recording = folder.shown();
    if args.output.is_none() && recording != DEFAULT_FOLDER {
        terminal.say(&format!("{DEFAULT_FOLDER} exists: recording to {recording}"));
    }
    let done = launch::run(&recorded(job, &command_text(args.program.words()), terminal), &folder)?;
    // If nothing was recorded, the error below names them.
    for problem in done.problems.iter().filter(|_| !done.ranks.is_empty()) {
        terminal.say(&format!("part of the recording is missing: {problem}"));
    }
    // Callers that run oomph in place of Python expect Python's exit code.
    if done.ranks.is_empty() {
        let failure = nothing_recorded(&done);
        // The program itself has done what it should.
        if done.status.success() {
            terminal.warning(&failure)
        } else {
            terminal.failure(&failure)
        }
        return Ok(done.exit_code());
    }
    terminal.say(&format!("recorded in {recording}"));
    let snapshots: Vec<PathBuf> = done.ranks.iter().map(|rank| rank.snapshot.clone()).collect();
    if snapshots.len() > 1 || launch::launcher_rank().is_some() {
        summarize::write_next_to(&snapshots, terminal);
    }
    // Under a launcher each rank has its own `oomph run`: rank 0 reports on itself, since the others may
    // still be writing.
    if launch::launcher_rank().is_some_and(|rank| rank != 0) {
        return Ok(done.exit_code());
    }
    let report = ReportArgs { inputs: snapshots, json: args.json, ..ReportArgs::for_new_run() };
    if let Err(error) = report::run(&report, terminal) {
        terminal.failure(&Failure::from(error));
    }
    Ok(done.exit_code())
}

/// Runs a program to its end, or for as many steps as it says, and expects a recording.
pub(super) fn record(
    job: Job,
    shown: &str,
    folder: &RunFolder,
    terminal: &Terminal,
) -> anyhow::Result<CompletedRun> {
    let done = launch::run_to_end(&recorded(job, shown, terminal), folder)?;
    if done.ranks.is_empty() { Err(nothing_recorded(&done).into()) } else { Ok(done) }
}

/// A job that records the whole program, unless something else is asked for.
fn recorded(job: Job, shown: &str, terminal: &Terminal) -> Job {
    if let Some(emulated) = &job.emulated {
        terminal.say(&format!("running {shown} on an emulated {}", emulated.model.name));
    }
    Job { steps: job.steps.or(Some(ALL_STEPS)), ..job }
}
