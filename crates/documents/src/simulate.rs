//! The JSON of `oomph simulate --json`: public and versioned.

use crate::sites::ReportedSite;
use allocator::{Oom, RecordedRun};
use inputs::Input;
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::History;
use whatif::{Caveat, Simulation, Trial, export_line, site};

const VERSION: u32 = 1;

/// One replay; with `--search`, all settings that were tried; with `--verify`, the comparison of the model
/// with the recording, or a list of them.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(missing_docs, reason = "a comment on a variant would change the schema")]
pub enum SimulateDocument {
    Trial(Box<TrialReport>),
    Search(SearchReport),
    Verification(Box<VerificationReport>),
    Verifications(VerificationsReport),
}

/// One replay of the recorded run.
#[derive(Serialize, JsonSchema)]
pub struct TrialReport {
    /// Version of the format.
    version: u32,
    /// Name of the snapshot.
    file: String,
    /// Device ordinal.
    device: u32,
    /// Allocator settings of the replay, as in `PYTORCH_CUDA_ALLOC_CONF`.
    settings: String,
    /// Line for the shell that sets them.
    export: String,
    /// torch release whose rules were used.
    torch: String,
    /// Memory of the GPU in bytes; `null` if it is as in the recorded run.
    gpu: Option<u64>,
    /// Bytes that PyTorch may use; `null` if unlimited.
    limit: Option<u64>,
    /// Whether the run would have fit.
    fits: bool,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest reserved bytes.
    peak_reserved: u64,
    /// Lowest and highest `peak_reserved` in bytes, where it depends on addresses chosen by the driver.
    peak_reserved_range: [u64; 2],
    /// Index of the event at which the peak is reached.
    peak_reserved_event: usize,
    /// Reserved bytes at the end.
    end_reserved: u64,
    /// Segments of the replay.
    segments: SegmentCalls,
    /// Number of requests that succeeded only after all cached memory had been released.
    retries: u64,
    /// First request that fails; `null` if none does.
    oom: Option<SimulatedOom>,
    /// Indexes of the events of requests that failed in the recorded run but not here.
    rescued: Vec<usize>,
    /// Whether the replay reached the end of the recording.
    finished: bool,
    /// Memory in bytes of the smallest GPU that works; `null` without `--smallest-gpu`.
    smallest_gpu: Option<u64>,
    /// Numbers of the recorded run.
    recorded: RecordedReport,
    /// Always `null` for a replay.
    verify: Option<ModelComparison>,
    /// What limits the answer, as sentences.
    caveats: Vec<String>,
}

/// Number of segments taken from the driver and given back.
#[derive(Serialize, JsonSchema)]
struct SegmentCalls {
    /// Number of `cudaMalloc` calls and mappings.
    allocs: u64,
    /// Number of `cudaFree` calls and unmappings.
    frees: u64,
}

/// Request that fails in a replay.
#[derive(Serialize, JsonSchema)]
struct SimulatedOom {
    /// Index of the event of the recording that made the request.
    event: usize,
    /// Number of the step, from 1; `null` if it belongs to no step.
    step: Option<usize>,
    /// Line that made the request.
    site: Option<ReportedSite>,
    /// Bytes that the program requested.
    requested: u64,
    /// Bytes that the allocator requested from the driver.
    wanted: u64,
    /// Allocated bytes at that moment.
    allocated: u64,
    /// Reserved bytes at that moment.
    reserved: u64,
    /// Size in bytes of the largest free block of its pool and stream.
    largest_free: u64,
    /// Bytes that are missing.
    short: u64,
    /// `fragmentation` if the request would have fit into free memory in one piece, otherwise `capacity`.
    cause: &'static str,
    /// Whether this request failed in the recorded run as well.
    was_recorded: bool,
}

/// Numbers of the recorded run.
#[derive(Serialize, JsonSchema)]
struct RecordedReport {
    /// Allocator settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    settings: String,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest reserved bytes.
    peak_reserved: u64,
    /// Reserved bytes at the end.
    end_reserved: u64,
    /// Segments of the recorded run.
    segments: SegmentCalls,
    /// Number of failed allocations.
    ooms: u64,
    /// Whether the model repeats every recorded decision.
    identical: bool,
}

