//! Replays a recorded run under other allocator settings or on another GPU: one what-if, or a search over
//! many.
//!
//! A [`Simulation`] is a recorded run with [`WhatIfOptions`]. A [`Trial`] is its outcome under some settings;
//! [`Caveat`]s say what is uncertain about it.
//!
//! ```
//! use whatif::{WhatIfOptions, is_as_recorded, single_run};
//!
//! let options = WhatIfOptions { gpu: Some(24 << 30), ..WhatIfOptions::default() };
//! assert!(is_as_recorded(&options), "another GPU does not change the recorded run");
//! assert!(single_run(&["a.pickle", "b.pickle"]).is_err());
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod advice;
mod caveat;

pub use advice::{SearchAdvice, export_line};
pub use caveat::Caveat;

use allocator::{
    Conditions, Conf, ConfTimeline, KnownConditions, Outcome, ParsedConf, RecordedRun, Release, WhatIf,
    candidate_settings,
};
use analysis::words::shown_path;
use analysis::{Device, Site, SiteName};
use failure::Failure;
use inputs::Input;
use snapshot::{History, Snapshot, TorchRange};
use std::path::Path;

/// Options of a what-if.
#[derive(Clone, Default, Debug)]
pub struct WhatIfOptions {
    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; `None` uses the recorded ones.
    pub conf: Option<String>,
    /// Memory of the GPU to try, in bytes; `None` uses the limits of the recorded run.
    pub gpu: Option<u64>,
    /// Non-PyTorch memory of that GPU, in bytes.
    pub non_pytorch: u64,
    /// Argument of `set_per_process_memory_fraction`: a share of the GPU from 0 to 1.
    pub fraction: Option<f64>,
    /// Memory limit of the process, in bytes.
    pub limit: Option<u64>,
    /// Whether to search over many settings.
    pub search: bool,
    /// Whether to find the smallest GPU on which the run fits.
    pub smallest_gpu: bool,
    /// Whether to compare the allocator model with the recording.
    pub verify: bool,
    /// Release of torch whose rules to use; `None` takes it from the file.
    pub torch: Option<Release>,
    /// Settings of the recorded run, for files that do not contain them.
    pub recorded_conf: Option<String>,
    /// Device to replay; `None` takes the one with the most events.
    pub device: Option<u32>,
}

/// Returns the only run. Fails for several: a what-if is about one run.
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

/// Returns whether the recorded run is replayed exactly as in the file: no other release, no other settings.
pub fn is_as_recorded(options: &WhatIfOptions) -> bool {
    options.torch.is_none() && known_conf(options).is_none()
}

/// Replays the run of a device through the allocator model. Fails for the memory of a CPU.
pub fn replayed_device<'a>(
    name: &str,
    device: &'a Device<'a>,
    options: &WhatIfOptions,
) -> anyhow::Result<RecordedRun<'a>> {
    if device.is_cpu() {
        return Err(Failure::new(
            format!("`{name}` is about the memory of a CPU"),
            Some("only PyTorch's allocator for GPUs is simulated".to_owned()),
            Some("`oomph report` explains it; `oomph predict` runs a program on an emulated GPU"),
        )
        .into());
    }
    replayed_history(device.snapshot, &device.history, options)
}

/// A recorded run and the options of a what-if.
pub struct Simulation<'a> {
    /// Name of the input.
    pub name: &'a str,
    /// Device of the recorded run.
    pub device: &'a Device<'a>,
    /// Run as replayed by the allocator model.
    pub recorded: &'a RecordedRun<'a>,
    /// Options of the what-if.
    pub options: &'a WhatIfOptions,
    /// Limits of the recorded run.
    conditions: Conditions,
}

/// Outcome of a run under some settings.
pub struct Trial {
    /// The settings, as in PYTORCH_CUDA_ALLOC_CONF.
    pub conf: String,
    /// GPU and limits.
    pub what: WhatIf,
    /// Result of the replay.
    pub outcome: Outcome,
    /// Memory of the smallest GPU on which the run fits, in bytes; if it was searched for and exists.
    pub smallest: Option<u64>,
    asked_smallest: bool,
}

