//! Memory that other processes hold on the device.

use crate::findings::failure::Failure;
use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::run::model::RunModel;
use crate::words::printable;

/// Processes that are named.
const NAMED: usize = 3;

/// The finding that other processes left too little, if the last failed allocation would have passed without them.
pub(crate) fn outside(model: &RunModel<'_>) -> Option<Finding> {
    let failure = Failure::new(model).filter(Failure::is_crowded_out)?;
    let held = failure.outside();
    let count = failure.shortage.as_ref().map_or(0, |said| said.others.len() as u64);
    let mut finding = Finding::new(
        Kind::Outside,
        Severity::High,
        "the allocation that failed would have passed without it".to_owned(),
        format!(
            "{} held {held} of this device: without that the request of {} would have passed",
            if count == 1 { "another process".to_owned() } else { format!("{count} other processes") },
            failure.asked
        ),
        held,
    );
    finding.count = count;
    finding.details.extend(others(&failure));
    finding.fix =
        "end that process if it is left over from an earlier run, or give each job a device of its own \
        (`CUDA_VISIBLE_DEVICES`)"
            .to_owned();
    finding.evidence = vec![
        ("event", Value::Count(failure.event as u64)),
        ("requested", Value::Bytes(failure.asked)),
        ("device_free", Value::Bytes(failure.device_free)),
    ];
    finding.evidence.extend(said(&failure));
    Some(finding)
}

/// The other processes on the device, largest first.
pub(crate) fn others(failure: &Failure) -> Option<String> {
    let mut others: Vec<_> = failure.shortage.iter().flat_map(|said| &said.others).collect();
    others.sort_by_key(|process| (std::cmp::Reverse(process.bytes), process.pid));
    let named: Vec<String> = others
        .iter()
        .take(NAMED)
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
            failure.outside(),
            named.join("; ")
        )),
    }
}

/// What the driver said, as evidence.
pub(crate) fn said(failure: &Failure) -> Vec<(&'static str, Value)> {
    let Some(said) = &failure.shortage else { return Vec::new() };
    let mut evidence = Vec::new();
    evidence.extend(said.total.map(|total| ("device_total", Value::Bytes(total))));
    evidence.extend(said.limit.map(|limit| ("limit", Value::Bytes(limit))));
    let processes = said.others.iter().map(|process| {
        Value::Record(vec![
            ("pid", Value::Count(process.pid)),
            ("bytes", Value::Bytes(process.bytes)),
            ("name", Value::Text(process.name.clone())),
        ])
    });
    evidence.push(("other_processes", Value::List(processes.collect())));
    evidence
}
