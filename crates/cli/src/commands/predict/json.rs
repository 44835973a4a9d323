//! The JSON of `oomph predict --json`: public and versioned. Fields may be added, none renamed.

use super::PredictAnswer;
use crate::args::ReportArgs;
use crate::commands::report::json::ReportDocument;
use crate::terminal::Terminal;
use inputs::Input;
use launch::{DevicePeak, FitVerdict, Phase, Prediction, ProgramPart, Variant};
use recording::{LoopInfo, ValueRead};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Serialize)]
struct PredictReport<'a> {
    version: u32,
    program: &'a str,
    gpu: GpuReport<'a>,
    torch: &'a str,
    steps: PredictedSteps,
    #[serde(flatten)]
    outcome: OutcomeReport<'a>,
    confidence: &'static str,
    /// Why it is an estimate.
    reasons: &'a [String],
    /// What is known not to matter, and what the answer does not cover.
    remarks: &'a [String],
    /// Values that only a real GPU computes and that the program read.
    reads: &'a [ValueRead],
    devices: Vec<DeviceFigures>,
    /// Parts of the program in their order, on the device with the highest need.
    phases: Vec<PhaseReport<'a>>,
    vary: Option<VaryReport<'a>>,
    #[serde(rename = "try")]
    tried: Vec<VariantReport<'a>>,
    /// As `oomph report --json` gives it; with ample memory if the program does not fit.
    report: ReportDocument,
    /// The report of the run that ran out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    failing: Option<ReportDocument>,
}

#[derive(Serialize)]
struct GpuReport<'a> {
    key: &'a str,
    name: &'a str,
    count: u32,
    memory: u64,
}

#[derive(Serialize)]
struct PredictedSteps {
    count: u64,
    /// `finished`, `failed`, `steps` (as many as asked for), `periodic`, `long` or `time`.
    ended: &'static str,
}

/// Whether it fits, and what the device with the highest need takes; without an OOM if it did not fit.
#[derive(Serialize)]
struct OutcomeReport<'a> {
    fits: bool,
    /// `fits`, `tight`, `fills_up` or `does_not_fit`.
    verdict: &'static str,
    /// Step in which it runs out of memory, if memory grows from step to step.
    #[serde(skip_serializing_if = "Option::is_none")]
    full_at_step: Option<u64>,
    peak_allocated: u64,
    peak_reserved: u64,
    /// The CUDA context and libraries.
    context: u64,
    total: u64,
    /// Negative if it does not fit.
    headroom: i64,
    requests: u64,
    /// Requests that failed on this card.
    failed_requests: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exception: Option<&'a str>,
}

#[derive(Serialize)]
struct DeviceFigures {
    rank: usize,
    device: u32,
    peak_allocated: u64,
    peak_reserved: u64,
    context: u64,
    requests: u64,
}

/// One part of the program.
#[derive(Serialize)]
struct PhaseReport<'a> {
    /// `set_up`, `loop` (over a data loader) or `between_loops`.
    part: &'static str,
    /// The line that iterates.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<PhaseSite<'a>>,
    peak_allocated: u64,
    peak_reserved: u64,
}

#[derive(Serialize)]
struct PhaseSite<'a> {
    file: &'a str,
    line: u32,
    function: &'a str,
    /// Function of a library that iterates for the line, as `package: function`.
    library: Option<&'a str>,
    /// How often the loop ran.
    runs: u64,
    /// Batches of the longest run that were not skipped.
    iterations: u64,
    /// Batches that one run would have, if the loader knows.
    batches: Option<u64>,
    /// Batches that all runs skipped.
    skipped: u64,
}

#[derive(Serialize)]
struct VaryReport<'a> {
    name: &'a str,
    largest: Option<u64>,
    runs: Vec<VariantReport<'a>>,
}

#[derive(Serialize)]
struct VariantReport<'a> {
    label: &'a str,
    #[serde(flatten)]
    outcome: Option<OutcomeReport<'a>>,
    /// What was done for each technique, or why it could not be.
    techniques: Option<&'a BTreeMap<String, String>>,
    error: Option<&'a str>,
}

