//! `oomph attach`: the report of a running process that was started without oomph.

use crate::ExitCode;
use crate::args::{AttachArgs, HoldersArgs, ReportArgs};
use crate::commands::{holders, report};
use crate::terminal::{TALK, Terminal};
use launch::{AttachRequest, OutputFolder};
use std::io::Write;

pub(crate) fn run(args: &AttachArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let output = args.output.as_deref();
    let recording = launch::attach(&AttachRequest {
        pid: args.pid,
        duration: args.duration,
        steps: args.steps,
        timeout: args.timeout,
        has_holders: !args.no_holders,
        output: output
            .map_or(OutputFolder::Default, |folder| OutputFolder::Named { folder, force: args.force }),
        progress: TALK,
    })?;
    for problem in &recording.problems {
        terminal.say(&format!("part of the recording is missing: {problem}"));
    }
    let pause = recording.pause.map(|pause| format!("; the program paused for {:.2} s", pause.as_secs_f64()));
    terminal.say(&format!("recorded in {}{}", recording.folder, pause.unwrap_or_default()));
    let (inputs, snapshots) = (recording.snapshots.clone(), recording.snapshots);
    let code = report::run(&ReportArgs { inputs, json: args.json, ..ReportArgs::for_new_run() }, terminal)?;
    if !args.no_holders && !args.json {
        writeln!(terminal.out())?;
        holders::run(&HoldersArgs { inputs: snapshots, ..HoldersArgs::of_process(None, false) }, terminal)?;
    }
    Ok(code)
}
