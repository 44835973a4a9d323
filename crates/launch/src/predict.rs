//! Predicts whether a program fits on a GPU, by running it on an emulated one.

use crate::calibration::Calibration;
use crate::confidence::{
    PredictionConfidence, address_doubt, doubts, has_cut_loops, judge_reads, loop_doubts, model_remark,
    not_covered,
};
use crate::phases::phases;
use crate::ranks::{RankUsage, need, observed_layout, planned, spawning};
use crate::{
    AMPLE_MEMORY_BYTES, CompletedRun, EmulatedGpu, Job, JobLayout, Notes, OutputFolder, ProgramOutput,
    ProgramPhase, RankNeed, RunFolder,
};
use allocator::{KnownConditions, PeakRanges, RecordedRun};
use analysis::RunModel;
use analysis::words::shown_path;
use failure::Failure;
use inputs::{Input, ProgressReporter};
use recording::{EmulationInfo, Exit, ObservedProgram, RunInfo, RunState, StopReason};
use snapshot::{Action, Bytes, History};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Said before a program that may rely on all of its batches runs again.
const RUN_WITHOUT_LATER_ITERATIONS: &str =
    "the program failed in a later iteration of a loop; running it again without later iterations";
const RUN_WITH_OTHER_VALUES: &str =
    "running the program again with other values to see whether they matter (`--once` skips this)";
const RUN_WITH_ALL_ITERATIONS: &str =
    "the program failed after a loop was cut short; running it again with all iterations";

/// Allocated memory, as a multiple of the GPU's, with which a variant is not run on the GPU itself.
const CLEARLY_TOO_MUCH: f64 = 1.1;

/// Share of the GPU's memory that a program has to leave free; with less, a small difference decides.
const MIN_SPARE: f64 = 0.03;

/// Whether a program fits on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FitVerdict {
    /// It fits.
    Fits,
    /// It fits, with next to nothing to spare.
    Tight,
    /// It fits for the steps that ran, but memory grows from step to step.
    FillsUp {
        /// Step in which it runs out of memory, counted from 1.
        at_step: u64,
        /// Bytes that each step adds.
        per_step: Bytes,
    },
    /// It ran out of memory.
    DoesNotFit,
}

impl FitVerdict {
    /// Returns whether the program can run for as long as it likes.
    pub fn fits(self) -> bool {
        matches!(self, FitVerdict::Fits | FitVerdict::Tight)
    }

    /// Returns whether the steps that ran did not run out of memory.
    pub fn fits_now(self) -> bool {
        self != FitVerdict::DoesNotFit
    }
}

/// Whether a program fits on a GPU, and the memory that it needs.
pub struct Prediction {
    /// Whether the program fits.
    pub verdict: FitVerdict,
    /// Peak of the device that needs most, over all ranks; with ample memory if the program does not fit.
    pub highest: DevicePeak,
    /// Peaks of all devices of all ranks.
    pub all: Vec<DevicePeak>,
    /// Lowest and highest peaks over addresses that the driver may return, and over how far such predictions
    /// were off, on the device that needs most.
    pub ranges: PeakRanges,
    /// Phases of the program on the device that needs most; none if it has no loop over a data loader.
    pub phases: Vec<ProgramPhase>,
    /// Recording of the rank with the highest peak; with ample memory if the program does not fit.
    pub recording: Input,
    /// Recording on the GPU itself, if the program does not fit.
    pub failing: Option<Input>,
    /// How the run on the emulated GPU itself ended.
    pub info: RunInfo,
    /// Number of allocations that failed on the emulated GPU.
    pub failed_requests: u64,
    /// Memory of the emulated GPU, in bytes.
    pub memory: u64,
    /// How certain the prediction is.
    pub confidence: PredictionConfidence,
    /// The job that the program is part of, if it was predicted as a whole.
    pub job: Option<PredictedJob>,
}

/// A job of many ranks, of which some ran.
pub struct PredictedJob {
    /// How it lays out its ranks.
    pub layout: JobLayout,
    /// Ranks that ran.
    pub ranks: Vec<u32>,
    /// What makes one rank need more than another, if they differ.
    pub need: Option<RankNeed>,
}

