//! Memory that goes back to the device and is taken again, step after step.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::fragmentation::roomy_card;
use super::line::NamedSite;
use super::retries::retries;
use crate::run::model::RunModel;
use crate::run::step_peaks::SegmentEvent;
use crate::trace::modules::{Common, ModuleId};
use crate::words::{grouped, percent};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Bytes, FrameId, StackId};

/// Share of the later steps that have to return memory and reserve it again.
const MIN_SHARE_OF_STEPS: f64 = 0.15;
/// Steps that have to do so.
const MIN_STEPS: usize = 3;
/// Share of the time between events from which the severity is high.
const HIGH_SHARE_OF_TIME: f64 = 0.2;

/// Why the allocator returned segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReleaseReason {
    EmptyCache,
    Trial,
    Collection,
    Retry,
    Unknown,
}

/// Calls of `cudaMalloc` and `cudaFree` in the steady state, in numbers.
pub(super) struct ChurnFacts {
    severity: Severity,
    calls: Calls,
    /// Steps after the warm-up, and their share that returned memory.
    later_steps: usize,
    share_of_steps: f64,
    /// The most frequent reason.
    reason: ReleaseReason,
    /// The line at which most segments were returned.
    line: NamedSite,
    module: Option<ModuleId>,
    /// Microseconds around these calls, and of all later steps.
    waited_us: u64,
    whole_us: u64,
    share_of_time: f64,
    bytes_per_step: Bytes,
    /// Whether `max_split_size_mb` is set.
    has_max_split: bool,
    /// Retried calls of `cudaMalloc`, where the trace shows them.
    retries: Option<u64>,
    /// Whether the device could hold twice what was reserved.
    has_ample_room: bool,
}

/// The calls after the warm-up.
#[derive(Default)]
struct Calls {
    mallocs: u64,
    frees: u64,
    /// Bytes that were reserved.
    bytes: Bytes,
    reasons: FxHashMap<ReleaseReason, u64>,
    /// Returned segments by line, and the modules that they were returned in.
    lines: FxHashMap<Option<FrameId>, u64>,
    within: FxHashMap<Option<FrameId>, Common>,
    /// Streams for which large segments were reserved.
    streams: FxHashSet<u64>,
    /// Steps that returned memory, ascending.
    returning: Vec<usize>,
    /// Segments that a library returned by `empty_cache()`.
    by_library: u64,
}

/// The facts, if the steady state calls `cudaMalloc` and `cudaFree`.
pub(super) fn measure(model: &RunModel<'_>) -> Option<ChurnFacts> {
    let (snapshot, steps) = (model.device.snapshot, &model.device.steps);
    // The first fifth is warm-up.
    let first = steps.bounds.get(steps.count() / 5).copied()?;
    let late = model.step_peaks.segments.partition_point(|event| event.event < first);
    let has_ample_room = roomy_card(model).is_some();
    let calls = calls(model, &model.step_peaks.segments[late..], has_ample_room);
    let later_steps = steps.count() - steps.count() / 5;
    let share_of_steps = calls.returning.len() as f64 / later_steps.max(1) as f64;
    if calls.returning.len() < MIN_STEPS || share_of_steps < MIN_SHARE_OF_STEPS || calls.mallocs < 2 {
        return None;
    }
    let (&reason, _) = calls.reasons.iter().max_by_key(|&(reason, count)| (*count, *reason as u8))?;
    let lines = calls.lines.iter();
    let site = lines.max_by_key(|&(frame, count)| (frame.is_some(), *count, *frame)).and_then(|line| *line.0);
    let (waited_us, whole_us) = time(model, first);
    let share_of_time = waited_us as f64 / whole_us.max(1) as f64;
    Some(ChurnFacts {
        severity: if share_of_time >= HIGH_SHARE_OF_TIME { Severity::High } else { Severity::Medium },
        later_steps,
        share_of_steps,
        reason,
        line: NamedSite::new(model, site),
        module: calls.within.get(&site).and_then(Common::module),
        waited_us,
        whole_us,
        share_of_time,
        bytes_per_step: Bytes(calls.bytes.0 / later_steps.max(1) as u64),
        has_max_split: snapshot.settings.max_split.is_some(),
        retries: retries(model.device),
        has_ample_room,
        calls,
    })
}

