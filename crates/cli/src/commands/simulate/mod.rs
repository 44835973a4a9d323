//! `oomph simulate`: a recorded run under other allocator settings, on another card.

mod caveat;
mod json;
mod text;

use crate::Status;
use crate::args::SimulateArgs;
use crate::terminal::{Failure, Progress, TALK, Terminal, shown_path};
use allocator::{Conditions, Conf, Given, Outcome, Recorded, Release, WhatIf, worth_trying};
use analysis::Device;
use inputs::Input;
use launch::in_parallel;
use snapshot::{History, Snapshot, TorchRange};
use std::path::Path;

pub(crate) fn run(args: &SimulateArgs, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let files = inputs::expand(&args.inputs)?;
    if args.verify {
        return verify(args, &files, terminal);
    }
    let input = load(only(&files)?, args, terminal)?;
    let devices = input.devices();
    replay(&input, &devices, args, terminal)
}

/// A what-if is about one run.
pub(crate) fn only<T>(runs: &[T]) -> anyhow::Result<&T> {
    let [run] = runs else {
        return Err(Failure::new(
            format!("{} files were given", runs.len()),
            Some("a what-if is about one run".to_owned()),
            Some("name one of them; `--verify` takes several"),
        )
        .into());
    };
    Ok(run)
}

/// Whether the question is about the run as the file has it: no other release, no settings that it lacks.
pub(crate) fn is_as_recorded(args: &SimulateArgs) -> bool {
    args.torch.is_none() && given_conf(args).is_none()
}

/// One what-if, or the search over many.
pub(crate) fn replay(
    input: &Input,
    devices: &[Device<'_>],
    args: &SimulateArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<Status> {
    let device = chosen(devices, args, &input.name)?;
    let recorded = follow(&input.name, device, args)?;
    let scene = Scene::new(&input.name, device, &recorded, args);
    if args.search { search(&scene, terminal) } else { what_if(&scene, terminal) }
}

/// The run of a device, followed by the model.
fn follow<'a>(name: &str, device: &'a Device<'a>, args: &SimulateArgs) -> anyhow::Result<Recorded<'a>> {
    if device.is_cpu() {
        return Err(Failure::new(
            format!("`{name}` is about the memory of a CPU"),
            Some("what is simulated is PyTorch's allocator for GPUs".to_owned()),
            Some("`oomph report` explains it; `oomph predict` runs a program on an emulated GPU"),
        )
        .into());
    }
    recorded(device.snapshot, &device.history, args)
}

/// One what-if as the page asks for it: what `--json` prints, and the replayed run.
pub(super) fn replayed(
    name: &str,
    device: &Device<'_>,
    args: &SimulateArgs,
    terminal: &Terminal,
) -> anyhow::Result<(serde_json::Value, Snapshot)> {
    let recorded = follow(name, device, args)?;
    let scene = Scene::new(name, device, &recorded, args);
    let trial = asked(&scene, terminal)?;
    let run = recorded.replayed(&trial.what, &trial.conf);
    Ok((json::trial(&scene, &trial), run))
}

/// One recorded run and what is asked about it.
pub(super) struct Scene<'a> {
    /// What the input is called.
    pub(super) name: &'a str,
    pub(super) device: &'a Device<'a>,
    pub(super) recorded: &'a Recorded<'a>,
    pub(super) args: &'a SimulateArgs,
    /// The memory that the recorded run could have.
    conditions: Conditions,
}

/// A settings string with how the run went under it.
pub(super) struct Trial {
    pub(super) conf: String,
    pub(super) what: WhatIf,
    pub(super) outcome: Outcome,
    /// The least memory of a card that works, if it was asked for and there is one.
    pub(super) smallest: Option<u64>,
    asked_smallest: bool,
}

impl Trial {
    /// What settings are ranked by: the least card that works, if that was asked for, otherwise the peak.
    pub(super) fn memory(&self) -> u64 {
        if self.asked_smallest { self.smallest.unwrap_or(u64::MAX) } else { self.outcome.peak_reserved }
    }

    pub(super) fn fits(&self) -> bool {
        self.outcome.oom.is_none()
    }
}

impl<'a> Scene<'a> {
    fn new(
        name: &'a str,
        device: &'a Device<'a>,
        recorded: &'a Recorded<'a>,
        args: &'a SimulateArgs,
    ) -> Scene<'a> {
        Scene { name, device, recorded, args, conditions: recorded.conditions() }
    }

    /// A card of some size, or the conditions of the recorded run, under some settings.
    fn what(&self, conf: &Conf, total: Option<u64>) -> WhatIf {
        let conf = conf.clone();
        let Some(total) = total else {
            let Conditions { available, limit } = self.conditions;
            return WhatIf { conf, total: None, available, limit: self.args.limit.or(limit) };
        };
        let share = self.args.fraction.or((conf.memory_fraction < 1.0).then_some(conf.memory_fraction));
        let limit = share.and_then(|share| self.recorded.release.limit(share, total));
        let available = Some(total.saturating_sub(self.args.outside));
        WhatIf { conf, total: Some(total), available, limit: self.args.limit.or(limit) }
    }

    fn try_out(&self, text: &str, conf: &Conf) -> Trial {
        let what = self.what(conf, self.args.gpu);
        let outcome = self.recorded.simulate(&what);
        // Where one card is asked about and it is too small, the next question is by how much.
        let is_too_small = outcome.oom.is_some() && self.args.gpu.is_some() && !self.args.search;
        let smallest = (self.args.smallest_gpu || is_too_small)
            .then(|| self.recorded.smallest(|total| self.what(conf, Some(total))))
            .flatten();
        let asked_smallest = self.args.smallest_gpu;
        Trial { conf: text.to_owned(), what, outcome, smallest, asked_smallest }
    }

    /// The settings string of the recorded run.
    pub(super) fn recorded_conf(&self) -> &str {
        given_conf(self.args).unwrap_or(&self.device.snapshot.settings.conf)
    }
}