impl Prediction {
    /// Returns what each technique did, in the run that had enough memory to get that far.
    pub fn techniques(&self) -> &BTreeMap<String, String> {
        &self.recording.run.as_ref().unwrap_or(&self.info).emulation.techniques
    }
}

/// Peak memory of one device of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevicePeak {
    /// Rank of the process.
    pub rank: u32,
    /// Device ordinal.
    pub device: u32,
    /// Peak of allocated memory.
    pub allocated: Bytes,
    /// Peak of reserved memory.
    pub reserved: Bytes,
    /// Non-PyTorch memory of the process: the CUDA context and libraries.
    pub non_pytorch: Bytes,
    /// Bytes of it that NCCL takes.
    pub nccl: Bytes,
    /// Bytes of it that are symmetric memory.
    pub symmetric: Bytes,
    /// Number of allocations.
    pub requests: u64,
    /// Whether a free had to wait for another stream.
    pub(crate) has_deferred_frees: bool,
    /// Whether the peak of allocated memory was before the first event that was kept.
    is_before_history: bool,
    /// Hash of all allocations and frees, in order.
    fingerprint: u64,
}

impl DevicePeak {
    /// Returns reserved plus non-PyTorch memory.
    pub fn total(&self) -> Bytes {
        self.reserved + self.non_pytorch
    }
}

/// Returns a command as text for messages.
pub fn command_text(program: &[OsString]) -> String {
    program.iter().map(shown_path).collect::<Vec<_>>().join(" ")
}

/// Runs a program on an emulated GPU. Runs it again with ample memory if it ran out, and, unless `once`,
/// again with other values if it read some that only a real GPU computes.
pub fn predict(job: &Job, folder: &RunFolder, once: bool) -> anyhow::Result<Prediction> {
    let job = &planned(job)?;
    let emulated = job.emulated.as_ref().ok_or_else(|| anyhow::anyhow!("a prediction needs a GPU model"))?;
    let done = crate::run_to_end(job, folder)?;
    if let Some(spawned) = spawning(job, &done) {
        return predict(&spawned, folder, once);
    }
    let layout = job.ranks.as_ref().map(|plan| match &plan.layout {
        Some(layout) => Ok(layout.clone()),
        None => observed_layout(plan, &done),
    });
    let layout = layout.transpose()?;
    let first = measure(&done, &job.progress)?;
    let info = first.info.clone();
    if has_failed(&info) {
        // The program may rely on all of its batches, and compare their number with that of its samples.
        if let Some(other) = with_other_iterations(job, &info.emulation) {
            return predict(&other, folder, once);
        }
        // The program may have failed because of a value that reads as 0: it divides by it, for example.
        if emulated.unknown == 0 && !info.emulation.reads.is_empty() && done.notes.uncovered.is_empty() {
            let other = Job { emulated: Some(EmulatedGpu { unknown: 1, ..emulated.clone() }), ..job.clone() };
            if let Ok(prediction) = predict(&other, folder, once) {
                return Ok(prediction);
            }
        }
        return Err(failed(&info, &done).into());
    }
    let ran_out = ran_out_of_memory(&info);
    let failed_requests = first.ooms;
    let (notes, peaks, failing) = match ran_out {
        true => {
            let (notes, peaks) = with_ample_memory(job, emulated)?;
            (notes, peaks, Some(first.recording))
        }
        false => (done.notes, first, None),
    };
    let mut confidence =
        PredictionConfidence { reasons: doubts(&notes, &peaks.all, &info), remarks: Vec::new() };
    if !peaks.info.emulation.reads.is_empty() {
        let differs = (!once).then(|| differs_with_other_values(job, &peaks, ran_out));
        judge_reads(&peaks.info.emulation.reads, differs, &mut confidence);
    }
    let capacity = if ran_out { AMPLE_MEMORY_BYTES } else { emulated.capacity.unwrap_or(emulated.memory) };
    let ranges = ranges(&peaks, capacity);
    confidence.reasons.extend(address_doubt(&ranges, &peaks.highest));
    let calibration = Calibration::of(&notes);
    confidence.reasons.extend(calibration.map(Calibration::doubt));
    let ranges = calibration.map_or(ranges, |calibration| calibration.widen(ranges));
    confidence.reasons.extend(loop_doubts(&peaks.info));
    // What was asked for with `--steps N` is all that is judged.
    let has_own_limit = peaks.info.state.exit() == Some(Exit::Stopped(StopReason::Steps));
    let left_out = not_covered(&peaks.info);
    if has_own_limit { &mut confidence.remarks } else { &mut confidence.reasons }.extend(left_out);
    if peaks.all.iter().any(|peak| peak.is_before_history) {
        confidence.remarks.push(
            "the program made more requests than are kept, and the peak is not among the last: the peak is \
             PyTorch's own counter, phases and lines are those of what was kept"
                .to_owned(),
        );
    }
    confidence.remarks.extend(model_remark(&emulated.model).map(str::to_owned));
    let phases = phases(&peaks.recording, peaks.highest.device, &peaks.info.emulation);
    let RunPeaks { highest, all, ranks, need, recording, .. } = peaks;
    let verdict = match ran_out {
        true => FitVerdict::DoesNotFit,
        false => verdict(&highest, &recording, &info, Bytes(emulated.memory)),
    };
    Ok(Prediction {
        verdict,
        highest,
        all,
        ranges,
        phases,
        recording,
        failing,
        info,
        failed_requests,
        memory: emulated.memory,
        confidence,
        job: layout.map(|layout| PredictedJob { layout, ranks, need }),
    })
}

