//! `oomph run`: a program under the recorder, on this machine's GPU or on a pretended one, then its report.

use super::predict::{command, nothing_recorded, shown};
use super::report;
use crate::args::{ReportArgs, RunArgs};
use crate::child::{self, Done, Folder, Job, Words};
use crate::terminal::{Failure, Terminal};
use crate::{Host, Status};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A recording is of the whole program, unless something else is asked for.
const ALL_STEPS: u32 = 0;

pub(crate) fn run(args: &RunArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let command = command(&args.program, host);
    let job = Job::new(command, args.pretend.pretend(host), args.program.steps);
    let words = if args.json { Words::Talk } else { Words::Own };
    let job = Job {
        max_events: args.max_events,
        is_on_cpu: args.cpu,
        on_leak: args.on_leak.clone(),
        raise_on_leak: args.raise_on_leak,
        words,
        is_live: !args.no_live,
        ..job
    };
    let folder = Folder::new(Some(&args.output))?;
    let done = run_job(job, &shown(&args.program.command), &folder, terminal)?;
    // Whoever runs us in place of Python expects Python's own exit code, whatever else there is to say.
    if done.ranks.is_empty() {
        terminal.failure(&nothing_recorded(&done));
        return Ok(code(done.status));
    }
    terminal.say(&format!("recorded in {}", crate::terminal::shown_path(&args.output)));
    // Under a launcher each rank has its own `oomph run`; one of them speaks, and of itself: the others may still write.
    let inputs = match child::launched_as() {
        None => vec![args.output.clone()],
        Some(0) => done.ranks.iter().map(|rank| rank.snapshot.clone()).collect(),
        Some(_) => return Ok(code(done.status)),
    };
    let report = ReportArgs { inputs, json: args.json, ..ReportArgs::for_a_run() };
    if let Err(error) = report::run(&report, terminal) {
        terminal.failure(&Failure::from(error));
    }
    Ok(code(done.status))
}

/// The exit code that a shell would give.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(2)
}

/// Runs a program to its end, or for as many steps as it says, and expects a recording.
pub(super) fn record(job: Job, shown: &str, folder: &Folder, terminal: &Terminal) -> anyhow::Result<Done> {
    let done = run_job(job, shown, folder, terminal)?;
    if done.ranks.is_empty() { Err(nothing_recorded(&done).into()) } else { Ok(done) }
}

fn run_job(job: Job, shown: &str, folder: &Folder, terminal: &Terminal) -> anyhow::Result<Done> {
    if let Some(pretend) = &job.pretend {
        terminal.say(&format!("running {shown} on a pretended {}", pretend.card.name));
    }
    child::run(&Job { steps: job.steps.or(Some(ALL_STEPS)), ..job }, folder)
}
