//! A recorded run under other allocator settings, on another card: one what-if, or a search over many.
//!
//! A [`Scene`] is a recorded run with a [`Question`] about it; a [`Trial`] is how the run went under some settings, and
//! [`Caveat`]s say what is uncertain about it.

#![forbid(unsafe_code)]

mod advice;
mod caveat;

pub use advice::SearchAdvice;
pub use caveat::Caveat;

use allocator::{
    Conditions, Conf, KnownConditions, Outcome, RecordedRun, Release, WhatIf, candidate_settings,
};
use analysis::words::shown_path;
use analysis::{Device, Site, SiteName};
use failure::Failure;
use inputs::Input;
use snapshot::{History, Snapshot, TorchRange};
use std::path::Path;

/// What is asked about a recorded run.
#[derive(Clone, Default, Debug)]
pub struct Question {
    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; otherwise the recorded ones.
    pub conf: Option<String>,
    /// Memory of the card to try; otherwise what the recorded run could have.
    pub gpu: Option<u64>,
    /// Memory of that card which PyTorch cannot have.
    pub outside: u64,
    /// `set_per_process_memory_fraction`: a share of the card.
    pub fraction: Option<f64>,
    /// The limit of the process itself.
    pub limit: Option<u64>,
    /// Whether many settings are tried.
    pub search: bool,
    /// Whether the least memory of a card that still works is wanted.
    pub smallest_gpu: bool,
    /// Whether the model is compared with the record.
    pub verify: bool,
    /// Release of torch whose rules to use; otherwise the file's.
    pub torch: Option<Release>,
    /// The settings of the recorded run, where the file does not have them.
    pub recorded_conf: Option<String>,
    /// The device to replay; otherwise the one with the most events.
    pub device: Option<u32>,
}

/// A what-if is about one run.
pub fn only<T>(runs: &[T]) -> anyhow::Result<&T> {
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
pub fn is_as_recorded(args: &Question) -> bool {
    args.torch.is_none() && given_conf(args).is_none()
}

/// The run of a device, followed by the model.
pub fn follow<'a>(name: &str, device: &'a Device<'a>, args: &Question) -> anyhow::Result<RecordedRun<'a>> {
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

/// One recorded run and what is asked about it.
pub struct Scene<'a> {
    /// What the input is called.
    pub name: &'a str,
    /// The run.
    pub device: &'a Device<'a>,
    /// The model that has followed it.
    pub recorded: &'a RecordedRun<'a>,
    /// What is asked.
    pub args: &'a Question,
    /// The memory that the recorded run could have.
    conditions: Conditions,
}

/// A settings string with how the run went under it.
pub struct Trial {
    /// The settings.
    pub conf: String,
    /// The card and its limits.
    pub what: WhatIf,
    /// How it went.
    pub outcome: Outcome,
    /// The least memory of a card that works, if it was asked for and there is one.
    pub smallest: Option<u64>,
    asked_smallest: bool,
}

impl Trial {
    /// What settings are ranked by: the least card that works, if that was asked for, otherwise the peak.
    pub fn memory(&self) -> u64 {
        if self.asked_smallest { self.smallest.unwrap_or(u64::MAX) } else { self.outcome.peak_reserved }
    }

    /// Whether no request fails.
    pub fn fits(&self) -> bool {
        self.outcome.oom.is_none()
    }
}

impl<'a> Scene<'a> {
    /// A question about the run of a device, which the model has followed.
    pub fn new(
        name: &'a str,
        device: &'a Device<'a>,
        recorded: &'a RecordedRun<'a>,
        args: &'a Question,
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
    pub fn recorded_conf(&self) -> &str {
        given_conf(self.args).unwrap_or(&self.device.snapshot.settings.conf)
    }
}

/// The settings of the recorded run, where they are given. What is compared with the record is about that run.
pub fn given_conf(args: &Question) -> Option<&str> {
    args.recorded_conf.as_deref().or(args.conf.as_deref().filter(|_| args.verify))
}

/// Follows a run with the model.
pub fn recorded<'a>(
    snapshot: &'a Snapshot,
    history: &'a History,
    args: &Question,
) -> anyhow::Result<RecordedRun<'a>> {
    let release = args.torch.unwrap_or_else(|| Release::of(snapshot.torch));
    let text = given_conf(args);
    let conf = text.map(|text| Conf::parse(text, release)).transpose();
    let conf = conf.map_err(|error| refused(text.unwrap_or_default(), release, &error))?;
    // A card or limit to try says nothing about the recorded run, except where the two are compared.
    let (limit, total) = if args.verify { (limit(args, release), args.gpu) } else { (None, None) };
    let given = KnownConditions { release: args.torch, conf: conf.map(|parsed| parsed.conf), limit, total };
    Ok(RecordedRun::new(snapshot, history, given))
}

