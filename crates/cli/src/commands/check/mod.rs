//! `oomph check`: a budget for memory, kept or broken.

mod baseline;
mod checkout;
mod compare;
mod ending;
mod github;
mod json;
mod judge;
mod junit;
mod measure;
mod replay;
mod text;

use crate::args::{self, CheckArgs, CheckFormat, Limits};
use crate::child::{Folder, Job, Output};
use crate::commands::predict::shown;
use crate::commands::run;
use crate::inputs;
use crate::terminal::{Failure, Terminal, shown_path};
use crate::{Host, Status};
use analysis::Answer;
use baseline::{Baseline, Context};
use checkout::Checkout;
use ending::Ending;
use judge::{Judgement, State};
use measure::{Found, Measured};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

pub(crate) fn run(args: &CheckArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let (command, inputs, limits) = (args.command(host), args.files(), &args.limits);
    if command.is_empty() && inputs.is_empty() {
        let hint = "name a snapshot, a script, or a command behind `--`";
        return Err(Failure::new("nothing to check", None, Some(hint)).into());
    }
    if limits.is_empty() {
        let place = if command.is_empty() { "" } else { " before the program" };
        let hint = format!(
            "add --max-peak SIZE, --no-leaks, --baseline FILE or another limit{place}: `oomph check --help`"
        );
        return Err(Failure::new("no limit was given", None, Some(&hint)).into());
    }
    // What is wrong with the baseline is said before the program runs for an hour.
    let former = limits.baseline.as_deref().map(|file| baseline::read(file, limits)).transpose()?.flatten();
    let folder;
    let (files, status) = if command.is_empty() {
        (inputs::expand(&inputs)?, None)
    } else {
        folder = Folder::new(Output::kept_if_named(args.output.as_deref(), args.force))?;
        let job = Job::new(command.clone(), args.emulate.gpu(host), args.steps);
        let done = run::record(job, &shown(&command), &folder, terminal)?;
        (done.ranks.into_iter().map(|rank| rank.snapshot).collect(), Some(done.status))
    };
    let (devices, context) = measure_all(&files, &command, status)?;
    let mut verdict = Verdict {
        devices: devices.into_iter().map(|device| Judged::new(device, limits)).collect(),
        notes: Vec::new(),
        written: None,
        recording: recording(&inputs, args),
    };
    if let Some(file) = &limits.baseline {
        verdict.hold_against(file, former.as_ref(), context, limits)?;
    }
    for output in args.outputs() {
        write(&verdict, &output, terminal)?;
    }
    Ok(verdict.code())
}

/// Measures every device of every rank. How the program ended decides whether its numbers mean anything.
fn measure_all(
    files: &[PathBuf],
    command: &[std::ffi::OsString],
    status: Option<ExitStatus>,
) -> anyhow::Result<(Vec<Measured>, Context)> {
    let checkout = Checkout::here();
    let (mut measured, mut endings, mut context) = (Vec::new(), Vec::new(), Context::default());
    for (place, file) in files.iter().enumerate() {
        let input = inputs::load(file)?;
        let ending = Ending::of(&input, status);
        context.learn(&input, command);
        for device in &input.devices() {
            let answer = Answer::new(device);
            measured.push(Measured::new(&input, place, &answer, &ending, &checkout));
        }
        endings.push(ending);
    }
    ending::refuse(&endings, status)?;
    // A history may have lost the event; that the program failed for it is known all the same.
    if endings.contains(&Ending::OutOfMemory) && measured.iter().all(|device| device.shortage.is_none()) {
        measured.iter_mut().take(1).for_each(|device| device.shortage = Some(Found::unseen_shortage()));
    }
    if measured.is_empty() {
        let cause = Some("nothing was ever allocated on a device".to_owned());
        let hint = "does the program use the GPU? does the recording begin before it does?";
        return Err(Failure::new("there is no memory to measure", cause, Some(hint)).into());
    }
    Ok((measured, context))
}

/// One device with all that is judged of it.
struct Judged {
    measured: Measured,
    judgements: Vec<Judgement>,
}

impl Judged {
    fn new(measured: Measured, limits: &Limits) -> Judged {
        let judgements = judge::judge(&measured, limits);
        Judged { measured, judgements }
    }
}

/// Everything that is said.
struct Verdict {
    devices: Vec<Judged>,
    /// What to know beside the verdict.
    notes: Vec<String>,
    /// What became of the baseline, where it was to be written.
    written: Option<String>,
    /// What `oomph report` takes, if it was kept.
    recording: Option<String>,
}

impl Verdict {
    fn judgements(&self) -> impl Iterator<Item = &Judgement> {
        self.devices.iter().flat_map(|device| &device.judgements)
    }

    fn state(&self) -> State {
        self.judgements().map(Judgement::state).max().unwrap_or(State::Kept)
    }

    /// What is certainly broken counts for more than what could not be measured.
    fn code(&self) -> Status {
        match self.state() {
            State::Kept => 0,
            State::Broken => 1,
            State::Unmeasured => 2,
        }
    }

    /// Compares with the baseline, or writes it.
    fn hold_against(
        &mut self,
        file: &Path,
        former: Option<&Baseline>,
        context: Context,
        limits: &Limits,
    ) -> anyhow::Result<()> {
        let Some(former) = former else {
            let broken = self.state();
            if broken != State::Kept {
                self.written = Some(format!("{} was not written: {}", shown_path(file), broken.words()));
                return Ok(());
            }
            let devices: Vec<&Measured> = self.devices.iter().map(|device| &device.measured).collect();
            self.written = Some(baseline::write(file, context, &devices)?);
            return Ok(());
        };
        let tolerance = limits.tolerance.unwrap_or_default();
        self.notes.extend(former.context.differences(&context));
        for device in &mut self.devices {
            let (judgement, note) = compare::compare(file, former, &device.measured, tolerance);
            device.judgements.push(judgement);
            self.notes.extend(note);
        }
        let measured = self.devices.iter().map(|device| &device.measured);
        let missing = compare::missing(file, former, measured);
        if let Some(first) = self.devices.first_mut() {
            first.judgements.extend(missing);
        }
        Ok(())
    }
}

/// What `oomph report` takes to say more: the inputs, or the folder in which a recording was kept.
fn recording(inputs: &[PathBuf], args: &CheckArgs) -> Option<String> {
    if inputs.is_empty() {
        return args.output.as_ref().map(shown_path);
    }
    Some(inputs.iter().map(shown_path).collect::<Vec<_>>().join(" "))
}

fn write(verdict: &Verdict, output: &args::Output, terminal: &mut Terminal) -> anyhow::Result<()> {
    let print = |terminal: &mut Terminal| match output.format {
        CheckFormat::Text => text::print(verdict, terminal),
        CheckFormat::Json => json::print(verdict, terminal),
        CheckFormat::Junit => junit::print(verdict, terminal),
        CheckFormat::Github => github::print(verdict, terminal),
    };
    let Some(file) = &output.file else { return print(terminal) };
    let mut page = Terminal::in_memory();
    print(&mut page)?;
    std::fs::write(file, page.kept().0).map_err(|error| {
        Failure::new(
            format!("`{}` cannot be written", shown_path(file)),
            Some(error.to_string()),
            Some("choose another place: --format FORMAT=FILE"),
        )
        .into()
    })
}