/// All settings that were tried.
#[derive(Serialize, JsonSchema)]
pub struct SearchReport {
    /// Version of the format.
    version: u32,
    /// Name of the snapshot.
    file: String,
    /// Device ordinal.
    device: u32,
    /// Numbers of the recorded run.
    recorded: RecordedReport,
    /// Settings that need the least memory; `null` if none fit.
    best: Option<BestSettings>,
    /// All replays, the best first.
    trials: Vec<TrialReport>,
}

/// Settings that need the least memory.
#[derive(Serialize, JsonSchema)]
struct BestSettings {
    /// Allocator settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    settings: String,
    /// Line for the shell that sets them.
    export: String,
    /// Highest reserved bytes.
    peak_reserved: u64,
}

/// Comparisons of several devices or inputs.
#[derive(Serialize, JsonSchema)]
pub struct VerificationsReport {
    /// Version of the format.
    version: u32,
    /// One comparison per device of each input.
    inputs: Vec<VerificationReport>,
}

/// Comparison of the model with the recording of one device.
#[derive(Serialize, JsonSchema)]
pub struct VerificationReport {
    /// Version of the format.
    version: u32,
    /// Name of the snapshot.
    file: String,
    /// Device ordinal.
    device: u32,
    /// Allocator settings of the recorded run, as in `PYTORCH_CUDA_ALLOC_CONF`.
    settings: String,
    /// torch release whose rules were used.
    torch: String,
    /// torch releases that write such a file.
    torch_of_the_file: String,
    /// Bytes that PyTorch could use; `null` if unlimited.
    limit: Option<u64>,
    /// Highest allocated bytes.
    peak_allocated: u64,
    /// Highest reserved bytes.
    peak_reserved: u64,
    /// Twice `peak_reserved`: a recorded run has no range.
    peak_reserved_range: [u64; 2],
    /// Reserved bytes at the end.
    end_reserved: u64,
    /// Segments of the recorded run.
    segments: SegmentCalls,
    /// Number of requests that succeeded only after all cached memory had been released.
    retries: u64,
    /// Always `null` for a comparison.
    oom: Option<SimulatedOom>,
    /// Result of the comparison.
    verify: ModelComparison,
}

/// How far the model repeats the recorded decisions.
#[derive(Serialize, JsonSchema)]
struct ModelComparison {
    /// Number of events of the recording.
    events: usize,
    /// Number of events up to the first difference.
    identical: usize,
    /// First difference as a sentence; `null` if there is none.
    first_difference: Option<String>,
    /// State of the segments around the first difference, one line each; `null` if there is none.
    around: Option<Vec<String>>,
    /// Number of segments assumed to have belonged to private pools that were deleted before the end.
    assumed_private_segments: usize,
}

impl SimulateDocument {
    /// One replay.
    pub fn trial(simulation: &Simulation<'_>, of: &Trial) -> SimulateDocument {
        SimulateDocument::Trial(Box::new(trial(simulation, of)))
    }

    /// All settings that were tried, the best first.
    pub fn search(simulation: &Simulation<'_>, trials: &[Trial]) -> SimulateDocument {
        SimulateDocument::Search(SearchReport {
            version: VERSION,
            file: simulation.name.to_owned(),
            device: simulation.device.history.device,
            recorded: recorded(simulation),
            best: trials.first().filter(|best| best.fits()).map(|best| BestSettings {
                settings: best.conf.clone(),
                export: export_line(&best.conf),
                peak_reserved: best.outcome.peak_reserved,
            }),
            trials: trials.iter().map(|each| trial(simulation, each)).collect(),
        })
    }

    /// One comparison as it is, several as a list.
    pub fn verifications(mut reports: Vec<VerificationReport>) -> SimulateDocument {
        match reports.len() {
            1 => SimulateDocument::Verification(Box::new(reports.remove(0))),
            _ => SimulateDocument::Verifications(VerificationsReport { version: VERSION, inputs: reports }),
        }
    }
}

