//! `oomph simulate`: a recorded run under other allocator settings, on another card.

mod text;

use crate::ExitCode;
use crate::args::SimulateArgs;
use crate::commands::document::print_sorted;
use crate::terminal::{Failure, Progress, TALK, Terminal, shown_path};
use analysis::Device;
use documents::{SimulateDocument, VerificationReport};
use inputs::Input;
use launch::in_parallel;
use snapshot::{History, Snapshot};
use std::path::{Path, PathBuf};
use whatif::{Simulation, Trial, WhatIfOptions};

pub(crate) fn run(args: &SimulateArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let request = SimulateRequest { question: args.question(), output: args.output.clone(), json: args.json };
    simulate(&inputs::expand(&args.inputs)?, &request, terminal)
}

/// A question about recorded runs, and the form of the answer.
pub(crate) struct SimulateRequest {
    pub(crate) question: WhatIfOptions,
    /// Where to write the replayed run.
    pub(crate) output: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Simulates runs that are read from files.
pub(crate) fn simulate(
    files: &[PathBuf],
    request: &SimulateRequest,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    if request.question.verify {
        return verify(request, files, terminal);
    }
    let input = load(whatif::single_run(files)?, request, terminal)?;
    let devices = input.devices();
    replay(&input, &devices, request, terminal)
}

/// One what-if, or the search over many.
pub(crate) fn replay(
    input: &Input,
    devices: &[Device<'_>],
    request: &SimulateRequest,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let question = &request.question;
    let device = whatif::choose_device(devices, question, &input.name)?;
    let recorded = whatif::replayed_device(&input.name, device, question)?;
    let simulation = Simulation::new(&input.name, device, &recorded, question);
    if question.search {
        search(&simulation, request, terminal)
    } else {
        what_if(&simulation, request, terminal)
    }
}

/// A what-if for the page: the `--json` document and the replayed run; `say` receives its notes.
pub(super) fn replayed(
    name: &str,
    device: &Device<'_>,
    question: &WhatIfOptions,
    say: &dyn Fn(&str),
) -> anyhow::Result<(serde_json::Value, Snapshot)> {
    let recorded = whatif::replayed_device(name, device, question)?;
    let simulation = Simulation::new(name, device, &recorded, question);
    let trial = whatif::requested_trial(&simulation, say)?;
    let run = recorded.replayed(&trial.what, &trial.conf);
    Ok((serde_json::to_value(SimulateDocument::trial(&simulation, &trial))?, run))
}

fn load(file: &Path, request: &SimulateRequest, terminal: &Terminal) -> anyhow::Result<Input> {
    let mut input = inputs::load(file, &TALK)?;
    whatif::apply_known_settings(&mut input, &request.question, &|line| terminal.say(line))?;
    Ok(input)
}

fn what_if(
    simulation: &Simulation<'_>,
    request: &SimulateRequest,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let trial = whatif::requested_trial(simulation, &|line| terminal.say(line))?;
    if let Some(path) = &request.output {
        whatif::write_run(simulation, &trial, path)?;
    }
    if request.json {
        print_sorted(&SimulateDocument::trial(simulation, &trial), terminal)?;
    } else {
        text::what_if(simulation, &trial, request.output.as_deref(), terminal)?;
    }
    Ok(u8::from(!trial.fits()))
}

fn search(
    simulation: &Simulation<'_>,
    request: &SimulateRequest,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let trials = whatif::search(simulation, |confs, try_out| {
        let progress = Progress::new("trying settings", confs.len());
        in_parallel(confs, usize::MAX, |conf| {
            let trial = try_out(conf);
            progress.advance();
            trial
        })
    });
    let any_fits = trials.iter().any(Trial::fits);
    if request.json {
        print_sorted(&SimulateDocument::search(simulation, &trials), terminal)?;
    } else {
        text::search(simulation, &trials, terminal)?;
    }
    Ok(u8::from(!any_fits))
}

fn verify(request: &SimulateRequest, files: &[PathBuf], terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let mut comparison = Verifications::new(request, files.len());
    for file in files {
        let input = load(file, request, terminal)?;
        for device in input.snapshot.devices() {
            comparison.add(&input, &History::new(&input.snapshot, device), terminal)?;
        }
    }
    let name = files.first().map(shown_path).unwrap_or_default();
    comparison.finish(&name, terminal)
}

/// Comparisons of the model with recorded histories, added one by one.
pub(crate) struct Verifications<'a> {
    request: &'a SimulateRequest,
    inputs: usize,
    reports: Vec<VerificationReport>,
    all_identical: bool,
    followed: usize,
}

impl<'a> Verifications<'a> {
    pub(crate) fn new(request: &'a SimulateRequest, inputs: usize) -> Verifications<'a> {
        Verifications { request, inputs, reports: Vec::new(), all_identical: true, followed: 0 }
    }

    pub(crate) fn add(
        &mut self,
        input: &Input,
        history: &History,
        terminal: &mut Terminal,
    ) -> anyhow::Result<()> {
        if history.is_empty() {
            return Ok(());
        }
        let recorded = whatif::replayed_history(&input.snapshot, history, &self.request.question)?;
        self.followed += 1;
        self.all_identical &= recorded.verification().difference.is_none();
        if self.request.json {
            let settings =
                whatif::known_conf(&self.request.question).unwrap_or(&input.snapshot.settings.conf);
            self.reports.push(VerificationReport::new(input, history, &recorded, settings));
            return Ok(());
        }
        text::verification(input, history, &recorded, self.inputs == 1, terminal)
    }

    pub(crate) fn finish(self, name: &str, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
        if self.followed == 0 {
            return Err(Failure::new(
                format!("`{name}` has no events to compare"),
                Some("without a history there is nothing to verify".to_owned()),
                Some("record one with `torch.cuda.memory._record_memory_history()` before the run"),
            )
            .into());
        }
        if self.request.json {
            print_sorted(&SimulateDocument::verifications(self.reports), terminal)?;
        } else if self.inputs > 1 {
            text::verified(self.followed, self.all_identical, terminal)?;
        }
        Ok(u8::from(!self.all_identical))
    }
}
