//! `oomph run`: a program under the recorder, on this machine's GPU or on a pretended one, then its report.

use super::predict::{command, nothing_recorded, shown};
use super::report;
use crate::args::{ReportArgs, RunArgs};
use crate::child::{self, Done, Folder, Job};
use crate::terminal::Terminal;
use crate::{Host, Status};

/// A recording is of the whole program, unless something else is asked for.
const ALL_STEPS: u32 = 0;

pub(crate) fn run(args: &RunArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let command = command(&args.program, host);
    let job = Job::new(command, args.pretend.pretend(host), args.program.steps);
    let job = Job { max_events: args.max_events, is_on_cpu: args.cpu, ..job };
    let folder = Folder::new(Some(&args.output))?;
    let done = record(job, &shown(&args.program.command), &folder, terminal)?;
    terminal.say(&format!("recorded in {}", args.output.display()));
    report::run(
        &ReportArgs { inputs: vec![args.output.clone()], json: args.json, ..ReportArgs::for_a_run() },
        terminal,
    )?;
    // Whoever runs us in place of Python expects Python's own answer.
    Ok(done.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
}

/// Runs a program to its end, or for as many steps as it says, and expects a recording.
pub(super) fn record(job: Job, shown: &str, folder: &Folder, terminal: &Terminal) -> anyhow::Result<Done> {
    if let Some(pretend) = &job.pretend {
        terminal.say(&format!("running {shown} on a pretended {}", pretend.card.name));
    }
    let done = child::run(&Job { steps: job.steps.or(Some(ALL_STEPS)), ..job }, folder)?;
    if done.ranks.is_empty() {
        return Err(nothing_recorded(&done).into());
    }
    Ok(done)
}
