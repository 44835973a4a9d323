//! Non-PyTorch memory: what other processes hold on the device.

use super::failure::OomFailure;
use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use crate::run::model::RunModel;
use crate::words::printable;

/// Processes that are named.
const MAX_NAMED: usize = 3;

/// The failed allocation that other processes left too little for.
pub(super) struct NonPytorchFacts {
    failure: OomFailure,
}

/// The facts, if the last failed allocation would have succeeded without other processes.
pub(super) fn measure(model: &RunModel<'_>) -> Option<NonPytorchFacts> {
    let failure = OomFailure::new(model).filter(OomFailure::is_crowded_out)?;
    Some(NonPytorchFacts { failure })
}

/// The finding in words.
pub(super) fn describe(NonPytorchFacts { failure }: &NonPytorchFacts) -> Finding {
    let held = failure.non_pytorch();
    let count = failure.shortage.as_ref().map_or(0, |said| said.others.len() as u64);
    let who = if count == 1 { "another process".to_owned() } else { format!("{count} other processes") };
    let summary = format!(
        "{who} held {held} of this device: without that the request of {} would have succeeded",
        failure.requested
    );
    let mut evidence = vec![
        ("event", EvidenceValue::Count(failure.event as u64)),
        ("requested", EvidenceValue::Bytes(failure.requested)),
        ("device_free", EvidenceValue::Bytes(failure.device_free)),
    ];
    evidence.extend(driver_evidence(failure));
    let reason = "the allocation that failed would have succeeded without it".to_owned();
    Finding {
        count,
        details: other_processes(failure).into_iter().collect(),
        fix: "end that process if it is left over from an earlier run, or give each job a device of its own \
              (`CUDA_VISIBLE_DEVICES`)"
            .to_owned(),
        evidence,
        ..Finding::new(FindingKind::NonPytorch, Severity::High, reason, summary, held)
    }
}

/// The other processes on the device in a sentence, largest first.
pub(super) fn other_processes(failure: &OomFailure) -> Option<String> {
    let mut others: Vec<_> = failure.shortage.iter().flat_map(|said| &said.others).collect();
    others.sort_by_key(|process| (std::cmp::Reverse(process.bytes), process.pid));
    let named: Vec<String> = others
        .iter()
        .take(MAX_NAMED)
        .map(|process| match printable(&process.name) {
            name if name.is_empty() => format!("pid {}, {}", process.pid, process.bytes),
            name => format!("pid {}, {name}, {}", process.pid, process.bytes),
        })
        .collect();
    match (named.as_slice(), others.len()) {
        ([], _) => None,
        ([one], 1) => Some(format!("another process held memory of this device ({one})")),
        (_, count) => Some(format!(
            "{count} other processes held {} of this device ({})",
            failure.non_pytorch(),
            named.join("; ")
        )),
    }
}

/// What the driver said when the allocation failed, as evidence.
pub(super) fn driver_evidence(failure: &OomFailure) -> Vec<(&'static str, EvidenceValue)> {
    let Some(said) = &failure.shortage else { return Vec::new() };
    let mut evidence = Vec::new();
    evidence.extend(said.total.map(|total| ("device_total", EvidenceValue::Bytes(total))));
    evidence.extend(said.limit.map(|limit| ("limit", EvidenceValue::Bytes(limit))));
    let processes = said.others.iter().map(|process| {
        EvidenceValue::Record(vec![
            ("pid", EvidenceValue::Pid(process.pid)),
            ("bytes", EvidenceValue::Bytes(process.bytes)),
            ("name", EvidenceValue::Text(process.name.clone())),
        ])
    });
    evidence.push(("other_processes", EvidenceValue::List(processes.collect())));
    evidence
}