/// Predicts a variant of a program in one run where that is enough. On a GPU from which more can be allocated
/// than it has, a program that stays within the GPU's memory does what it does on the GPU itself.
pub(crate) fn predict_variant(job: &Job, folder: &RunFolder) -> anyhow::Result<Prediction> {
    let mut ample = job.clone();
    let Some(emulated) = &mut ample.emulated else { return predict(job, folder, true) };
    emulated.capacity = Some(AMPLE_MEMORY_BYTES);
    let mut prediction = predict(&ample, folder, true)?;
    let allocated = prediction.highest.allocated + prediction.highest.non_pytorch;
    if prediction.highest.total().0 <= prediction.memory {
        return Ok(prediction);
    }
    // Programs, and cuDNN where it tries its algorithms, may get by with less if an allocation fails.
    if allocated.0 as f64 > CLEARLY_TOO_MUCH * prediction.memory as f64 {
        prediction.verdict = FitVerdict::DoesNotFit;
        return Ok(prediction);
    }
    predict(job, folder, true)
}

/// Judges a run that did not run out of memory. One that was stopped would have gone on, and what grows with
/// it.
fn verdict(highest: &DevicePeak, recording: &Input, info: &RunInfo, memory: Bytes) -> FitVerdict {
    let left = memory.saturating_sub(highest.total());
    let skipped = skipped_growth(&info.emulation);
    let goes_on = matches!(
        info.state.exit(),
        Some(Exit::Stopped(StopReason::Periodic | StopReason::Long | StopReason::TimeLimit))
    );
    let by_loop = || info.emulation.loops.iter().map(|of| Bytes(of.growth)).max();
    let is_over = skipped > left;
    if (goes_on || is_over)
        && let Some(per_step) = growth(recording, highest.device).or_else(|| by_loop().filter(|_| is_over))
    {
        let more = left.0 / per_step.0;
        let at_step = info.steps.unwrap_or_default().saturating_add(more).saturating_add(1);
        return FitVerdict::FillsUp { at_step, per_step };
    }
    let left = left.saturating_sub(skipped);
    let is_tight = (left.0 as f64) < MIN_SPARE * memory.0 as f64;
    if is_tight { FitVerdict::Tight } else { FitVerdict::Fits }
}

/// Returns the bytes that the skipped iterations of loops would have added.
fn skipped_growth(emulation: &EmulationInfo) -> Bytes {
    emulation.loops.iter().map(|of| Bytes(of.skipped_growth)).sum()
}

