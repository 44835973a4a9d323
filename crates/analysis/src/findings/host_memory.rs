//! Host memory nearly full: the kernel ends a process when its control group or the machine runs out.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use crate::words::{counted, percent, share};
use recording::{HostMemory, HostSample};
use snapshot::Bytes;

/// Share in use from which it is reported.
const MIN_SHARE: f64 = 0.9;
/// Share from which the severity is high.
const HIGH_SHARE: f64 = 0.95;
/// Samples that a rate takes.
const MIN_SAMPLES_FOR_RATE: usize = 4;
/// Growth over those samples, as a share of the limit: less is noise.
const MIN_GROWTH_SHARE: f64 = 0.01;

/// The fullest moment of host memory.
pub(super) struct HostMemoryFacts {
    limit: Bytes,
    used: Bytes,
    is_group: bool,
    process: Bytes,
    /// Private memory of workers, or their resident memory where that is not known.
    workers: Bytes,
    worker_count: u64,
    pinned: Bytes,
    /// Seconds until the limit is reached, if memory still grew at the end.
    seconds_until_full: Option<u64>,
}

/// The facts, if hardly any memory was left.
pub(super) fn measure(host: &HostMemory) -> Option<HostMemoryFacts> {
    let used = |sample: &HostSample| sample.closest_limit().map_or(0.0, |(limit, used)| share(used, limit));
    let fullest = host.samples.iter().max_by(|a, b| used(a).total_cmp(&used(b)))?;
    let (limit, in_use) = fullest.closest_limit()?;
    if used(fullest) < MIN_SHARE {
        return None;
    }
    let workers = &fullest.workers;
    Some(HostMemoryFacts {
        limit,
        used: in_use,
        is_group: fullest.cgroup.is_some_and(|group| (group.limit, group.used) == (limit, in_use)),
        process: fullest.rss,
        workers: workers.iter().map(|worker| worker.private.unwrap_or(worker.rss)).sum(),
        worker_count: workers.len() as u64,
        pinned: host.pinned.as_ref().map(|pinned| pinned.reserved).unwrap_or_default(),
        seconds_until_full: seconds_until_full(&host.samples),
    })
}

/// Seconds from the last sample until the limit is reached, at the rate of the last half of the samples.
fn seconds_until_full(samples: &[HostSample]) -> Option<u64> {
    let half = &samples[samples.len() / 2..];
    if half.len() < MIN_SAMPLES_FOR_RATE {
        return None;
    }
    let (first, last) = (half.first()?, half.last()?);
    let ((limit, before), (_, after)) = (first.closest_limit()?, last.closest_limit()?);
    let seconds = (last.time_us - first.time_us) as f64 / 1e6;
    let rate = (after - before).0 as f64 / seconds;
    let is_growing = seconds > 0.0 && share(after - before, limit) >= MIN_GROWTH_SHARE;
    is_growing.then(|| ((limit - after).0 as f64 / rate) as u64)
}

/// The finding in words.
pub(super) fn describe(facts: &HostMemoryFacts) -> Finding {
    let HostMemoryFacts { limit, used, .. } = facts;
    let ratio = share(*used, *limit);
    let whose = if facts.is_group { "the control group's limit" } else { "the machine's memory" };
    let severity = if ratio >= HIGH_SHARE { Severity::High } else { Severity::Medium };
    let mut parts = vec![format!("{} of it was this process", facts.process)];
    if facts.pinned > Bytes::ZERO {
        parts.push(format!("{} pinned", facts.pinned));
    }
    if facts.worker_count > 0 {
        let workers = counted(facts.worker_count, "data loader worker");
        parts.push(format!("{} private to {workers}", facts.workers));
    }
    let mut details =
        vec![format!("{}; at the limit the kernel kills a process without a message", parts.join(", "))];
    details.extend(facts.seconds_until_full.map(|seconds| {
        let minutes = counted(seconds.div_ceil(60), "minute");
        format!("it still grew at the end: at that rate it is full after {minutes}")
    }));
    let mut evidence = vec![
        ("limit", EvidenceValue::Bytes(*limit)),
        ("used", EvidenceValue::Bytes(*used)),
        ("is_control_group", EvidenceValue::Flag(facts.is_group)),
        ("process", EvidenceValue::Bytes(facts.process)),
        ("workers", EvidenceValue::Bytes(facts.workers)),
        ("pinned", EvidenceValue::Bytes(facts.pinned)),
        ("threshold", EvidenceValue::Ratio(MIN_SHARE)),
    ];
    evidence.extend(
        facts.seconds_until_full.map(|seconds| ("seconds_until_full", EvidenceValue::Count(seconds))),
    );
    Finding {
        count: facts.worker_count,
        details,
        fix: "raise the job's memory limit, or use fewer data loader workers, smaller `prefetch_factor` and \
              batches, and less pinned memory"
            .to_owned(),
        evidence,
        ..Finding::new(
            FindingKind::HostMemoryNearlyFull,
            severity,
            format!("{} of {whose} was in use", percent(ratio)),
            format!("{used} of {limit} of host memory was in use ({whose})"),
            *used,
        )
    }
}