/// The settings of the recorded run, where they are given. What is compared with the record is about that run.
fn given_conf(args: &SimulateArgs) -> Option<&str> {
    args.recorded_conf.as_deref().or(args.conf.as_deref().filter(|_| args.verify))
}

fn load(file: &Path, args: &SimulateArgs, terminal: &Terminal) -> anyhow::Result<Input> {
    let mut input = inputs::load(file, &TALK)?;
    if let Some(Release(minor)) = args.torch {
        input.snapshot.torch = TorchRange { oldest: minor, newest: minor };
    }
    if let Some(text) = given_conf(args) {
        let release = args.torch.unwrap_or_else(|| Release::of(input.snapshot.torch));
        parse(text, release, terminal)?.replace_in(&mut input.snapshot.settings);
    }
    Ok(input)
}

/// Follows a run with the model.
fn recorded<'a>(
    snapshot: &'a Snapshot,
    history: &'a History,
    args: &SimulateArgs,
) -> anyhow::Result<Recorded<'a>> {
    let release = args.torch.unwrap_or_else(|| Release::of(snapshot.torch));
    let text = given_conf(args);
    let conf = text.map(|text| Conf::parse(text, release)).transpose();
    let conf = conf.map_err(|error| refused(text.unwrap_or_default(), release, &error))?;
    // A card or limit to try says nothing about the recorded run, except where the two are compared.
    let (limit, total) = if args.verify { (limit(args, release), args.gpu) } else { (None, None) };
    let given = Given { release: args.torch, conf: conf.map(|parsed| parsed.conf), limit, total };
    Ok(Recorded::new(snapshot, history, given))
}

fn limit(args: &SimulateArgs, release: Release) -> Option<u64> {
    let share = args.fraction.zip(args.gpu);
    args.limit.or(share.and_then(|(share, total)| release.limit(share, total)))
}

fn parse(text: &str, release: Release, terminal: &Terminal) -> anyhow::Result<Conf> {
    let parsed = Conf::parse(text, release).map_err(|error| refused(text, release, &error))?;
    for remark in &parsed.remarks {
        terminal.say(&format!("note: {remark}"));
    }
    Ok(parsed.conf)
}

fn refused(text: &str, release: Release, error: &allocator::ConfError) -> Failure {
    Failure::new(
        format!("torch {release} does not take the settings `{text}`"),
        Some(error.what.clone()),
        Some(&error.hint),
    )
}

fn chosen<'a>(devices: &'a [Device<'a>], args: &SimulateArgs, name: &str) -> anyhow::Result<&'a Device<'a>> {
    let wanted = match args.device {
        Some(ordinal) => devices.iter().find(|device| device.history.device == ordinal),
        None => devices.iter().max_by_key(|device| device.history.len()),
    };
    wanted.filter(|device| !device.history.is_empty()).ok_or_else(|| {
        Failure::new(
            format!("`{name}` has no events to replay"),
            Some("a replay needs the history of allocations and frees".to_owned()),
            Some("record one with `torch.cuda.memory._record_memory_history()` before the run"),
        )
        .into()
    })
}

/// The run under the settings that were asked for, or its own.
fn asked(scene: &Scene<'_>, terminal: &Terminal) -> anyhow::Result<Trial> {
    let conf = match &scene.args.conf {
        Some(text) => parse(text, scene.recorded.release, terminal)?,
        None => scene.recorded.conf.clone(),
    };
    check_fraction(scene, &conf)?;
    let text = scene.args.conf.as_deref().unwrap_or(scene.recorded_conf());
    Ok(scene.try_out(text, &conf))
}