impl VerificationReport {
    /// Compares a replayed history with its recording.
    pub fn new(
        input: &Input,
        history: &History,
        recorded: &RecordedRun<'_>,
        settings: &str,
    ) -> VerificationReport {
        let verification = recorded.verification();
        let conditions = recorded.conditions();
        let peak_reserved = history.reserved_peak.bytes.0;
        VerificationReport {
            version: VERSION,
            file: input.name.clone(),
            device: history.device,
            settings: settings.to_owned(),
            torch: recorded.release.to_string(),
            torch_of_the_file: input.snapshot.torch.to_string(),
            limit: [conditions.available, conditions.limit].into_iter().flatten().min(),
            peak_allocated: history.allocated_peak.bytes.0,
            peak_reserved,
            peak_reserved_range: [peak_reserved, peak_reserved],
            end_reserved: history.end.reserved.0,
            segments: recorded_segments(history),
            retries: verification.retries,
            oom: None,
            verify: ModelComparison {
                events: verification.events,
                identical: verification.identical,
                first_difference: verification.difference.map(ToString::to_string),
                around: verification.difference.map(|difference| difference.around.clone()),
                assumed_private_segments: verification.assumed_private,
            },
        }
    }
}

fn trial(simulation: &Simulation<'_>, trial: &Trial) -> TrialReport {
    let Trial { what, outcome, .. } = trial;
    let (low, high) = outcome.peak_reserved_range;
    TrialReport {
        version: VERSION,
        file: simulation.name.to_owned(),
        device: simulation.device.history.device,
        settings: trial.conf.clone(),
        export: export_line(&trial.conf),
        torch: simulation.recorded.release.to_string(),
        gpu: what.total,
        limit: [what.available, what.limit].into_iter().flatten().min(),
        fits: trial.fits(),
        peak_allocated: outcome.peak_allocated,
        peak_reserved: outcome.peak_reserved,
        peak_reserved_range: [low, high],
        peak_reserved_event: outcome.peak_reserved_event,
        end_reserved: outcome.end_reserved,
        segments: SegmentCalls { allocs: outcome.device_allocs, frees: outcome.device_frees },
        retries: outcome.retries,
        oom: outcome.oom.as_ref().map(|oom| failure(simulation, oom)),
        rescued: outcome.rescued.clone(),
        finished: outcome.finished,
        smallest_gpu: trial.smallest,
        recorded: recorded(simulation),
        verify: None,
        caveats: Caveat::all(simulation, trial).iter().map(ToString::to_string).collect(),
    }
}

fn failure(simulation: &Simulation<'_>, oom: &Oom) -> SimulatedOom {
    SimulatedOom {
        event: oom.event,
        step: simulation.device.steps.main_of_event(oom.event).map(|step| step + 1),
        site: site(simulation, oom.event).as_ref().map(ReportedSite::from),
        requested: oom.requested,
        wanted: oom.wanted,
        allocated: oom.allocated,
        reserved: oom.reserved,
        largest_free: oom.largest_free,
        short: (oom.reserved + oom.wanted).saturating_sub(oom.room),
        cause: if oom.is_fragmentation { "fragmentation" } else { "capacity" },
        was_recorded: oom.was_recorded,
    }
}

fn recorded(simulation: &Simulation<'_>) -> RecordedReport {
    let history = &simulation.device.history;
    RecordedReport {
        settings: simulation.recorded_conf().to_owned(),
        peak_allocated: history.allocated_peak.bytes.0,
        peak_reserved: history.reserved_peak.bytes.0,
        end_reserved: history.end.reserved.0,
        segments: recorded_segments(history),
        ooms: history.stats.ooms,
        identical: simulation.recorded.verification().difference.is_none(),
    }
}

fn recorded_segments(history: &History) -> SegmentCalls {
    SegmentCalls { allocs: history.stats.device_allocs, frees: history.stats.device_frees }
}
