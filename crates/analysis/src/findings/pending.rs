//! Blocks that the program has freed and another stream still holds.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::run::step_peaks::MemoryPeak;
use crate::trace::modules::ModuleId;
use crate::words::{counted, percent, share};
use rustc_hash::FxHashMap;
use snapshot::{Allocation, Bytes, FrameId};

/// Bytes that have to wait at one time to be worth a finding.
const MIN_PENDING: Bytes = Bytes(1 << 20);
/// Share of the reserved memory that has to wait at one time to be worth a finding.
const MIN_SHARE: f64 = 0.02;
/// Share from which the severity is medium.
const MEDIUM_SHARE: f64 = 0.3;

/// Blocks that waited for other streams, in numbers.
pub(super) struct PendingFacts {
    severity: Severity,
    /// The most that waited at one time.
    most: MemoryPeak,
    /// Share of the reserved memory that waited.
    share: f64,
    /// Blocks that ever waited, and their bytes.
    count: u64,
    bytes: Bytes,
    /// Microseconds that they waited, added up.
    waited_us: u64,
    /// The line that allocated most of what waited at the worst moment.
    line: NamedSite,
    module: Option<ModuleId>,
    active_peak: Bytes,
}

/// The facts, if such blocks ever added up to something.
pub(super) fn measure(model: &RunModel<'_>) -> Option<PendingFacts> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
    let most = model.step_peaks.pending;
    let ratio = share(most.bytes, history.reserved_peak.bytes);
    if most.bytes < MIN_PENDING || ratio < MIN_SHARE {
        return None;
    }
    let waits = |allocation: &Allocation| {
        allocation.is_active_at(most.position) && !allocation.is_allocated_at(most.position)
    };
    let mut lines: FxHashMap<Option<FrameId>, Bytes> = FxHashMap::default();
    let (mut count, mut bytes, mut waited_us) = (0u64, Bytes::ZERO, 0u64);
    for (row, allocation) in history.allocations.iter().enumerate() {
        if !history.is_deferred(snapshot, allocation) {
            continue;
        }
        count += 1;
        bytes += allocation.size;
        if let (Some(freed), Some(completed)) = (allocation.free_event(), allocation.completed_event()) {
            waited_us = waited_us.saturating_add(model.elapsed_us(freed, completed));
        }
        if waits(allocation) {
            *lines.entry(model.frame_of_allocation(row)).or_default() += allocation.size;
        }
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|&(frame, bytes)| (std::cmp::Reverse(bytes), frame));
    let site = lines.iter().find_map(|line| line.0);
    let waiting = (0..history.allocations.len()).filter(|&row| waits(&history.allocations[row]));
    Some(PendingFacts {
        severity: if ratio >= MEDIUM_SHARE { Severity::Medium } else { Severity::Low },
        most,
        share: ratio,
        count,
        bytes,
        waited_us,
        line: NamedSite::new(model, site),
        module: model.common_module(waiting.filter(|&row| model.frame_of_allocation(row) == site)),
        active_peak: model.active_peak(),
    })
}

/// The finding in words.
pub(super) fn describe(facts: &PendingFacts) -> Finding {
    let line = facts.line.or("a line that was not recorded");
    let most = facts.most.bytes;
    let reason =
        format!("up to {} of the reserved memory was freed and not yet usable", percent(facts.share));
    let summary =
        format!("up to {most} was freed but could not be reused until another stream was done with it");
    Finding {
        count: facts.count,
        site: facts.line.frame,
        module: facts.module,
        details: vec![format!(
            "{} ({} total) waited, the largest part allocated at {line}: `record_stream()` was called on \
             them, so each waits for an event on that stream",
            counted(facts.count, "block"),
            facts.bytes
        )],
        fix: format!(
            "make the stream that allocates wait instead (`stream.wait_event(…)` before the tensor of \
             {line} goes out of scope) and drop `record_stream()`, or synchronize more often: the \
             CPU runs far ahead of the GPU"
        ),
        evidence: vec![
            ("event", EvidenceValue::Count(facts.most.position.saturating_sub(1) as u64)),
            ("most_pending", EvidenceValue::Bytes(most)),
            ("deferred_frees", EvidenceValue::Count(facts.count)),
            ("deferred_bytes", EvidenceValue::Bytes(facts.bytes)),
            ("waited_us", EvidenceValue::Micros(facts.waited_us)),
            ("active_peak", EvidenceValue::Bytes(facts.active_peak)),
            ("threshold", EvidenceValue::Ratio(MIN_SHARE)),
        ],
        ..Finding::new(FindingKind::Pending, facts.severity, reason, summary, most)
    }
}
