//! A recorded run under other allocator settings, on another card: one what-if, or a search over many.
//!
//! A [`Simulation`] is a recorded run with a [`WhatIfOptions`] about it; a [`Trial`] is how the run went under some settings, and
//! [`Caveat`]s say what is uncertain about it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod caveat;

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
pub struct WhatIfOptions {
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
pub fn single_run<T>(runs: &[T]) -> anyhow::Result<&T> {
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
pub fn is_as_recorded(options: &WhatIfOptions) -> bool {
    options.torch.is_none() && known_conf(options).is_none()
}

/// The run of a device, followed by the model.
pub fn replayed_device<'a>(
    name: &str,
    device: &'a Device<'a>,
    options: &WhatIfOptions,
) -> anyhow::Result<RecordedRun<'a>> {
    if device.is_cpu() {
        return Err(Failure::new(
            format!("`{name}` is about the memory of a CPU"),
            Some("what is simulated is PyTorch's allocator for GPUs".to_owned()),
            Some("`oomph report` explains it; `oomph predict` runs a program on an emulated GPU"),
        )
        .into());
    }
    replayed_history(device.snapshot, &device.history, options)
}

/// One recorded run and what is asked about it.
pub struct Simulation<'a> {
    /// What the input is called.
    pub name: &'a str,
    /// The run.
    pub device: &'a Device<'a>,
    /// The model that has followed it.
    pub recorded: &'a RecordedRun<'a>,
    /// What is asked.
    pub options: &'a WhatIfOptions,
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

impl<'a> Simulation<'a> {
    /// A question about the run of a device, which the model has followed.
    pub fn new(
        name: &'a str,
        device: &'a Device<'a>,
        recorded: &'a RecordedRun<'a>,
        options: &'a WhatIfOptions,
    ) -> Simulation<'a> {
        Simulation { name, device, recorded, options, conditions: recorded.conditions() }
    }

    /// A card of some size, or the conditions of the recorded run, under some settings.
    fn what(&self, conf: &Conf, total: Option<u64>) -> WhatIf {
        let conf = conf.clone();
        let Some(total) = total else {
            let Conditions { available, limit } = self.conditions;
            return WhatIf { conf, total: None, available, limit: self.options.limit.or(limit) };
        };
        let share = self.options.fraction.or((conf.memory_fraction < 1.0).then_some(conf.memory_fraction));
        let limit = share.and_then(|share| self.recorded.release.limit(share, total));
        let available = Some(total.saturating_sub(self.options.outside));
        WhatIf { conf, total: Some(total), available, limit: self.options.limit.or(limit) }
    }

    fn try_out(&self, text: &str, conf: &Conf) -> Trial {
        let what = self.what(conf, self.options.gpu);
        let outcome = self.recorded.simulate(&what);
        // Where one card is asked about and it is too small, the next question is by how much.
        let is_too_small = outcome.oom.is_some() && self.options.gpu.is_some() && !self.options.search;
        let smallest = (self.options.smallest_gpu || is_too_small)
            .then(|| self.recorded.smallest(|total| self.what(conf, Some(total))))
            .flatten();
        let asked_smallest = self.options.smallest_gpu;
        Trial { conf: text.to_owned(), what, outcome, smallest, asked_smallest }
    }

    /// The settings string of the recorded run.
    pub fn recorded_conf(&self) -> &str {
        known_conf(self.options).unwrap_or(&self.device.snapshot.settings.conf)
    }
}

/// The settings of the recorded run, where they are given. What is compared with the record is about that run.
pub fn known_conf(options: &WhatIfOptions) -> Option<&str> {
    options.recorded_conf.as_deref().or(options.conf.as_deref().filter(|_| options.verify))
}

