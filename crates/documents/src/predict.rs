//! The JSON of `oomph predict --json`: public and versioned. Fields may be added, none renamed.

use crate::report::{ReportDocument, ReportOptions};
use inputs::Input;
use launch::{
    DevicePeak, FitVerdict, GpuModel, PredictedJob, Prediction, ProgramPart, ProgramPhase, Variant, Variants,
};
use recording::{LoopInfo, ValueRead};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// A program that was run on emulated GPUs.
pub struct PredictedProgram<'a> {
    /// Its command, as the user wrote it.
    pub command: &'a str,
    /// The GPU that was emulated.
    pub gpu: &'a GpuModel,
    /// Number of such GPUs.
    pub gpus: u32,
    /// How it went.
    pub prediction: &'a Prediction,
    /// Runs with something changed.
    pub variants: &'a Variants,
}

/// Whether a program fits on an emulated GPU, and what fills it.
#[derive(Serialize, JsonSchema)]
pub struct PredictDocument<'a> {
    /// Version of the format.
    version: u32,
    /// Program as the user wrote it.
    program: &'a str,
    /// GPU that was emulated.
    gpu: GpuReport<'a>,
    /// torch version.
    torch: &'a str,
    /// Steps that were run.
    steps: PredictedSteps,
    #[serde(flatten)]
    outcome: OutcomeReport<'a>,
    /// `exact` or `estimate`.
    confidence: &'static str,
    /// Why it is an estimate, as sentences.
    reasons: &'a [String],
    /// What is known not to matter, and what the answer does not cover, as sentences.
    remarks: &'a [String],
    /// Lines that read values which only a real GPU computes.
    #[schemars(with = "Vec<ReadReport>")]
    reads: &'a [ValueRead],
    /// Peaks of each device.
    devices: Vec<DeviceFigures>,
    /// The job that the program is part of, if it was predicted as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobReport<'a>>,
    /// Parts of the program in their order, on the device with the highest need.
    phases: Vec<PhaseReport<'a>>,
    /// Results of `--vary`.
    vary: Option<VaryReport<'a>>,
    /// Results of `--try`.
    #[serde(rename = "try")]
    tried: Vec<VariantReport<'a>>,
    /// Report of the run, as `oomph report --json` gives it; with ample memory if the program does not fit.
    report: ReportDocument,
    /// Report of the run that ran out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    failing: Option<ReportDocument>,
}

/// The GPU that was emulated.
#[derive(Serialize, JsonSchema)]
struct GpuReport<'a> {
    /// Name that `--gpu` takes.
    key: &'a str,
    /// Product name.
    name: &'a str,
    /// Number of such GPUs.
    count: u32,
    /// Memory of one in bytes.
    memory: u64,
}

/// Steps that were run.
#[derive(Serialize, JsonSchema)]
struct PredictedSteps {
    /// Number of steps.
    count: u64,
    /// `finished`, `failed`, `steps` (as many as asked for), `periodic`, `long` or `time`.
    ended: &'static str,
}

/// Whether it fits, and what the device with the highest need takes; without an OOM if it did not fit.
#[derive(Serialize, JsonSchema)]
struct OutcomeReport<'a> {
    /// Whether the program fits.
    fits: bool,
    /// `fits`, `tight`, `fills_up` or `does_not_fit`.
    verdict: &'static str,
    /// Step in which it runs out of memory, if memory grows from step to step.
    #[serde(skip_serializing_if = "Option::is_none")]
    full_at_step: Option<u64>,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest reserved bytes.
    peak_reserved: u64,
    /// Lowest and highest `peak_allocated` over addresses that the driver may choose.
    peak_allocated_range: [u64; 2],
    /// Lowest and highest `peak_reserved` over addresses that the driver may choose.
    peak_reserved_range: [u64; 2],
    /// Bytes of the CUDA context and libraries.
    context: u64,
    /// Bytes of all that.
    total: u64,
    /// Bytes that are left; negative if it does not fit.
    headroom: i64,
    /// Number of allocations.
    requests: u64,
    /// Number of allocations that failed on this card.
    failed_requests: u64,
    /// Exception that ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    exception: Option<&'a str>,
}

