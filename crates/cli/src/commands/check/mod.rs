//! `oomph check`: a budget for memory, kept or broken.

mod github;
mod junit;
mod text;

use crate::args::{CheckArgs, CheckFormat, CheckOutput};
use crate::commands::{document, run};
use crate::terminal::{Failure, TALK, Terminal, shown_path};
use crate::{ExitCode, Host};
use documents::CheckDocument;
use gate::{Budget, BudgetVerdict};
use launch::{Job, OutputFolder, RunFolder, command_text};
use std::path::PathBuf;

pub(crate) fn run(args: &CheckArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let (command, inputs, limits) = (args.command(host), args.files(), Budget::from(&args.limits));
    if command.is_empty() && inputs.is_empty() {
        let hint = "name a snapshot, a script, or a command after `--`";
        return Err(Failure::new("nothing to check", None, Some(hint)).into());
    }
    if limits.is_empty() {
        let place = if command.is_empty() { "" } else { " before the program" };
        let hint = format!(
            "add --max-peak SIZE, --no-leaks, --baseline FILE or another limit{place}: `oomph check --help`"
        );
        return Err(no_limit(&hint).into());
    }
    // A broken baseline is reported before the program runs for an hour.
    let former = limits.read_baseline()?;
    let folder;
    let (files, status) = if command.is_empty() {
        (inputs::expand(&inputs)?, None)
    } else {
        folder = RunFolder::new(OutputFolder::named_or_temporary(args.output.as_deref(), args.force))?;
        let job = Job::new(command.clone(), args.emulate.gpu(host), args.steps, TALK);
        let job = Job { keep_files: args.emulate.keep_files, ..job };
        let done = run::record(job, &command_text(&command), &folder, terminal)?;
        (done.ranks.into_iter().map(|rank| rank.snapshot).collect(), Some(done.status))
    };
    let verdict = BudgetVerdict::new(&files, &command, status, &limits, former.as_ref(), &TALK)?;
    let answer = CheckAnswer { verdict, recording: recording(&inputs, args) };
    for output in args.outputs() {
        write(&answer, &output, terminal)?;
    }
    Ok(answer.verdict.state().exit_code())
}

/// Checks recordings that exist.
pub(crate) fn recordings(
    files: &[PathBuf],
    limits: &Budget,
    json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    if limits.is_empty() {
        return Err(no_limit("give `max_peak`, `no_leaks`, `baseline` or another limit").into());
    }
    let former = limits.read_baseline()?;
    let verdict = BudgetVerdict::new(files, &[], None, limits, former.as_ref(), &TALK)?;
    if json {
        document::print_sorted(&CheckDocument::new(&verdict), terminal)?;
    } else {
        let shown: Vec<String> = files.iter().map(shown_path).collect();
        text::print(&verdict, Some(&shown.join(" ")), terminal)?;
    }
    Ok(verdict.state().exit_code())
}

fn no_limit(hint: &str) -> Failure {
    Failure::new("no limit was given", None, Some(hint))
}

/// The verdict, and the recording that it is about.
struct CheckAnswer {
    verdict: BudgetVerdict,
    recording: Option<String>,
}

/// Inputs for `oomph report`: those checked, or the folder of the kept recording.
fn recording(inputs: &[PathBuf], args: &CheckArgs) -> Option<String> {
    if inputs.is_empty() {
        return args.output.as_ref().map(shown_path);
    }
    Some(inputs.iter().map(shown_path).collect::<Vec<_>>().join(" "))
}

fn write(answer: &CheckAnswer, output: &CheckOutput, terminal: &mut Terminal) -> anyhow::Result<()> {
    let print = |terminal: &mut Terminal| match output.format {
        CheckFormat::Text => text::print(&answer.verdict, answer.recording.as_deref(), terminal),
        CheckFormat::Json => document::print_sorted(&CheckDocument::new(&answer.verdict), terminal),
        CheckFormat::Junit => junit::print(&answer.verdict, terminal),
        CheckFormat::Github => github::print(&answer.verdict, terminal),
    };
    let Some(file) = &output.file else { return print(terminal) };
    let mut page = Terminal::in_memory();
    print(&mut page)?;
    std::fs::write(file, page.kept().0).map_err(|error| {
        Failure::new(
            format!("`{}` cannot be written", shown_path(file)),
            Some(error.to_string()),
            Some("choose another path: --format FORMAT=FILE"),
        )
        .into()
    })
}