fn what_if(scene: &Scene<'_>, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let trial = asked(scene, terminal)?;
    if let Some(path) = &scene.args.output {
        write_run(scene, &trial, path)?;
    }
    if scene.args.json {
        json::print(&json::trial(scene, &trial), terminal)?;
    } else {
        text::what_if(scene, &trial, terminal)?;
    }
    Ok(u8::from(!trial.fits()))
}

/// A share of an unknown size is no limit.
fn check_fraction(scene: &Scene<'_>, conf: &Conf) -> anyhow::Result<()> {
    if scene.args.conf.is_some() && conf.memory_fraction < 1.0 && scene.args.gpu.is_none() {
        return Err(Failure::new(
            "`per_process_memory_fraction` is a share of a card of unknown size",
            Some("a snapshot does not say how large the card was".to_owned()),
            Some("add `--gpu SIZE`"),
        )
        .into());
    }
    Ok(())
}

fn write_run(scene: &Scene<'_>, trial: &Trial, path: &Path) -> anyhow::Result<()> {
    let snapshot = scene.recorded.replayed(&trial.what, &trial.conf);
    let write = || -> std::io::Result<()> { snapshot::write(&snapshot, &mut std::fs::File::create(path)?) };
    write().map_err(|error| {
        Failure::new(
            format!("`{}` cannot be written", shown_path(path)),
            Some(error.to_string()),
            Some("choose another place with `-o`"),
        )
        .refused(error.kind())
        .into()
    })
}

fn search(scene: &Scene<'_>, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let release = scene.recorded.release;
    let own = (scene.recorded_conf(), scene.recorded.conf.clone());
    let candidates = worth_trying(release, scene.args.gpu.is_some()).into_iter();
    let parsed = candidates.filter_map(|text| Some((text, Conf::parse(text, release).ok()?.conf)));
    // The recorded settings are one of them, in the words of the recording.
    let others = parsed.filter(|(_, conf)| *conf != own.1);
    let confs: Vec<(&str, Conf)> = std::iter::once(own.clone()).chain(others).collect();
    let progress = Progress::new("trying settings", confs.len());
    let mut trials = in_parallel(&confs, usize::MAX, |(text, conf)| {
        let trial = scene.try_out(text, conf);
        progress.advance();
        trial
    });
    drop(progress);
    trials.sort_by_key(|trial| {
        let options = trial.conf.matches(':').count();
        (!trial.fits(), trial.memory(), trial.outcome.device_allocs, options)
    });
    let any_fits = trials.iter().any(Trial::fits);
    if scene.args.json {
        json::print(&json::search(scene, &trials), terminal)?;
    } else {
        text::search(scene, &trials, terminal)?;
    }
    Ok(u8::from(!any_fits))
}

fn verify(
    args: &SimulateArgs,
    files: &[std::path::PathBuf],
    terminal: &mut Terminal,
) -> anyhow::Result<Status> {
    let mut comparison = Comparison::new(args, files.len());
    for file in files {
        let input = load(file, args, terminal)?;
        for device in input.snapshot.devices() {
            comparison.add(&input, &History::new(&input.snapshot, device), terminal)?;
        }
    }
    let name = files.first().map(shown_path).unwrap_or_default();
    comparison.finish(&name, terminal)
}

/// The model against the record, one history after the other.
pub(crate) struct Comparison<'a> {
    args: &'a SimulateArgs,
    inputs: usize,
    reports: Vec<serde_json::Value>,
    all_identical: bool,
    followed: usize,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(args: &'a SimulateArgs, inputs: usize) -> Comparison<'a> {
        Comparison { args, inputs, reports: Vec::new(), all_identical: true, followed: 0 }
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
        let recorded = recorded(&input.snapshot, history, self.args)?;
        self.followed += 1;
        self.all_identical &= recorded.verification().difference.is_none();
        if self.args.json {
            let settings = given_conf(self.args).unwrap_or(&input.snapshot.settings.conf);
            self.reports.push(json::verification(input, history, &recorded, settings));
            return Ok(());
        }
        text::verification(input, history, &recorded, self.inputs == 1, terminal)
    }

    pub(crate) fn finish(self, name: &str, terminal: &mut Terminal) -> anyhow::Result<Status> {
        if self.followed == 0 {
            return Err(Failure::new(
                format!("`{name}` has no events to compare"),
                Some("without a history there is nothing to verify".to_owned()),
                Some("record one with `torch.cuda.memory._record_memory_history()` before the run"),
            )
            .into());
        }
        if self.args.json {
            json::print_verifications(self.reports, terminal)?;
        } else if self.inputs > 1 {
            text::verified(self.followed, self.all_identical, terminal)?;
        }
        Ok(u8::from(!self.all_identical))
    }
}