impl Trial {
    /// Returns the bytes by which settings are ranked: the smallest GPU, if it was searched for, otherwise
    /// the peak.
    pub fn memory(&self) -> u64 {
        if self.asked_smallest { self.smallest.unwrap_or(u64::MAX) } else { self.outcome.peak_reserved }
    }

    /// Returns whether no allocation fails.
    pub fn fits(&self) -> bool {
        self.outcome.oom.is_none()
    }
}

impl<'a> Simulation<'a> {
    /// Returns a what-if about the run of a device, which the allocator model has replayed.
    pub fn new(
        name: &'a str,
        device: &'a Device<'a>,
        recorded: &'a RecordedRun<'a>,
        options: &'a WhatIfOptions,
    ) -> Simulation<'a> {
        Simulation { name, device, recorded, options, conditions: recorded.conditions() }
    }

    /// Returns the conditions of a replay: a GPU of `total` bytes, or the limits of the recorded run.
    fn conditions_for(&self, conf: &ConfTimeline, total: Option<u64>) -> WhatIf {
        let conf = conf.clone();
        let Some(total) = total else {
            let Conditions { available, limit } = self.conditions;
            return WhatIf { conf, total: None, available, limit: self.options.limit.or(limit) };
        };
        let fraction = conf.first().memory_fraction;
        let share = self.options.fraction.or((fraction < 1.0).then_some(fraction));
        let limit = share.and_then(|share| self.recorded.release.limit(share, total));
        let available = Some(total.saturating_sub(self.options.non_pytorch));
        WhatIf { conf, total: Some(total), available, limit: self.options.limit.or(limit) }
    }

    fn try_out(&self, text: &str, conf: &ConfTimeline) -> Trial {
        let what = self.conditions_for(conf, self.options.gpu);
        let outcome = self.recorded.simulate(&what);
        // If the run does not fit on the given GPU, the user wants to know by how much.
        let is_too_small = outcome.oom.is_some() && self.options.gpu.is_some() && !self.options.search;
        let smallest = (self.options.smallest_gpu || is_too_small)
            .then(|| self.recorded.smallest(|total| self.conditions_for(conf, Some(total))))
            .flatten();
        let asked_smallest = self.options.smallest_gpu;
        Trial { conf: text.to_owned(), what, outcome, smallest, asked_smallest }
    }

    /// Returns the settings of the recorded run.
    pub fn recorded_conf(&self) -> &str {
        known_conf(self.options).unwrap_or(&self.device.snapshot.settings.conf)
    }
}

/// Returns the settings of the recorded run, if the options contain them. With `verify`, `conf` is about the
/// recorded run as well.
pub fn known_conf(options: &WhatIfOptions) -> Option<&str> {
    options.recorded_conf.as_deref().or(options.conf.as_deref().filter(|_| options.verify))
}

/// Replays a history through the allocator model.
pub fn replayed_history<'a>(
    snapshot: &'a Snapshot,
    history: &'a History,
    options: &WhatIfOptions,
) -> anyhow::Result<RecordedRun<'a>> {
    let release = options.torch.unwrap_or_else(|| Release::of(snapshot.torch));
    let text = known_conf(options);
    let conf = text.map(|text| Conf::parse(text, release)).transpose();
    let conf = conf.map_err(|error| refused(text.unwrap_or_default(), release, &error))?;
    // A GPU or limit to try is not that of the recorded run, except with `verify`.
    let (limit, total) = if options.verify { (limit(options, release), options.gpu) } else { (None, None) };
    let given =
        KnownConditions { release: options.torch, conf: conf.map(|parsed| parsed.conf), limit, total };
    Ok(RecordedRun::new(snapshot, history, given))
}

fn limit(options: &WhatIfOptions, release: Release) -> Option<u64> {
    let share = options.fraction.zip(options.gpu);
    options.limit.or(share.and_then(|(share, total)| release.limit(share, total)))
}

