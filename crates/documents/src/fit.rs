//! The JSON of `oomph fit --json`: public and versioned. Fields may be added, none renamed.

use fit::{Fit, Insufficient, Proposal};
use launch::{FitVerdict, GpuModel};
use schemars::JsonSchema;
use serde::Serialize;

/// A program for which a change was searched.
pub struct FittedProgram<'a> {
    /// Its command, as the user wrote it.
    pub command: &'a str,
    /// The GPU that was emulated.
    pub gpu: &'a GpuModel,
    /// Number of such GPUs.
    pub gpus: u32,
    /// What was found.
    pub fit: &'a Fit,
}

/// Changes with which a program fits on a GPU.
#[derive(Serialize, JsonSchema)]
pub struct FitDocument<'a> {
    /// Version of the format.
    version: u32,
    /// Program as the user wrote it.
    program: &'a str,
    /// Name of the GPU that `--gpu` takes.
    gpu: &'a str,
    /// Number of such GPUs.
    gpus: u32,
    /// Memory of one in bytes.
    memory: u64,
    /// Bytes that the program may take.
    target: u64,
    /// `fits` (as it is), `fits_with_change`, `fills_up` (memory grows from step to step) or `does_not_fit`.
    verdict: &'static str,
    /// Bytes that the program takes as it is.
    total: u64,
    /// Changes with which it fits, the best first.
    proposals: Vec<ProposalReport<'a>>,
    /// Techniques that are not enough alone.
    insufficient: Vec<InsufficientReport<'a>>,
    /// Number of changes that were run.
    runs: usize,
}

/// A change with which the program fits.
#[derive(Serialize, JsonSchema)]
struct ProposalReport<'a> {
    /// Techniques with their settings, as `oomph predict --try` takes them, joined by `+`.
    techniques: &'a [String],
    /// What each did in the program.
    applied: &'a [String],
    /// Bytes that the program takes with them.
    total: u64,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest reserved bytes.
    peak_reserved: u64,
    /// Bytes that it takes less.
    saved: u64,
    /// Expected share by which steps take longer; negative if they are faster.
    slowdown: f64,
    /// What that is made of, in words.
    costs: &'a [String],
    /// What changes in the results: `none`, `batch_statistics`, `rounding` or `training`.
    results: &'static str,
    /// `exact` or `estimate`.
    confidence: &'static str,
    /// Edits of the program as a unified diff; empty if there are none.
    diff: String,
    /// What to set or write where no edit was certain.
    instructions: &'a [String],
}

/// A technique that is not enough alone.
#[derive(Serialize, JsonSchema)]
struct InsufficientReport<'a> {
    /// Its name.
    technique: &'a str,
    /// Bytes that the program takes with it.
    total: Option<u64>,
    /// Why it could not be applied.
    reason: Option<&'a str>,
}

impl<'a> FitDocument<'a> {
    /// Converts what was found.
    pub fn new(program: &FittedProgram<'a>) -> FitDocument<'a> {
        let FittedProgram { command, gpu, gpus, fit } = program;
        let verdict = match fit.base.verdict {
            _ if fit.fits_already() => "fits",
            _ if !fit.proposals.is_empty() => "fits_with_change",
            FitVerdict::FillsUp { .. } => "fills_up",
            _ => "does_not_fit",
        };
        FitDocument {
            version: 1,
            program: command,
            gpu: gpu.key,
            gpus: *gpus,
            memory: fit.base.memory,
            target: fit.target.0,
            verdict,
            total: fit.base.highest.total().0,
            proposals: fit.proposals.iter().map(proposal).collect(),
            insufficient: fit.insufficient.iter().map(insufficient).collect(),
            runs: fit.runs,
        }
    }
}

fn proposal(of: &Proposal) -> ProposalReport<'_> {
    let highest = &of.prediction.highest;
    ProposalReport {
        techniques: &of.techniques,
        applied: &of.applied,
        total: highest.total().0,
        peak_allocated: highest.allocated.0,
        peak_reserved: highest.reserved.0,
        saved: of.saved.0,
        slowdown: of.time.slowdown,
        costs: &of.time.words,
        results: of.results.key(),
        confidence: if of.prediction.confidence.is_exact() { "exact" } else { "estimate" },
        diff: of.change.files.iter().map(|file| file.diff.as_str()).collect(),
        instructions: &of.change.instructions,
    }
}

fn insufficient(of: &Insufficient) -> InsufficientReport<'_> {
    InsufficientReport {
        technique: &of.technique,
        total: of.outcome.as_ref().ok().map(|total| total.0),
        reason: of.outcome.as_ref().err().map(String::as_str),
    }
}