/// Follows a run with the model.
pub fn replayed_history<'a>(
    snapshot: &'a Snapshot,
    history: &'a History,
    options: &WhatIfOptions,
) -> anyhow::Result<RecordedRun<'a>> {
    let release = options.torch.unwrap_or_else(|| Release::of(snapshot.torch));
    let text = known_conf(options);
    let conf = text.map(|text| Conf::parse(text, release)).transpose();
    let conf = conf.map_err(|error| refused(text.unwrap_or_default(), release, &error))?;
    // A card or limit to try says nothing about the recorded run, except where the two are compared.
    let (limit, total) = if options.verify { (limit(options, release), options.gpu) } else { (None, None) };
    let given =
        KnownConditions { release: options.torch, conf: conf.map(|parsed| parsed.conf), limit, total };
    Ok(RecordedRun::new(snapshot, history, given))
}

fn limit(options: &WhatIfOptions, release: Release) -> Option<u64> {
    let share = options.fraction.zip(options.gpu);
    options.limit.or(share.and_then(|(share, total)| release.limit(share, total)))
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
pub fn choose_device<'a>(
    devices: &'a [Device<'a>],
    options: &WhatIfOptions,
    name: &str,
) -> anyhow::Result<&'a Device<'a>> {
    let wanted = match options.device {
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
pub fn requested_trial(simulation: &Simulation<'_>, say: &dyn Fn(&str)) -> anyhow::Result<Trial> {
    let conf = match &simulation.options.conf {
        Some(text) => parse(text, simulation.recorded.release, say)?,
        None => simulation.recorded.conf.clone(),
    };
    check_fraction(simulation, &conf)?;
    let text = simulation.options.conf.as_deref().unwrap_or(simulation.recorded_conf());
    Ok(simulation.try_out(text, &conf))
}

/// A share of an unknown size is no limit.
fn check_fraction(simulation: &Simulation<'_>, conf: &Conf) -> anyhow::Result<()> {
    if simulation.options.conf.is_some() && conf.memory_fraction < 1.0 && simulation.options.gpu.is_none() {
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
pub fn write_run(simulation: &Simulation<'_>, trial: &Trial, path: &Path) -> anyhow::Result<()> {
    let snapshot = simulation.recorded.replayed(&trial.what, &trial.conf);
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
pub fn apply_known_settings(
    input: &mut Input,
    options: &WhatIfOptions,
    say: &dyn Fn(&str),
) -> anyhow::Result<()> {
    if let Some(Release(minor)) = options.torch {
        input.snapshot.torch = TorchRange { oldest: minor, newest: minor };
    }
    if let Some(text) = known_conf(options) {
        let release = options.torch.unwrap_or_else(|| Release::of(input.snapshot.torch));
        parse(text, release, say)?.replace_in(&mut input.snapshot.settings);
    }
    Ok(())
}

/// Every setting that is worth trying and the recorded one, the best first. `each` runs many at once.
pub fn search<'a>(
    simulation: &Simulation<'a>,
    each: impl FnOnce(&[(&str, Conf)], &(dyn Fn(&(&str, Conf)) -> Trial + Sync)) -> Vec<Trial>,
) -> Vec<Trial> {
    let release = simulation.recorded.release;
    let own = (simulation.recorded_conf(), simulation.recorded.conf.clone());
    let candidates = candidate_settings(release, simulation.options.gpu.is_some()).into_iter();
    let parsed = candidates.filter_map(|text| Some((text, Conf::parse(text, release).ok()?.conf)));
    // The recorded settings are one of them, in the words of the recording.
    let others = parsed.filter(|(_, conf)| *conf != own.1);
    let confs: Vec<(&str, Conf)> = std::iter::once(own.clone()).chain(others).collect();
    let mut trials = each(&confs, &|(text, conf)| simulation.try_out(text, conf));
    trials.sort_by_key(|trial| {
        let options = trial.conf.matches(':').count();
        (!trial.fits(), trial.memory(), trial.outcome.device_allocs, options)
    });
    trials
}

/// The user's own line behind an event.
pub fn site(simulation: &Simulation<'_>, event: usize) -> Option<SiteName> {
    match simulation.device.site_of_event(event) {
        Site::User(frame) | Site::Library(frame) | Site::Backward(frame) | Site::BackwardOf(frame) => {
            Some(SiteName::of(simulation.device.snapshot, frame))
        }
        Site::Native | Site::Unknown | Site::Before => None,
    }
}