fn calls(model: &RunModel<'_>, events: &[SegmentEvent], has_ample_room: bool) -> Calls {
    let (snapshot, history, device) = (model.device.snapshot, &model.device.history, model.device);
    let mut calls = Calls::default();
    // A flush returns many segments at once, for one reason.
    let mut last: Option<(usize, ReleaseReason)> = None;
    let trials = model.cudnn_trials();
    for event in events {
        let Some(step) = device.steps.of_event(event.event) else { continue };
        if event.reserves {
            calls.mallocs += 1;
            calls.bytes += event.bytes;
            let region = event.region.map(|region| &history.regions[region]);
            calls.streams.extend(region.filter(|region| !region.small).map(|region| region.stream));
            continue;
        }
        let stack = snapshot.events.stack(history.rows.start + event.event);
        let role = device.roles.of(stack);
        if role.capture {
            // The capture of a graph empties the cache by itself.
            continue;
        }
        let follows_on = last.is_some_and(|(at, _)| at + 1 == event.event);
        let reason = match last {
            Some((_, reason)) if follows_on => reason,
            _ if role.empty_cache => ReleaseReason::EmptyCache,
            _ if trials.binary_search(&event.event).is_ok() => ReleaseReason::Trial,
            _ if snapshot.settings.gc_threshold > 0.0 => ReleaseReason::Collection,
            // A flush makes room for a request that does not fit otherwise.
            _ if has_ample_room => ReleaseReason::Unknown,
            _ if stack == StackId::EMPTY => ReleaseReason::Unknown,
            _ => ReleaseReason::Retry,
        };
        last = Some((event.event, reason));
        calls.frees += 1;
        calls.by_library += u64::from(role.empty_cache && is_called_by_library(model, stack));
        calls.returning.push(step);
        *calls.reasons.entry(reason).or_default() += 1;
        let line = model.frame_of(stack);
        *calls.lines.entry(line).or_default() += 1;
        let module = device.scope_at(event.event).module;
        calls.within.entry(line).or_default().add(&device.modules, module, event.bytes);
    }
    calls.returning.dedup();
    calls
}

/// Whether the function that calls `empty_cache()` is a library's.
fn is_called_by_library(model: &RunModel<'_>, stack: StackId) -> bool {
    let (snapshot, sites) = (model.device.snapshot, &model.device.sites);
    let function = |&frame: &FrameId| snapshot.strings.get(snapshot.stacks.frame(frame).function);
    let mut callers =
        snapshot.stacks.frames(stack).iter().skip_while(|frame| function(frame) != "empty_cache");
    callers.find(|frame| function(frame) != "empty_cache").is_some_and(|&frame| !sites.is_user(frame))
}

/// Microseconds that passed around segment events after `first`, and in all.
fn time(model: &RunModel<'_>, first: usize) -> (u64, u64) {
    let late = model.step_peaks.segments.iter().filter(|event| event.event >= first);
    let waited = late.fold(0u64, |sum, event| {
        sum.saturating_add(model.elapsed_us(event.event.saturating_sub(1), event.event))
    });
    (waited, model.elapsed_us(first, model.device.history.len()))
}