/// Returns the peaks of the device that needs most with other addresses, on a GPU with `memory` bytes.
fn ranges(peaks: &RunPeaks, memory: u64) -> PeakRanges {
    let DevicePeak { device, allocated, reserved, non_pytorch, .. } = peaks.highest;
    let snapshot = &peaks.recording.snapshot;
    let history = History::new(snapshot, device);
    let recorded = RecordedRun::new(snapshot, &history, KnownConditions::default());
    // Where the model does not reproduce the run, it cannot tell how the run depends on addresses.
    if recorded.verification().difference.is_some() {
        let point = |peak: Bytes| (peak.0, peak.0);
        return PeakRanges { allocated: point(allocated), reserved: point(reserved), may_fail: false };
    }
    recorded.peaks_with_other_addresses(memory.checked_sub(non_pytorch.0))
}

/// Returns the bytes that each step adds on a device, by findings that matter.
fn growth(recording: &Input, device: u32) -> Option<Bytes> {
    let devices = recording.devices();
    let device = devices.iter().find(|found| found.history.device == device)?;
    let findings = analysis::Diagnosis::new(device).findings;
    let growing =
        findings.iter().filter(|of| of.steps_until_full.is_some() && of.severity > analysis::Severity::Low);
    let per_step: Bytes = growing.filter_map(|finding| finding.bytes_per_step).sum();
    (per_step > Bytes::ZERO).then_some(per_step)
}

/// Returns the same job with the iterations that it may need: without later ones, or with all. Nothing if it
/// had all of them.
fn with_other_iterations(job: &Job, emulation: &EmulationInfo) -> Option<Job> {
    if job.runs_later_iterations && !emulation.later_iterations.is_empty() {
        (job.progress.say)(RUN_WITHOUT_LATER_ITERATIONS);
        return Some(Job { runs_later_iterations: false, ..job.clone() });
    }
    if job.cuts_loops && has_cut_loops(emulation) {
        (job.progress.say)(RUN_WITH_ALL_ITERATIONS);
        return Some(Job { cuts_loops: false, ..job.clone() });
    }
    None
}

/// Runs a program that ran out of memory again, on a GPU that has enough for it.
fn with_ample_memory(job: &Job, emulated: &EmulatedGpu) -> anyhow::Result<(Notes, RunPeaks)> {
    let mut ample = quiet(job);
    ample.emulated = Some(EmulatedGpu { capacity: Some(AMPLE_MEMORY_BYTES), ..emulated.clone() });
    let scratch = RunFolder::new(OutputFolder::Temporary)?;
    let done = crate::run_to_end(&ample, &scratch)?;
    let peaks = measure(&done, &job.progress)?;
    if has_failed(&peaks.info) {
        if let Some(other) = with_other_iterations(job, &peaks.info.emulation) {
            return with_ample_memory(&other, emulated);
        }
        return Err(failed(&peaks.info, &done).into());
    }
    Ok((done.notes, peaks))
}

/// Runs a program for one step on a GPU that has enough memory for it, to see what a change to it would
/// touch. Nothing if it does not get that far.
pub fn observe(job: &Job) -> anyhow::Result<Option<ObservedProgram>> {
    let mut job =
        Job { steps: Some(1), time_limit: None, techniques: vec!["observe".to_owned()], ..quiet(job) };
    if let Some(emulated) = &mut job.emulated {
        emulated.capacity = Some(AMPLE_MEMORY_BYTES);
    }
    let done = crate::run_to_end(&job, &RunFolder::new(OutputFolder::Temporary)?)?;
    Ok(done.ranks.into_iter().next().and_then(|rank| rank.info.emulation.observed))
}

/// Returns the same job with its output captured.
fn quiet(job: &Job) -> Job {
    Job { output: ProgramOutput::Captured, ..job.clone() }
}