pub(super) fn print(answer: &PredictAnswer<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let prediction = &answer.prediction;
    let sureness = &prediction.confidence;
    let report = PredictReport {
        version: 1,
        program: &answer.shown,
        gpu: GpuReport {
            key: answer.args.gpu.key,
            name: answer.args.gpu.name,
            count: answer.args.gpus,
            memory: prediction.memory,
        },
        torch: prediction.info.torch.as_deref().unwrap_or_default(),
        steps: PredictedSteps {
            count: prediction.info.steps.unwrap_or_default(),
            ended: prediction.info.state.word().unwrap_or_default(),
        },
        outcome: outcome(prediction),
        confidence: if sureness.is_exact() { "exact" } else { "estimate" },
        reasons: &sureness.reasons,
        remarks: &sureness.remarks,
        reads: &prediction.info.emulation.reads,
        devices: prediction.all.iter().map(device).collect(),
        phases: prediction.phases.iter().map(phase).collect(),
        vary: answer.variants.varied.as_ref().map(|varied| VaryReport {
            name: &varied.name,
            largest: varied.largest,
            runs: varied.runs.iter().map(variant).collect(),
        }),
        tried: answer.variants.tried.iter().map(variant).collect(),
        report: document(&prediction.recording),
        failing: prediction.failing.as_ref().map(document),
    };
    serde_json::to_writer_pretty(terminal.out(), &report)?;
    Ok(writeln!(terminal.out())?)
}

fn document(recording: &Input) -> ReportDocument {
    let devices = recording.devices();
    let answers: Vec<analysis::Diagnosis<'_>> = devices.iter().map(analysis::Diagnosis::new).collect();
    let mut document = ReportDocument::new();
    document.add(recording, &answers, &ReportArgs::for_new_run());
    document
}

fn outcome(prediction: &Prediction) -> OutcomeReport<'_> {
    let highest = &prediction.highest;
    let (verdict, full_at_step) = match prediction.verdict {
        FitVerdict::Fits => ("fits", None),
        FitVerdict::Tight => ("tight", None),
        FitVerdict::FillsUp { at_step, .. } => ("fills_up", Some(at_step)),
        FitVerdict::DoesNotFit => ("does_not_fit", None),
    };
    OutcomeReport {
        fits: prediction.verdict.fits(),
        verdict,
        full_at_step,
        peak_allocated: highest.allocated.0,
        peak_reserved: highest.reserved.0,
        context: highest.non_pytorch.0,
        total: highest.total().0,
        headroom: prediction.memory as i64 - highest.total().0 as i64,
        requests: highest.requests,
        failed_requests: prediction.failed_requests,
        exception: prediction.info.exception.as_deref(),
    }
}

fn device(figures: &DevicePeak) -> DeviceFigures {
    DeviceFigures {
        rank: figures.rank,
        device: figures.device,
        peak_allocated: figures.allocated.0,
        peak_reserved: figures.reserved.0,
        context: figures.non_pytorch.0,
        requests: figures.requests,
    }
}

fn phase(phase: &Phase) -> PhaseReport<'_> {
    let (part, site) = match &phase.part {
        ProgramPart::SetUp => ("set_up", None),
        ProgramPart::Loop(of) => ("loop", Some(phase_site(of))),
        ProgramPart::BetweenLoops => ("between_loops", None),
    };
    PhaseReport { part, site, peak_allocated: phase.allocated.0, peak_reserved: phase.reserved.0 }
}

fn phase_site(of: &LoopInfo) -> PhaseSite<'_> {
    PhaseSite {
        file: &of.file,
        line: of.line,
        function: &of.function,
        library: of.library.as_deref(),
        runs: of.runs,
        iterations: of.iterations,
        batches: of.batches,
        skipped: of.skipped,
    }
}

fn variant(variant: &Variant) -> VariantReport<'_> {
    let prediction = variant.outcome.as_ref().ok();
    VariantReport {
        label: &variant.label,
        outcome: prediction.map(outcome),
        techniques: prediction.map(|prediction| &prediction.info.emulation.techniques),
        error: variant.outcome.as_ref().err().map(String::as_str),
    }
}
