//! A budget for a run's memory, kept or broken: measured from recordings, held against limits and a baseline in git.
//!
//! `measure` makes numbers of a device that do not jitter, `judge` holds them against limits, `baseline` and `compare` against
//! a former run. Everything is typed; the command line renders it.

#![forbid(unsafe_code)]

mod baseline;
mod checkout;
mod compare;
mod ending;
mod judge;
mod measure;
mod replay;

pub use baseline::Baseline;
pub use compare::{Comparison, Row};
pub use judge::{Breach, Judgement, State};
pub use measure::{Found, Measured, Why};
pub use replay::Replayed;

use analysis::Diagnosis;
use analysis::words::shown_path;
use baseline::Context;
use checkout::Checkout;
use ending::Ending;
use failure::Failure;
use inputs::Talk;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// What a run may take.
#[derive(Clone, Default, Debug)]
pub struct Limits {
    /// The most bytes that may be allocated at one time on a device.
    pub max_peak: Option<u64>,
    /// The most bytes that may be reserved at one time on a device.
    pub max_reserved: Option<u64>,
    /// No finding of a leak.
    pub no_leaks: bool,
    /// The most bytes by which memory may grow every step.
    pub max_growth: Option<u64>,
    /// The most of the reserved memory that may never be needed at one time, as a share.
    pub max_fragmentation: Option<f64>,
    /// A file with the numbers of a former run.
    pub baseline: Option<PathBuf>,
    /// By how much a number may be above the baseline.
    pub tolerance: Option<Tolerance>,
    /// Whether the baseline is written instead.
    pub update: bool,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.max_peak.is_none()
            && self.max_reserved.is_none()
            && !self.no_leaks
            && self.max_growth.is_none()
            && self.max_fragmentation.is_none()
            && self.baseline.is_none()
    }

    /// Reads the baseline to compare with, if there is to be one. Call it before the program runs for an hour.
    pub fn read_baseline(&self) -> anyhow::Result<Option<Baseline>> {
        Ok(self.baseline.as_deref().map(|file| baseline::read(file, self)).transpose()?.flatten())
    }
}

/// By how much a number may be above another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tolerance {
    /// So much of it, 0.01 for 1%.
    Share(f64),
    /// So many bytes.
    Size(u64),
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance::Share(0.01)
    }
}

/// Measures every device of every rank. How the program ended decides whether its numbers mean anything.
fn measure_all(
    files: &[PathBuf],
    command: &[OsString],
    status: Option<ExitStatus>,
    talk: &Talk,
) -> anyhow::Result<(Vec<Measured>, Context)> {
    let checkout = Checkout::here();
    let (mut measured, mut endings, mut context) = (Vec::new(), Vec::new(), Context::default());
    for (place, file) in files.iter().enumerate() {
        let input = inputs::load(file, talk)?;
        let ending = Ending::of(&input, status);
        context.learn(&input, command);
        for device in &input.devices() {
            let answer = Diagnosis::new(device);
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
pub struct Judged {
    /// Its numbers.
    pub measured: Measured,
    /// One for each limit.
    pub judgements: Vec<Judgement>,
}

impl Judged {
    fn new(measured: Measured, limits: &Limits) -> Judged {
        let judgements = judge::judge(&measured, limits);
        Judged { measured, judgements }
    }
}

/// Everything that is said.
pub struct Verdict {
    /// Every device of every rank.
    pub devices: Vec<Judged>,
    /// What to know beside the verdict.
    pub notes: Vec<String>,
    /// What became of the baseline, where it was to be written.
    pub written: Option<String>,
}

impl Verdict {
    /// Measures the recordings of a run and holds them against `limits`. `command` and `status` are those of the program, if it
    /// was run for this; `former` is the baseline to compare with.
    pub fn new(
        files: &[PathBuf],
        command: &[OsString],
        status: Option<ExitStatus>,
        limits: &Limits,
        former: Option<&Baseline>,
        talk: &Talk,
    ) -> anyhow::Result<Verdict> {
        let (devices, context) = measure_all(files, command, status, talk)?;
        let devices = devices.into_iter().map(|device| Judged::new(device, limits)).collect();
        let mut verdict = Verdict { devices, notes: Vec::new(), written: None };
        if let Some(file) = &limits.baseline {
            verdict.hold_against(file, former, context, limits)?;
        }
        Ok(verdict)
    }

    /// Every judgement of every device.
    pub fn judgements(&self) -> impl Iterator<Item = &Judgement> {
        self.devices.iter().flat_map(|device| &device.judgements)
    }

    /// The worst of them.
    pub fn state(&self) -> State {
        self.judgements().map(Judgement::state).max().unwrap_or(State::Kept)
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
