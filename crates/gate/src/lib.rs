//! Checks the memory of a run against a budget: limits, and a baseline committed to git.
//!
//! `measure` computes reproducible numbers from the recordings of a run, `judge` compares them with the
//! limits, `baseline` and `compare` with an earlier run. The result is a [`BudgetVerdict`], which the
//! command line renders.
//!
//! ```
//! use gate::{Budget, LimitState, Tolerance};
//!
//! let budget = Budget { max_peak: Some(8 << 30), ..Budget::default() };
//! assert!(!budget.is_empty());
//! assert_eq!(Tolerance::default(), Tolerance::Share(0.01));
//! assert_eq!(LimitState::Broken.exit_code(), 1);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod baseline;
mod checkout;
mod compare;
mod exit;
mod judge;
mod measure;
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
use exit::ProgramExit;
use failure::Failure;
use inputs::ProgressReporter;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Limits on the memory of a run.
#[derive(Clone, Default, Debug)]
pub struct Budget {
    /// Highest peak of allocated memory of a device, in bytes.
    pub max_peak: Option<u64>,
    /// Highest peak of reserved memory of a device, in bytes.
    pub max_reserved: Option<u64>,
    /// Whether leaks break the budget.
    pub no_leaks: bool,
    /// Highest growth of allocated memory, in bytes per step.
    pub max_growth: Option<u64>,
    /// Highest fragmentation: the share of reserved memory that is never needed at one time, from 0 to 1.
    pub max_fragmentation: Option<f64>,
    /// File with the numbers of an earlier run.
    pub baseline: Option<PathBuf>,
    /// How far a number may be above the baseline.
    pub tolerance: Option<Tolerance>,
    /// Whether the baseline is written instead of compared with.
    pub update: bool,
}

impl Budget {
    /// Returns whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.max_peak.is_none()
            && self.max_reserved.is_none()
            && !self.no_leaks
            && self.max_growth.is_none()
            && self.max_fragmentation.is_none()
            && self.baseline.is_none()
    }

    /// Reads the baseline to compare with, if there is one. Called before the program runs, so that a bad
    /// file fails early.
    pub fn read_baseline(&self) -> anyhow::Result<Option<Baseline>> {
        Ok(self.baseline.as_deref().map(|file| baseline::read(file, self)).transpose()?.flatten())
    }
}

/// How far a number may be above the baseline.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tolerance {
    /// Share of the number in the baseline: 0.01 is 1%.
    Share(f64),
    /// Bytes.
    Size(u64),
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance::Share(0.01)
    }
}

/// Measures every device of every rank. Fails if the program ended in a way that makes its numbers
/// meaningless.
fn measure_all(
    files: &[PathBuf],
    command: &[OsString],
    status: Option<ExitStatus>,
    progress: &ProgressReporter,
) -> anyhow::Result<(Vec<Measured>, RunContext)> {
    let checkout = Checkout::here();
    let (mut measured, mut exits, mut context) = (Vec::new(), Vec::new(), RunContext::default());
    for (index, file) in files.iter().enumerate() {
        let input = inputs::load(file, progress)?;
        let exit = ProgramExit::of(&input, status);
        context.fill_from(&input, command);
        for device in &input.devices() {
            let diagnosis = Diagnosis::new(device);
            measured.push(Measured::new(&input, index, &diagnosis, &exit, &checkout));
        }
        exits.push(exit);
    }
    exit::check_exits(&exits, status)?;
    // The history may have lost the event although the program is known to have failed because of it.
    if exits.iter().any(ProgramExit::is_oom) && measured.iter().all(|device| device.oom.is_none()) {
        measured.iter_mut().take(1).for_each(|device| device.oom = Some(LimitFinding::unrecorded_oom()));
    }
    if measured.is_empty() {
        let cause = Some("nothing was ever allocated on a device".to_owned());
        let hint = "does the program use the GPU? does the recording begin before it does?";
        return Err(Failure::new("there is no memory to measure", cause, Some(hint)).into());
    }
    Ok((measured, context))
}

/// One device with the result of each limit.
pub struct DeviceVerdict {
    /// Numbers of the device.
    pub measured: Measured,
    /// One result per limit.
    pub results: Vec<LimitResult>,
}

impl DeviceVerdict {
    fn new(measured: Measured, budget: &Budget) -> DeviceVerdict {
        let results = judge::judge(&measured, budget);
        DeviceVerdict { measured, results }
    }
}

/// Result of checking a run against a budget.
pub struct BudgetVerdict {
    /// Every device of every rank.
    pub devices: Vec<DeviceVerdict>,
    /// Remarks that do not affect the verdict.
    pub notes: Vec<String>,
    /// Message that says whether the baseline was written; only with [`Budget::update`].
    pub written: Option<String>,
}

impl BudgetVerdict {
    /// Checks the recordings of a run. `command` and `status` belong to the program, if it was run for this
    /// check; `baseline` is the earlier run to compare with.
    pub fn new(
        files: &[PathBuf],
        command: &[OsString],
        status: Option<ExitStatus>,
        budget: &Budget,
        baseline: Option<&Baseline>,
        progress: &ProgressReporter,
    ) -> anyhow::Result<BudgetVerdict> {
        let (devices, context) = measure_all(files, command, status, progress)?;
        let devices = devices.into_iter().map(|device| DeviceVerdict::new(device, budget)).collect();
        let mut verdict = BudgetVerdict { devices, notes: Vec::new(), written: None };
        if let Some(file) = &budget.baseline {
            verdict.compare_or_write(file, baseline, context, budget)?;
        }
        Ok(verdict)
    }

    /// Returns the results of all devices.
    pub fn results(&self) -> impl Iterator<Item = &LimitResult> {
        self.devices.iter().flat_map(|device| &device.results)
    }

    /// Returns the worst result.
    pub fn state(&self) -> LimitState {
        self.results().map(LimitResult::state).max().unwrap_or(LimitState::Kept)
    }

    /// Compares with the baseline, or writes it if there is none.
    fn compare_or_write(
        &mut self,
        file: &Path,
        baseline: Option<&Baseline>,
        context: RunContext,
        budget: &Budget,
    ) -> anyhow::Result<()> {
        let Some(baseline) = baseline else {
            let state = self.state();
            if state != LimitState::Kept {
                self.written = Some(format!("{} was not written: {}", shown_path(file), state.words()));
                return Ok(());
            }
            let devices: Vec<&Measured> = self.devices.iter().map(|device| &device.measured).collect();
            self.written = Some(baseline::write(file, context, &devices)?);
            return Ok(());
        };
        let tolerance = budget.tolerance.unwrap_or_default();
        self.notes.extend(baseline.context.differences(&context));
        for device in &mut self.devices {
            let (result, note) = compare::compare(file, baseline, &device.measured, tolerance);
            device.results.push(result);
            self.notes.extend(note);
        }
        let measured = self.devices.iter().map(|device| &device.measured);
        let missing = compare::missing(file, baseline, measured);
        if let Some(first) = self.devices.first_mut() {
            first.results.extend(missing);
        }
        Ok(())
    }
}
