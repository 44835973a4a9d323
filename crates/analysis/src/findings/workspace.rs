//! Scratch memory of cuBLAS and cuDNN, where it decides the peak or is held for good.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::run::categories::Category;
use crate::run::model::RunModel;
use crate::words::{counted, percent, place_or, share};
use snapshot::Bytes;

/// Share of the peak from which on it is worth a word.
const LEAST_SHARE: f64 = 0.2;
const MEDIUM_SHARE: f64 = 0.4;
/// One for the thread that calls and one for that of `backward()`, each for cuBLAS and its newer interface.
const USUAL: u64 = 4;
const LEAST_BYTES: Bytes = Bytes(48 << 20);

/// The finding, if libraries hold a good part of the peak.
pub(crate) fn workspace(model: &RunModel<'_>) -> Option<Finding> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
    let peak = history.allocated_peak;
    let (mut bytes, mut count, mut kept, mut largest) = (Bytes::ZERO, 0u64, 0, None);
    let (mut lasting, mut passing) = (Bytes::ZERO, Bytes::ZERO);
    for (row, life) in history.lives[..history.first_born_from(peak.position)].iter().enumerate() {
        if model.categories.of(row) == Category::Workspace && life.is_allocated_at(peak.position) {
            bytes += life.size;
            count += 1;
            if life.freed().is_none() {
                lasting += life.size;
                kept += 1;
            } else {
                passing += life.size;
            }
            if largest.is_none_or(|(size, _)| life.size > size) {
                largest = Some((life.size, row));
            }
        }
    }
    let ratio = share(bytes, peak.bytes);
    let is_usual = kept <= USUAL && passing < LEAST_BYTES;
    if bytes < LEAST_BYTES || ratio < LEAST_SHARE || is_usual {
        return None;
    }
    let (_, row) = largest?;
    let site = model.frame_of_life(row);
    let line = place_or(snapshot, site, "a line that was not recorded");
    let doubt = model.doubt_in_backward(row);
    let in_backward = doubt.is_some();
    let trials = model.cudnn_trials().len() as u64;
    let severity = match () {
        () if (trials > 0 || kept > USUAL) && ratio >= MEDIUM_SHARE => Severity::Medium,
        () => Severity::Low,
    };
    let mut finding = Finding::new(
        Kind::Workspace,
        severity,
        format!("library workspaces are {} of the peak", percent(ratio)),
        format!("{bytes} of the {} peak are workspaces of cuBLAS and cuDNN, not tensors", peak.bytes),
        bytes,
    );
    finding.count = count;
    finding.site = site;
    finding.module = model.common_module(std::iter::once(row));
    let where_in = if in_backward { "in the backward pass of" } else { "at" };
    if passing > lasting {
        finding.details.push(format!(
            "the largest, {}, is taken {where_in} {line} and given back at once, so only the peak shows it",
            history.lives[row].size
        ));
        if trials > 0 {
            finding.details.push(format!(
                "{} were returned to the device right after use: cuDNN tries its algorithms on each new shape \
                 (`torch.backends.cudnn.benchmark`)",
                counted(trials, "trial workspace")
            ));
        }
        finding.fix = if trials > 0 {
            "set `torch.backends.cudnn.benchmark = False`, or keep it and feed few, fixed shapes (pad or bucket), so that \
             the trials happen once, at the smallest shape first"
                .to_owned()
        } else {
            format!(
                "choose smaller inputs for the convolution {where_in} {line}, or channels-last half precision, whose kernels need less scratch"
            )
        };
    } else {
        finding.details.push(format!(
            "{} stay for good: cuBLAS keeps one for every thread and stream that multiplies matrices",
            counted(kept, "workspace")
        ));
        finding.fix =
            "multiply on fewer streams, or set `CUBLAS_WORKSPACE_CONFIG=:16:8`: 128 KiB each, at some cost in speed"
                .to_owned();
    }
    finding.caveats.extend(doubt.map(str::to_owned));
    finding.evidence = vec![
        ("event", Value::Count(peak.event() as u64)),
        ("at_peak", Value::Bytes(bytes)),
        ("lasting", Value::Bytes(lasting)),
        ("passing", Value::Bytes(passing)),
        ("largest", Value::Bytes(history.lives[row].size)),
        ("trials_returned_to_device", Value::Count(trials)),
        ("threshold", Value::Ratio(LEAST_SHARE)),
    ];
    Some(finding)
}