/// Peaks of one device.
#[derive(Serialize, JsonSchema)]
struct DeviceFigures {
    /// Rank of the process.
    rank: u32,
    /// Device ordinal.
    device: u32,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest reserved bytes.
    peak_reserved: u64,
    /// Bytes of the CUDA context and libraries.
    context: u64,
    /// Bytes of these that NCCL takes for its code, communicators and connections, as an estimate.
    nccl: u64,
    /// Bytes of these that are symmetric memory.
    symmetric: u64,
    /// Number of allocations.
    requests: u64,
}

/// A job of many ranks, of which some ran.
#[derive(Serialize, JsonSchema)]
struct JobReport<'a> {
    /// Number of machines.
    nodes: u32,
    /// Number of ranks on each.
    gpus_per_node: u32,
    /// Number of ranks.
    world_size: u32,
    /// Dimensions in which the ranks are laid out, by the program's device meshes and process groups.
    dimensions: Vec<LayoutDimension<'a>>,
    /// Ranks that ran.
    ranks: Vec<RanRank<'a>>,
    /// What makes one rank need more than another; absent if they need the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    imbalance: Option<ImbalanceReport<'a>>,
}

/// A dimension in which ranks are laid out.
#[derive(Serialize, JsonSchema)]
struct LayoutDimension<'a> {
    /// Name in the program.
    name: &'a str,
    /// Number of positions.
    size: u32,
    /// Whether its positions are the stages of a pipeline.
    pipeline: bool,
}

/// A rank that ran.
#[derive(Serialize, JsonSchema)]
struct RanRank<'a> {
    /// The rank.
    rank: u32,
    /// Position in each dimension, by name, from 0.
    position: BTreeMap<&'a str, u32>,
    /// Number of ranks that do the same, with itself.
    stands_for: u32,
}

/// What makes one rank need more than another.
#[derive(Serialize, JsonSchema)]
struct ImbalanceReport<'a> {
    /// The rank that needs most.
    rank: u32,
    /// The rank that needs least.
    lowest: u32,
    /// Bytes by which their peaks of allocated memory differ.
    extra: u64,
    /// Modules that make the difference, largest first.
    modules: Vec<ModuleShare<'a>>,
    /// Layers to move from the first to the second to make them equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers_to_move: Option<u64>,
}

/// What a module takes on one rank beyond another.
#[derive(Serialize, JsonSchema)]
struct ModuleShare<'a> {
    /// Path of the module; `N` stands for the numbers of layers.
    module: &'a str,
    /// Bytes.
    bytes: u64,
}

/// One part of the program.
#[derive(Serialize, JsonSchema)]
struct PhaseReport<'a> {
    /// `set_up`, `loop` (over a data loader) or `between_loops`.
    part: &'static str,
    /// The line that iterates.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<PhaseSite<'a>>,
    /// Peak of allocated memory, in bytes.
    peak_allocated: u64,
    /// Peak of reserved memory, in bytes.
    peak_reserved: u64,
}

/// A line that iterates over a data loader.
#[derive(Serialize, JsonSchema)]
struct PhaseSite<'a> {
    /// File of the line.
    file: &'a str,
    /// Number of the line.
    line: u32,
    /// Function of the line.
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

/// Results of `--vary`.
#[derive(Serialize, JsonSchema)]
struct VaryReport<'a> {
    /// Argument or environment variable that was changed.
    name: &'a str,
    /// Largest value that fits; `null` if none does.
    largest: Option<u64>,
    /// First layout of the ranks that fits, of `--vary mesh=…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_fitting: Option<&'a str>,
    /// Layout of the ranks that fits and needs least, of `--vary mesh=…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    needs_least: Option<&'a str>,
    /// One run per value.
    runs: Vec<VariantReport<'a>>,
}