/// The finding in words.
pub(super) fn describe(facts: &ChurnFacts) -> Finding {
    let ChurnFacts { calls, later_steps, waited_us, whole_us, bytes_per_step, .. } = facts;
    let reason = format!(
        "memory is returned and reserved again in {} of the later steps, and takes {} of their time",
        percent(facts.share_of_steps),
        percent(facts.share_of_time)
    );
    let summary = format!(
        "{} `cudaMalloc` and {} `cudaFree` calls in {} of {later_steps} steps after the warm-up: {}",
        grouped(calls.mallocs),
        grouped(calls.frees),
        calls.returning.len(),
        why(facts)
    );
    let counts =
        |wanted: ReleaseReason| EvidenceValue::Count(calls.reasons.get(&wanted).copied().unwrap_or(0));
    let mut evidence = vec![
        ("cuda_malloc", EvidenceValue::Count(calls.mallocs)),
        ("cuda_free", EvidenceValue::Count(calls.frees)),
        ("steps", EvidenceValue::Count(calls.returning.len() as u64)),
        ("of_steps", EvidenceValue::Count(*later_steps as u64)),
        ("freed_by_empty_cache", counts(ReleaseReason::EmptyCache)),
        ("freed_by_cudnn_trials", counts(ReleaseReason::Trial)),
        ("freed_by_garbage_collection", counts(ReleaseReason::Collection)),
        ("freed_to_retry", counts(ReleaseReason::Retry)),
        ("waited_us", EvidenceValue::Micros(*waited_us)),
        ("of_us", EvidenceValue::Micros(*whole_us)),
        ("threshold", EvidenceValue::Ratio(MIN_SHARE_OF_STEPS)),
    ];
    evidence.extend(facts.retries.map(|retries| ("retries", EvidenceValue::Count(retries))));
    Finding {
        count: calls.mallocs + calls.frees,
        site: facts.line.frame,
        module: facts.module,
        details: vec![format!(
            "they took {:.1} of {:.1} ms between events, and {bytes_per_step} per step went to the device \
             and back",
            *waited_us as f64 / 1e3,
            *whole_us as f64 / 1e3
        )],
        fix: fix(facts),
        evidence,
        ..Finding::new(FindingKind::Churn, facts.severity, reason, summary, *bytes_per_step)
    }
}

fn why(facts: &ChurnFacts) -> String {
    let line = facts.line.or("a line that was not recorded");
    match facts.reason {
        ReleaseReason::EmptyCache => format!("`empty_cache()` at {line} returns the cache to the device"),
        ReleaseReason::Trial => {
            "cuDNN tries its algorithms on each new shape and empties the cache afterwards".to_owned()
        }
        ReleaseReason::Collection => {
            "the allocator's garbage collection returns segments that are needed again".to_owned()
        }
        ReleaseReason::Retry => {
            "the device or the limit is full, so the cache is flushed to make room".to_owned()
        }
        ReleaseReason::Unknown => "what returned the memory was not recorded".to_owned(),
    }
}

fn fix(facts: &ChurnFacts) -> String {
    let line = facts.line.or("a line that was not recorded");
    let fix = match facts.reason {
        ReleaseReason::EmptyCache if 2 * facts.calls.by_library > facts.calls.frees => {
            return format!(
                "a library calls `empty_cache()` below {line}: look for its setting (transformers: \
                 `torch_empty_cache_steps`), or leave it, if the time does not matter"
            );
        }
        ReleaseReason::EmptyCache => {
            return format!(
                "remove `empty_cache()` at {line}: PyTorch reuses its cache by itself, and returning it \
                 only helps another process on the same GPU"
            );
        }
        ReleaseReason::Trial => {
            "set `torch.backends.cudnn.benchmark = False`, or feed few, fixed shapes: pad or bucket the \
             inputs"
        }
        ReleaseReason::Collection => {
            "raise `garbage_collection_threshold`, or drop it and use `expandable_segments:True`"
        }
        ReleaseReason::Retry | ReleaseReason::Unknown if facts.has_max_split => {
            "drop `max_split_size_mb`: blocks above it are never split, so a cached one rarely fits"
        }
        ReleaseReason::Retry | ReleaseReason::Unknown if facts.calls.streams.len() > 1 => {
            "run the work on one stream: streams cannot use each other's cached memory, so each flushes the \
             other's"
        }
        ReleaseReason::Unknown if facts.has_ample_room => {
            "look for `torch.cuda.empty_cache()`, of the program or of a library: the device had room, so \
             nothing else returns memory"
        }
        ReleaseReason::Retry | ReleaseReason::Unknown => {
            "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, keep shapes equal from step to step, or \
             leave more room: a smaller batch, a higher limit"
        }
    };
    fix.to_owned()
}
