//! A budget for a run's memory, kept or broken: measured from recordings, held against limits and a baseline in git.
//!
//! `measure` makes numbers of a device that do not jitter, `judge` holds them against limits, `baseline` and `compare` against
//! a former run. Everything is typed; the command line renders it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod baseline;
mod checkout;
mod compare;
mod judge;
mod measure;
mod outcome;
mod replay;

pub use baseline::Baseline;
pub use compare::{BaselineComparison, ComparedNumber};
pub use judge::{Breach, LimitResult, LimitState};
pub use measure::{LimitFinding, Measured, MeasurementGap};
pub use replay::Replayed;

use analysis::Diagnosis;
use analysis::words::shown_path;
use baseline::RunContext;
use checkout::Checkout;
use failure::Failure;
use inputs::ProgressReporter;
use outcome::ProgramOutcome;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// What a run may take.
#[derive(Clone, Default, Debug)]
pub struct Budget {
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

impl Budget {
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
    /// So much of it, 0.01 for 1 %.
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
    progress: &ProgressReporter,
) -> anyhow::Result<(Vec<Measured>, RunContext)> {
    let checkout = Checkout::here();
    let (mut measured, mut outcomes, mut context) = (Vec::new(), Vec::new(), RunContext::default());
    for (place, file) in files.iter().enumerate() {
        let input = inputs::load(file, progress)?;
        let outcome = ProgramOutcome::of(&input, status);
        context.learn(&input, command);
        for device in &input.devices() {
            let answer = Diagnosis::new(device);
            measured.push(Measured::new(&input, place, &answer, &outcome, &checkout));
        }
        outcomes.push(outcome);
    }
    outcome::refuse(&outcomes, status)?;
    // A history may have lost the event; that the program failed for it is known all the same.
    if outcomes.contains(&ProgramOutcome::OutOfMemory)
        && measured.iter().all(|device| device.shortage.is_none())
    {
        measured
            .iter_mut()
            .take(1)
            .for_each(|device| device.shortage = Some(LimitFinding::unseen_shortage()));
    }
    if measured.is_empty() {
        let cause = Some("nothing was ever allocated on a device".to_owned());
        let hint = "does the program use the GPU? does the recording begin before it does?";
        return Err(Failure::new("there is no memory to measure", cause, Some(hint)).into());
    }
    Ok((measured, context))
}

/// One device with all that is judged of it.
pub struct DeviceVerdict {
    /// Its numbers.
    pub measured: Measured,
    /// One for each limit.
    pub results: Vec<LimitResult>,
}

impl DeviceVerdict {
    fn new(measured: Measured, budget: &Budget) -> DeviceVerdict {
        let results = judge::judge(&measured, budget);
        DeviceVerdict { measured, results }
    }
}

/// Everything that is said.
pub struct BudgetVerdict {
    /// Every device of every rank.
    pub devices: Vec<DeviceVerdict>,
    /// What to know beside the verdict.
    pub notes: Vec<String>,
    /// What became of the baseline, where it was to be written.
    pub written: Option<String>,
}

impl BudgetVerdict {
    /// Measures the recordings of a run and holds them against `limits`. `command` and `status` are those of the program, if it
    /// was run for this; `former` is the baseline to compare with.
    pub fn new(
        files: &[PathBuf],
        command: &[OsString],
        status: Option<ExitStatus>,
        budget: &Budget,
        former: Option<&Baseline>,
        progress: &ProgressReporter,
    ) -> anyhow::Result<BudgetVerdict> {
        let (devices, context) = measure_all(files, command, status, progress)?;
        let devices = devices.into_iter().map(|device| DeviceVerdict::new(device, budget)).collect();
        let mut verdict = BudgetVerdict { devices, notes: Vec::new(), written: None };
        if let Some(file) = &budget.baseline {
            verdict.compare_or_write(file, former, context, budget)?;
        }
        Ok(verdict)
    }

    /// Every result of every device.
    pub fn results(&self) -> impl Iterator<Item = &LimitResult> {
        self.devices.iter().flat_map(|device| &device.results)
    }

    /// The worst of them.
    pub fn state(&self) -> LimitState {
        self.results().map(LimitResult::state).max().unwrap_or(LimitState::Kept)
    }

    /// Compares with the baseline, or writes it.
    fn compare_or_write(
        &mut self,
        file: &Path,
        former: Option<&Baseline>,
        context: RunContext,
        budget: &Budget,
    ) -> anyhow::Result<()> {
        let Some(former) = former else {
            let broken = self.state();
            if broken != LimitState::Kept {
                self.written = Some(format!("{} was not written: {}", shown_path(file), broken.words()));
                return Ok(());
            }
            let devices: Vec<&Measured> = self.devices.iter().map(|device| &device.measured).collect();
            self.written = Some(baseline::write(file, context, &devices)?);
            return Ok(());
        };
        let tolerance = budget.tolerance.unwrap_or_default();
        self.notes.extend(former.context.differences(&context));
        for device in &mut self.devices {
            let (result, note) = compare::compare(file, former, &device.measured, tolerance);
            device.results.push(result);
            self.notes.extend(note);
        }
        let measured = self.devices.iter().map(|device| &device.measured);
        let missing = compare::missing(file, former, measured);
        if let Some(first) = self.devices.first_mut() {
            first.results.extend(missing);
        }
        Ok(())
    }
}