/// A run with something changed.
#[derive(Serialize, JsonSchema)]
struct VariantReport<'a> {
    /// Value or techniques.
    label: &'a str,
    #[serde(flatten)]
    outcome: Option<OutcomeReport<'a>>,
    /// What was done for each technique, or why it could not be.
    techniques: Option<&'a BTreeMap<String, String>>,
    /// Why it could not be run.
    error: Option<&'a str>,
}

/// A line that read a value which only a real GPU computes.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema of `ValueRead`")]
struct ReadReport {
    /// Path of the file.
    file: String,
    /// Line number, from 1.
    line: u32,
    /// Name of the function.
    function: String,
    /// Operator that read the value.
    operator: String,
    /// Value that was read.
    kind: String,
    /// Number of reads.
    count: u64,
}

impl<'a> PredictDocument<'a> {
    /// Converts a prediction; `options` are those of the reports in it.
    pub fn new(program: &PredictedProgram<'a>, options: &ReportOptions) -> PredictDocument<'a> {
        let PredictedProgram { command, gpu, gpus, prediction, variants } = program;
        let sureness = &prediction.confidence;
        PredictDocument {
            version: 1,
            program: command,
            gpu: GpuReport { key: gpu.key, name: gpu.name, count: *gpus, memory: prediction.memory },
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
            job: prediction.job.as_ref().map(job),
            phases: prediction.phases.iter().map(phase).collect(),
            vary: variants.varied.as_ref().map(|varied| VaryReport {
                name: &varied.name,
                largest: varied.largest,
                first_fitting: varied.layouts.as_ref().and_then(|layouts| layouts.first.as_deref()),
                needs_least: varied.layouts.as_ref().and_then(|layouts| layouts.least.as_deref()),
                runs: varied.runs.iter().map(variant).collect(),
            }),
            tried: variants.tried.iter().map(variant).collect(),
            report: document(&prediction.recording, options),
            failing: prediction.failing.as_ref().map(|failing| document(failing, options)),
        }
    }
}

fn document(recording: &Input, options: &ReportOptions) -> ReportDocument {
    let devices = recording.devices();
    let answers: Vec<analysis::Diagnosis<'_>> = devices.iter().map(analysis::Diagnosis::new).collect();
    let mut document = ReportDocument::default();
    document.add(recording, &answers, options);
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
        peak_allocated_range: prediction.ranges.allocated.into(),
        peak_reserved_range: prediction.ranges.reserved.into(),
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
        nccl: figures.nccl.0,
        symmetric: figures.symmetric.0,
        requests: figures.requests,
    }
}

fn job(job: &PredictedJob) -> JobReport<'_> {
    let PredictedJob { layout, ranks, need } = job;
    let position = |rank: u32| {
        let names = layout.dimensions.iter().map(|dimension| dimension.name.as_str());
        names.zip(layout.positions(rank)).collect()
    };
    JobReport {
        nodes: layout.nodes,
        gpus_per_node: layout.gpus,
        world_size: layout.world(),
        dimensions: layout
            .dimensions
            .iter()
            .map(|of| LayoutDimension { name: &of.name, size: of.size, pipeline: of.is_pipeline })
            .collect(),
        ranks: ranks
            .iter()
            .map(|&rank| RanRank {
                rank,
                position: position(rank),
                stands_for: layout.stands_for(rank, ranks),
            })
            .collect(),
        imbalance: need.as_ref().map(|need| ImbalanceReport {
            rank: need.rank,
            lowest: need.lowest,
            extra: need.extra.0,
            modules: need
                .modules
                .iter()
                .map(|(module, bytes)| ModuleShare { module, bytes: bytes.0 })
                .collect(),
            layers_to_move: need.balanced_by.as_ref().map(|moved| moved.layers),
        }),
    }
}

fn phase(phase: &ProgramPhase) -> PhaseReport<'_> {
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
        techniques: prediction.map(Prediction::techniques),
        error: variant.outcome.as_ref().err().map(String::as_str),
    }
}