fn limit(args: &Question, release: Release) -> Option<u64> {
    let share = args.fraction.zip(args.gpu);
    args.limit.or(share.and_then(|(share, total)| release.limit(share, total)))
}

fn parse(text: &str, release: Release, say: &dyn Fn(&str)) -> anyhow::Result<Conf> {
    let parsed = Conf::parse(text, release).map_err(|error| refused(text, release, &error))?;
    for remark in &parsed.remarks {
        say(&format!("note: {remark}"));
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

/// The device that the question is about.
pub fn chosen<'a>(devices: &'a [Device<'a>], args: &Question, name: &str) -> anyhow::Result<&'a Device<'a>> {
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
pub fn asked(scene: &Scene<'_>, say: &dyn Fn(&str)) -> anyhow::Result<Trial> {
    let conf = match &scene.args.conf {
        Some(text) => parse(text, scene.recorded.release, say)?,
        None => scene.recorded.conf.clone(),
    };
    check_fraction(scene, &conf)?;
    let text = scene.args.conf.as_deref().unwrap_or(scene.recorded_conf());
    Ok(scene.try_out(text, &conf))
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

/// Writes the replayed run as a snapshot.
pub fn write_run(scene: &Scene<'_>, trial: &Trial, path: &Path) -> anyhow::Result<()> {
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

/// Puts what the question knows better than the file into a snapshot, before its history is rebuilt.
pub fn amend(input: &mut Input, args: &Question, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    if let Some(Release(minor)) = args.torch {
        input.snapshot.torch = TorchRange { oldest: minor, newest: minor };
    }
    if let Some(text) = given_conf(args) {
        let release = args.torch.unwrap_or_else(|| Release::of(input.snapshot.torch));
        parse(text, release, say)?.replace_in(&mut input.snapshot.settings);
    }
    Ok(())
}

/// Every setting that is worth trying and the recorded one, the best first. `each` runs many at once.
pub fn search<'a>(
    scene: &Scene<'a>,
    each: impl FnOnce(&[(&str, Conf)], &(dyn Fn(&(&str, Conf)) -> Trial + Sync)) -> Vec<Trial>,
) -> Vec<Trial> {
    let release = scene.recorded.release;
    let own = (scene.recorded_conf(), scene.recorded.conf.clone());
    let candidates = candidate_settings(release, scene.args.gpu.is_some()).into_iter();
    let parsed = candidates.filter_map(|text| Some((text, Conf::parse(text, release).ok()?.conf)));
    // The recorded settings are one of them, in the words of the recording.
    let others = parsed.filter(|(_, conf)| *conf != own.1);
    let confs: Vec<(&str, Conf)> = std::iter::once(own.clone()).chain(others).collect();
    let mut trials = each(&confs, &|(text, conf)| scene.try_out(text, conf));
    trials.sort_by_key(|trial| {
        let options = trial.conf.matches(':').count();
        (!trial.fits(), trial.memory(), trial.outcome.device_allocs, options)
    });
    trials
}

/// The user's own line behind an event.
pub fn site(scene: &Scene<'_>, event: usize) -> Option<SiteName> {
    match scene.device.site_of_event(event) {
        Site::User(frame) | Site::Library(frame) | Site::Backward(frame) | Site::BackwardOf(frame) => {
            Some(SiteName::of(scene.device.snapshot, frame))
        }
        Site::Native | Site::Unknown | Site::Before => None,
    }
}