/// Returns whether the program makes other requests when it reads other values.
fn differs_with_other_values(job: &Job, peaks: &RunPeaks, ran_out: bool) -> bool {
    (job.progress.say)(RUN_WITH_OTHER_VALUES);
    let mut other = quiet(job);
    if let Some(emulated) = &mut other.emulated {
        emulated.unknown = 1 - emulated.unknown;
        if ran_out {
            emulated.capacity = Some(AMPLE_MEMORY_BYTES);
        }
    }
    // Compared over the same number of steps, even where the run would stop earlier or later by itself.
    let is_cut = has_cut_loops(&peaks.info.emulation);
    if peaks.info.state == RunState::Exited(Exit::Stopped(StopReason::Periodic)) && !is_cut {
        other.steps = peaks.info.steps.and_then(|steps| u32::try_from(steps).ok());
    }
    let again = RunFolder::new(OutputFolder::Temporary)
        .and_then(|scratch| measure(&crate::run_to_end(&other, &scratch)?, &job.progress));
    // Where time has decided, no two runs are equal in all of their requests.
    let is_timed = peaks.info.state == RunState::Exited(Exit::Stopped(StopReason::TimeLimit));
    let needs = |peaks: &RunPeaks| -> Vec<(Bytes, Bytes)> {
        peaks.all.iter().map(|peak| (peak.allocated, peak.reserved)).collect()
    };
    again.map_or(true, |again| match is_timed {
        true => needs(&again) != needs(peaks),
        false => again.all != peaks.all,
    })
}

/// Peaks found in the recordings of a run.
struct RunPeaks {
    highest: DevicePeak,
    all: Vec<DevicePeak>,
    ranks: Vec<u32>,
    need: Option<RankNeed>,
    recording: Input,
    info: RunInfo,
    ooms: u64,
}

/// Reads the recordings of a run.
fn measure(done: &CompletedRun, progress: &ProgressReporter) -> anyhow::Result<RunPeaks> {
    let mut all = Vec::new();
    let mut ooms = 0;
    let mut best: Option<(DevicePeak, Input, RunInfo)> = None;
    let mut usages = Vec::new();
    for rank in &done.ranks {
        let input = inputs::load(&rank.snapshot, progress)?;
        for device in input.snapshot.devices() {
            let history = History::new(&input.snapshot, device);
            let non_pytorch = rank.info.emulation.non_pytorch.get(device as usize).copied().flatten();
            let events = input.snapshot.events.iter(input.snapshot.rows(device));
            ooms += events.filter(|event| event.action == Action::Oom).count() as u64;
            all.push(DevicePeak {
                nccl: rank.info.emulation.nccl,
                symmetric: rank.info.emulation.symmetric,
                ..device_peak(rank.rank, &input, &history, non_pytorch.unwrap_or_default())
            });
        }
        let highest = all.iter().filter(|peak| peak.rank == rank.rank).max_by_key(|peak| peak.total());
        if let Some(peak) = highest
            && done.ranks.len() > 1
        {
            let devices = input.devices();
            let device = devices.iter().find(|device| device.history.device == peak.device);
            usages.extend(device.map(|device| RankUsage::new(rank.rank, &RunModel::new(device))));
        }
        if let Some(highest) = highest
            && best.as_ref().is_none_or(|(peak, _, _)| peak.total() < highest.total())
        {
            best = Some((highest.clone(), input, rank.info.clone()));
        }
    }
    match best {
        Some((highest, recording, info)) => {
            // A job ends as badly as the worst of its ranks. When one has run out of memory, others fail
            // because it is gone.
            let out_of_memory = done.ranks.iter().find(|rank| ran_out_of_memory(&rank.info));
            let worst = out_of_memory.or_else(|| done.ranks.iter().find(|rank| has_failed(&rank.info)));
            let info = worst.map_or(info, |rank| rank.info.clone());
            let ranks = done.ranks.iter().map(|rank| rank.rank).collect();
            Ok(RunPeaks { highest, all, ranks, need: need(&usages), recording, info, ooms })
        }
        None => Err(nothing_recorded(done).into()),
    }
}

