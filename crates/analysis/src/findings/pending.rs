//! Blocks that the program has freed and another stream still holds.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::run::model::RunModel;
use crate::words::{counted, percent, place_or, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId};

const LEAST_BYTES: Bytes = Bytes(1 << 20);
const LEAST_SHARE: f64 = 0.02;
const MEDIUM_SHARE: f64 = 0.3;

/// The finding, if such blocks ever added up to something.
pub(crate) fn pending(model: &RunModel<'_>) -> Option<Finding> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
    let most = model.course.pending;
    let ratio = share(most.bytes, history.reserved_peak.bytes);
    if most.bytes < LEAST_BYTES || ratio < LEAST_SHARE {
        return None;
    }
    let mut lines: FxHashMap<Option<FrameId>, Bytes> = FxHashMap::default();
    let (mut count, mut bytes, mut waited_us) = (0u64, Bytes::ZERO, 0u64);
    for (row, life) in history.lives.iter().enumerate() {
        if !history.is_deferred(snapshot, life) {
            continue;
        }
        count += 1;
        bytes += life.size;
        if let (Some(freed), Some(completed)) = (life.freed(), life.completed()) {
            waited_us = waited_us.saturating_add(model.elapsed_us(freed, completed));
        }
        if life.is_active_at(most.position) && !life.is_allocated_at(most.position) {
            *lines.entry(model.frame_of_life(row)).or_default() += life.size;
        }
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|&(frame, bytes)| (std::cmp::Reverse(bytes), frame));
    let site = lines.iter().find_map(|line| line.0);
    let line = place_or(snapshot, site, "a line that was not recorded");
    let mut finding = Finding::new(
        Kind::Pending,
        if ratio >= MEDIUM_SHARE { Severity::Medium } else { Severity::Low },
        format!("up to {} of the reserved memory was freed and not yet usable", percent(ratio)),
        format!(
            "up to {} were freed but could not be reused until another stream was done with them",
            most.bytes
        ),
        most.bytes,
    );
    finding.count = count;
    finding.site = site;
    let waiting = |row: &usize| {
        let life = &history.lives[*row];
        life.is_active_at(most.position) && !life.is_allocated_at(most.position)
    };
    let at_site = (0..history.lives.len()).filter(waiting).filter(|&row| model.frame_of_life(row) == site);
    finding.module = model.common_module(at_site);
    finding.details.push(format!(
        "{} ({} in all) waited, the largest part allocated at {line}: `record_stream()` was called on them, so each waits for \
         an event on that stream",
        counted(count, "block"),
        bytes
    ));
    finding.fix = format!(
        "make the stream that allocates wait instead (`stream.wait_event(…)` before the tensor of {line} goes out of \
         scope) and drop `record_stream()`, or synchronise more often: the CPU runs far ahead of the GPU"
    );
    finding.evidence = vec![
        ("event", Value::Count(most.position.saturating_sub(1) as u64)),
        ("most_pending", Value::Bytes(most.bytes)),
        ("deferred_frees", Value::Count(count)),
        ("deferred_bytes", Value::Bytes(bytes)),
        ("waited_us", Value::Count(waited_us)),
        ("active_peak", Value::Bytes(model.active_peak())),
        ("threshold", Value::Ratio(LEAST_SHARE)),
    ];
    Some(finding)
}
