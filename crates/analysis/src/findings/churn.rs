//! Memory that goes back to the device and is taken again, step after step.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::run::model::RunModel;
use crate::trace::modules::Common;
use crate::words::{grouped, percent, place_or};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Bytes, FrameId, StackId};

/// Share of the later steps that have to return memory and reserve it again.
const LEAST_STEPS: f64 = 0.15;
const FEWEST_STEPS: usize = 3;
const HIGH_TIME: f64 = 0.2;

/// Why the allocator returned segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reason {
    EmptyCache,
    Trial,
    Collection,
    Retry,
    Unknown,
}

/// The finding, if the steady state calls `cudaMalloc` and `cudaFree`.
pub(crate) fn churn(model: &RunModel<'_>) -> Option<Finding> {
    let (snapshot, history, steps) = (model.device.snapshot, &model.device.history, &model.device.steps);
    // The first fifth is warm-up.
    let first = steps.bounds.get(steps.count() / 5).copied()?;
    let late = model.course.segments.partition_point(|event| event.event < first);
    let events = &model.course.segments[late..];
    let stack = |event: usize| snapshot.events.stack(history.rows.start + event);
    let (mut mallocs, mut frees, mut bytes) = (0u64, 0u64, Bytes::ZERO);
    let mut reasons: FxHashMap<Reason, u64> = FxHashMap::default();
    let mut lines: FxHashMap<Option<FrameId>, u64> = FxHashMap::default();
    let mut within: FxHashMap<Option<FrameId>, Common> = FxHashMap::default();
    let mut streams: FxHashSet<u64> = FxHashSet::default();
    let mut returning: Vec<usize> = Vec::new();
    // A flush returns many segments at once, for one reason.
    let mut last: Option<(usize, Reason)> = None;
    let trials = model.cudnn_trials();
    for event in events {
        let Some(step) = steps.of_event(event.event) else { continue };
        if event.reserves {
            mallocs += 1;
            bytes += event.bytes;
            let region = event.region.map(|region| &history.regions[region]);
            streams.extend(region.filter(|region| !region.small).map(|region| region.stream));
            continue;
        }
        let stack = stack(event.event);
        if model.device.roles.of(stack).capture {
            // The capture of a graph empties the cache by itself.
            continue;
        }
        let follows_on = last.is_some_and(|(at, _)| at + 1 == event.event);
        let reason = match last {
            Some((_, reason)) if follows_on => reason,
            _ if model.device.roles.of(stack).empty_cache => Reason::EmptyCache,
            _ if trials.binary_search(&event.event).is_ok() => Reason::Trial,
            _ if snapshot.settings.gc_threshold > 0.0 => Reason::Collection,
            _ if stack == StackId::EMPTY => Reason::Unknown,
            _ => Reason::Retry,
        };
        last = Some((event.event, reason));
        frees += 1;
        returning.push(step);
        *reasons.entry(reason).or_default() += 1;
        let line = model.frame_of(stack);
        *lines.entry(line).or_default() += 1;
        within.entry(line).or_default().add(
            &model.device.modules,
            model.device.scope_at(event.event).module,
            event.bytes,
        );
    }
    returning.dedup();
    let later_steps = steps.count() - steps.count() / 5;
    let ratio = returning.len() as f64 / later_steps.max(1) as f64;
    if returning.len() < FEWEST_STEPS || ratio < LEAST_STEPS || mallocs < 2 {
        return None;
    }
    let (&reason, _) = reasons.iter().max_by_key(|&(reason, count)| (*count, *reason as u8))?;
    let site = lines
        .into_iter()
        .max_by_key(|&(frame, count)| (frame.is_some(), count, frame))
        .and_then(|line| line.0);
    let line = place_or(snapshot, site, "a line that was not recorded");
    let (waited_us, whole_us) = time(model, first);
    let time_share = waited_us as f64 / whole_us.max(1) as f64;
    let bytes_a_step = Bytes(bytes.0 / later_steps.max(1) as u64);
    let mut finding = Finding::new(
        Kind::Churn,
        if time_share >= HIGH_TIME { Severity::High } else { Severity::Medium },
        format!(
            "memory is returned and reserved again in {} of the later steps, and takes {} of their time",
            percent(ratio),
            percent(time_share)
        ),
        format!(
            "{} `cudaMalloc` and {} `cudaFree` calls in {} of {later_steps} steps after the warm-up: {}",
            grouped(mallocs),
            grouped(frees),
            returning.len(),
            match reason {
                Reason::EmptyCache => format!("`empty_cache()` at {line} gives the cache away"),
                Reason::Trial =>
                    "cuDNN tries its algorithms on each new shape and empties the cache after it".to_owned(),
                Reason::Collection =>
                    "the allocator's garbage collection returns segments that are needed again".to_owned(),
                Reason::Retry =>
                    "the device or the limit is full, so the cache is flushed to make room".to_owned(),
                Reason::Unknown => "the stacks that would say why were not recorded".to_owned(),
            }
        ),
        bytes_a_step,
    );
    finding.count = mallocs + frees;
    finding.site = site;
    finding.module = within.get(&site).and_then(Common::module);
    finding.details.push(format!(
        "they took {:.1} of {:.1} ms between events, and {bytes_a_step} a step went to the device and back",
        waited_us as f64 / 1e3,
        whole_us as f64 / 1e3
    ));
    finding.fix = match reason {
        Reason::EmptyCache => format!(
            "remove `empty_cache()` at {line}: PyTorch reuses its cache by itself, and returning it only helps another \
             process on the same GPU"
        ),
        Reason::Trial => {
            "set `torch.backends.cudnn.benchmark = False`, or feed few, fixed shapes: pad or bucket the inputs".to_owned()
        }
        Reason::Collection => {
            "raise `garbage_collection_threshold`, or drop it and use `expandable_segments:True`".to_owned()
        }
        Reason::Retry | Reason::Unknown if snapshot.settings.max_split.is_some() => {
            "drop `max_split_size_mb`: blocks above it are never split, so a cached one rarely fits".to_owned()
        }
        Reason::Retry | Reason::Unknown if streams.len() > 1 => {
            "run the work on one stream: what one stream has cached no other can use, so each flushes the other's"
                .to_owned()
        }
        Reason::Retry | Reason::Unknown => {
            "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, keep shapes equal from step to step, or \
                          leave more room: a smaller batch, a higher limit"
                .to_owned()
        }
    };
    let counts = |wanted: Reason| Value::Count(reasons.get(&wanted).copied().unwrap_or(0));
    finding.evidence = vec![
        ("cuda_malloc", Value::Count(mallocs)),
        ("cuda_free", Value::Count(frees)),
        ("steps", Value::Count(returning.len() as u64)),
        ("of_steps", Value::Count(later_steps as u64)),
        ("freed_by_empty_cache", counts(Reason::EmptyCache)),
        ("freed_by_cudnn_trials", counts(Reason::Trial)),
        ("freed_by_garbage_collection", counts(Reason::Collection)),
        ("freed_to_retry", counts(Reason::Retry)),
        ("waited_us", Value::Count(waited_us)),
        ("of_us", Value::Count(whole_us)),
        ("threshold", Value::Ratio(LEAST_STEPS)),
    ];
    finding.evidence.extend(
        crate::findings::retries::retries(model.device).map(|retries| ("retries", Value::Count(retries))),
    );
    Some(finding)
}

/// Microseconds that passed around segment events after `first`, and in all.
fn time(model: &RunModel<'_>, first: usize) -> (u64, u64) {
    let late = model.course.segments.iter().filter(|event| event.event >= first);
    let waited = late.fold(0u64, |sum, event| {
        sum.saturating_add(model.elapsed_us(event.event.saturating_sub(1), event.event))
    });
    (waited, model.elapsed_us(first, model.device.history.len()))
}
