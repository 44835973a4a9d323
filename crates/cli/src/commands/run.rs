//! `oomph run`: a program under the recorder, on this machine's GPU or on a pretended one, then its report.

use super::predict::{command, nothing_recorded, shown};
use super::report;
use crate::args::{ReportArgs, RunArgs};
use crate::child::{self, Folder, Job};
use crate::terminal::Terminal;
use std::process::ExitCode;

pub(crate) fn run(args: &RunArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let job = Job {
        command: command(args.program.python.as_deref(), &args.program.command),
        environment: Vec::new(),
        pretend: args.pretend.pretend(),
        // A recording is of the whole program, unless something else is asked for.
        steps: args.program.steps.or(Some(0)),
        techniques: Vec::new(),
        keep_files: false,
        is_quiet: false,
    };
    let folder = Folder::new(Some(&args.output))?;
    if let Some(pretend) = &job.pretend {
        terminal.say(&format!(
            "running {} on a pretended {}",
            shown(&args.program.command),
            pretend.card.name
        ));
    }
    let done = child::run(&job, &folder)?;
    if done.ranks.is_empty() {
        return Err(nothing_recorded(&done).into());
    }
    terminal.say(&format!("recorded in {}", args.output.display()));
    report::run(
        &ReportArgs { inputs: vec![args.output.clone()], json: args.json, ..ReportArgs::for_a_run() },
        terminal,
    )?;
    // Whoever runs us in place of Python expects Python's own answer.
    Ok(ExitCode::from(done.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)))
}