fn parse(text: &str, release: Release, say: &dyn Fn(&str)) -> anyhow::Result<ParsedConf> {
    let parsed = Conf::parse(text, release).map_err(|error| refused(text, release, &error))?;
    for remark in &parsed.remarks {
        say(&format!("note: {remark}"));
    }
    Ok(parsed)
}

fn refused(text: &str, release: Release, error: &allocator::ConfError) -> Failure {
    Failure::new(
        format!("torch {release} does not take the settings `{text}`"),
        Some(error.what.clone()),
        Some(&error.hint),
    )
}

/// Returns the device to replay.
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

/// Replays the run under the given settings, or its own.
pub fn requested_trial(simulation: &Simulation<'_>, say: &dyn Fn(&str)) -> anyhow::Result<Trial> {
    let conf = match &simulation.options.conf {
        Some(text) => simulation.recorded.conf_with(&parse(text, simulation.recorded.release, say)?),
        None => simulation.recorded.conf.clone(),
    };
    check_fraction(simulation, &conf)?;
    let text = simulation.options.conf.as_deref().unwrap_or(simulation.recorded_conf());
    Ok(simulation.try_out(text, &conf))
}

/// Fails if the settings contain a share of a GPU of unknown size.
fn check_fraction(simulation: &Simulation<'_>, conf: &ConfTimeline) -> anyhow::Result<()> {
    let is_share = simulation.options.conf.is_some() && conf.first().memory_fraction < 1.0;
    if is_share && simulation.options.gpu.is_none() {
        return Err(Failure::new(
            "`per_process_memory_fraction` is a share of a GPU of unknown size",
            Some("a snapshot does not contain the size of the GPU".to_owned()),
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
            Some("choose another path with `-o`"),
        )
        .refused(error.kind())
        .into()
    })
}

/// Applies the release and settings of the recorded run to a snapshot that lacks them, before its history is
/// rebuilt.
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
        parse(text, release, say)?.conf.replace_in(&mut input.snapshot.settings);
    }
    Ok(())
}

/// Settings to try: as text, and over the course of the run.
pub type Candidate<'a> = (&'a str, ConfTimeline);

/// Replays the run under every candidate setting and the recorded one; best first. `each` runs them in
/// parallel.
pub fn search<'a>(
    simulation: &Simulation<'a>,
    each: impl FnOnce(&[Candidate<'_>], &(dyn Fn(&Candidate<'_>) -> Trial + Sync)) -> Vec<Trial>,
) -> Vec<Trial> {
    let release = simulation.recorded.release;
    let own = (simulation.recorded_conf(), simulation.recorded.conf.clone());
    let candidates = candidate_settings(release, simulation.options.gpu.is_some()).into_iter();
    let parsed = candidates.filter_map(|text| {
        let parsed = Conf::parse(text, release).ok()?;
        Some((text, simulation.recorded.conf_with(&parsed)))
    });
    // The recorded settings are a candidate too, spelled as in the recording.
    let others = parsed.filter(|(_, conf)| *conf != own.1);
    let confs: Vec<Candidate<'_>> = std::iter::once(own.clone()).chain(others).collect();
    let mut trials = each(&confs, &|(text, conf)| simulation.try_out(text, conf));
    trials.sort_by_key(|trial| {
        let options = trial.conf.matches(':').count();
        (!trial.fits(), trial.memory(), trial.outcome.device_allocs, options)
    });
    trials
}

/// Returns the user's line that caused an event.
pub fn site(simulation: &Simulation<'_>, event: usize) -> Option<SiteName> {
    match simulation.device.site_of_event(event) {
        Site::User(frame) | Site::Library(frame) | Site::Backward(frame) | Site::BackwardOf(frame) => {
            Some(SiteName::of(simulation.device.snapshot, frame))
        }
        Site::Native | Site::Unknown | Site::Before => None,
    }
}