fn device_peak(rank: u32, input: &Input, history: &History, non_pytorch: Bytes) -> DevicePeak {
    let snapshot = &input.snapshot;
    let earlier_peak = input.recording.earlier_peak(history);
    let mut hasher = DefaultHasher::new();
    let mut count = 0;
    for event in snapshot.events.iter(snapshot.rows(history.device)) {
        if matches!(event.action, Action::Alloc | Action::FreeRequested) {
            (event.action == Action::Alloc, event.size.0).hash(&mut hasher);
            count += u64::from(event.action == Action::Alloc);
        }
    }
    DevicePeak {
        rank,
        device: history.device,
        allocated: history.allocated_peak.bytes.max(earlier_peak.unwrap_or_default()),
        is_before_history: earlier_peak.is_some(),
        reserved: history.reserved_peak.bytes.max(earlier_peak.unwrap_or_default()),
        non_pytorch,
        nccl: Bytes::ZERO,
        symmetric: Bytes::ZERO,
        requests: count,
        has_deferred_frees: history
            .allocations
            .iter()
            .any(|allocation| history.is_deferred(snapshot, allocation)),
        fingerprint: hasher.finish(),
    }
}

fn ran_out_of_memory(info: &RunInfo) -> bool {
    info.state == RunState::Exited(Exit::OutOfMemory)
}

fn has_failed(info: &RunInfo) -> bool {
    info.state == RunState::Exited(Exit::Failed)
}

fn failed(info: &RunInfo, done: &CompletedRun) -> Failure {
    let first_line = info.exception_line().unwrap_or_default().to_owned();
    let hint = uncovered_hint(&done.notes)
        .unwrap_or_else(|| "the traceback is above; does the program run on a real GPU?".to_owned());
    Failure::new("the program failed on the emulated GPU", Some(first_line), Some(&hint))
}

/// Returns the hint for a program that may have failed because of a function that the emulator lacks.
fn uncovered_hint(notes: &Notes) -> Option<String> {
    let name = notes.uncovered.first()?;
    Some(format!("`{name}` is not covered by the emulator; the program cannot be predicted as it is"))
}

/// Returns the error for a run that left no recording.
pub fn nothing_recorded(done: &CompletedRun) -> Failure {
    if let Some(failure) = done.notes.failures.first() {
        return Failure::new("the program could not run on an emulated GPU", Some(failure.clone()), None);
    }
    if let Some(why) = &done.unwritable {
        let hint = "free some space, or choose another folder with `-o`";
        return Failure::new("nothing was recorded", Some(why.clone()), Some(hint));
    }
    if let Some(problem) = done.problems.first() {
        return Failure::new("nothing was recorded", Some(problem.clone()), None);
    }
    if !done.notes.is_prepared && done.status.success() {
        return Failure::new(
            "nothing was recorded",
            Some("no Python process of the program has loaded the recorder".to_owned()),
            Some(
                "Python's options -I, -E and -S keep it out (PYTHONPATH is ignored); is it a Python program?",
            ),
        );
    }
    match done.status.code() {
        Some(0) if done.notes.has_used_cuda => Failure::new(
            "PyTorch allocated no GPU memory",
            Some("the program used CUDA, but none of its memory came from PyTorch's allocator".to_owned()),
            Some("what other libraries allocate, and managed or symmetric memory, is not recorded"),
        ),
        Some(0) => Failure::new(
            "the program never used CUDA",
            Some("it exited normally without allocating GPU memory".to_owned()),
            Some(
                "does it choose the GPU by an argument or an environment variable? `oomph run --cpu` records \
                 tensors on the CPU",
            ),
        ),
        Some(code) => {
            let cause = done.last_message.clone().or(Some(format!("it ended with exit code {code}")));
            if done.notes.has_used_cuda {
                let hint = uncovered_hint(&done.notes).unwrap_or_else(|| {
                    "its own message is above; does the program run on a real GPU?".to_owned()
                });
                let what = "the program failed before PyTorch allocated GPU memory";
                return Failure::new(what, cause, Some(&hint));
            }
            let hint = match done.notes.has_torch {
                true => "its own message is above",
                false => "its own message is above; is torch installed in this environment (`--python`)?",
            };
            Failure::new("the program failed before it used CUDA", cause, Some(hint))
        }
        None => Failure::new(
            "the program was killed",
            Some(done.status.to_string()),
            Some("if it needs much host memory, the system may have killed it"),
        ),
    }
}
