//! How certain a prediction is: what was modeled, guessed, cut short or left out, in words.

use crate::phases::merged;
use crate::{DevicePeak, GpuModel, Notes};
use allocator::PeakRanges;
use analysis::words::grouped;
use recording::{EmulationInfo, Exit, LaterIteration, LoopInfo, RunInfo, StopReason, ValueRead};
use snapshot::Bytes;

/// How certain a prediction is.
#[derive(Default, Debug)]
pub struct PredictionConfidence {
    /// Reasons why the real run may differ.
    pub reasons: Vec<String>,
    /// Remarks on what might have affected the prediction and did not, and on what was not asked for.
    pub remarks: Vec<String>,
}

impl PredictionConfidence {
    /// Returns whether nothing is known that could make the real run differ.
    pub fn is_exact(&self) -> bool {
        self.reasons.is_empty()
    }
}

pub(crate) fn has_cut_loops(emulation: &EmulationInfo) -> bool {
    emulation.has_left_loop
        || emulation.has_shortened
        || !emulation.later_iterations.is_empty()
        || emulation.loops.iter().any(|of| of.skipped > 0)
}

/// Returns the reasons why a real run may differ, other than values that were read.
pub(crate) fn doubts(notes: &Notes, peaks: &[DevicePeak], info: &RunInfo) -> Vec<String> {
    let mut reasons = Vec::new();
    for name in &notes.uncovered {
        reasons.push(format!("`{name}` is not covered by the emulator: the call failed"));
    }
    for what in &notes.modeled {
        reasons.push(format!("modeled: {what}"));
    }
    if peaks.iter().any(|peak| peak.has_deferred_frees) {
        reasons.push(
            "blocks are used on several streams: on a real GPU a free waits for the other stream, which \
             finishes at once here, so more may be reserved"
                .to_owned(),
        );
    }
    if info.emulation.uses_inductor {
        reasons.push(
            "compiled by Inductor: it chooses kernels by their speed, and its programs were not compared \
             with a real GPU"
                .to_owned(),
        );
    }
    if !info.emulation.has_values {
        reasons.push(format!(
            "torch {} cannot compute small tensors without a GPU: values read as 0",
            info.torch.as_deref().unwrap_or_default()
        ));
    }
    reasons
}

/// Returns the doubt about peaks that depend on addresses.
pub(crate) fn address_doubt(ranges: &PeakRanges, highest: &DevicePeak) -> Option<String> {
    let words = |(low, high): (u64, u64), peak: Bytes, what: &str| {
        let less = Bytes(peak.0.saturating_sub(low));
        let more = Bytes(high.saturating_sub(peak.0));
        [(less, "less"), (more, "more")]
            .into_iter()
            .filter(|(by, _)| *by > Bytes::ZERO)
            .map(|(by, than)| format!("{by} {than} {what}"))
            .collect::<Vec<_>>()
    };
    if ranges.may_fail {
        return Some(
            "it may run out of memory, depending on the addresses that the driver returns".to_owned(),
        );
    }
    let mut parts = words(ranges.allocated, highest.allocated, "allocated");
    parts.extend(words(ranges.reserved, highest.reserved, "reserved"));
    (!parts.is_empty()).then(|| {
        format!(
            "which free block serves a request depends on the addresses that the driver returns: up to {} at \
             the peak",
            parts.join(", ")
        )
    })
}

/// Returns what loops that were cut short, or steps that never repeated, leave open about the peak.
pub(crate) fn loop_doubts(info: &RunInfo) -> Vec<String> {
    let mut doubts = Vec::new();
    let site = |of: &LoopInfo| {
        let file = of.file.rsplit('/').next().unwrap_or(&of.file);
        format!("{file}:{} ({})", of.line, of.library.as_deref().unwrap_or(&of.function))
    };
    for of in merged(&info.emulation.loops).0.iter().filter(|of| of.skipped > 0) {
        if of.growth > 0 {
            doubts.push(format!(
                "the loop at {} adds {} per iteration, and iterations were skipped; {}",
                site(of),
                Bytes(of.growth),
                match of.batches {
                    Some(_) => format!("they would add {}", Bytes(of.skipped_growth)),
                    None => "how many is not known".to_owned(),
                }
            ));
        } else if !of.is_settled {
            doubts.push(format!(
                "iterations of the loop at {} use different amounts of memory, and not all of them ran",
                site(of)
            ));
        }
    }
    if info.state.exit() == Some(Exit::Stopped(StopReason::Long)) || info.emulation.has_left_unsettled {
        doubts.push("memory per step never settled: a later step may need more".to_owned());
    }
    doubts
}

/// Returns what of the program was not run, in words.
pub(crate) fn not_covered(info: &RunInfo) -> Option<String> {
    const ALL: &str = "`--steps all` runs everything";
    let later = later_iterations(&info.emulation);
    match info.state.exit() {
        Some(Exit::Stopped(StopReason::Periodic)) if info.emulation.is_covered => {
            Some(format!("the program was stopped where its steps repeat: {later}; {ALL}"))
        }
        Some(Exit::Stopped(StopReason::Steps | StopReason::Periodic | StopReason::Long)) => Some(format!(
            "the program was stopped: what it does after this loop, such as evaluation, is not covered; {ALL}"
        )),
        Some(Exit::Stopped(StopReason::TimeLimit)) => Some(format!(
            "the program reached the time limit: later phases are not covered; `--time-limit` raises it, and \
             {ALL}"
        )),
        Some(Exit::Finished | Exit::OutOfMemory) if !has_cut_loops(&info.emulation) => None,
        Some(Exit::Finished | Exit::OutOfMemory) => {
            Some(format!("loops were cut short where their iterations repeat: {later}; {ALL}"))
        }
        _ => Some("the program did not run to its end".to_owned()),
    }
}

/// Returns which of the iterations after those that repeat were skipped, in words.
fn later_iterations(emulation: &EmulationInfo) -> String {
    let mut loops: Vec<(&LaterIteration, Vec<String>)> = Vec::new();
    for of in &emulation.later_iterations {
        match loops.iter_mut().find(|(known, _)| (&known.file, known.line) == (&of.file, of.line)) {
            Some((_, numbers)) => numbers.push(grouped(of.number)),
            None => loops.push((of, vec![grouped(of.number)])),
        }
    }
    let ran: Vec<String> = loops
        .iter()
        .map(|(of, numbers)| {
            let file = of.file.rsplit('/').next().unwrap_or(&of.file);
            format!("{} of the loop at {file}:{}", numbers.join(", "), of.line)
        })
        .collect();
    match ran.is_empty() {
        true => "work done only in later iterations (every 100th, for example) is not covered".to_owned(),
        false => {
            format!("later iterations were skipped, except {}, where a condition changes", ran.join(" and "))
        }
    }
}

/// Adds what is known about values that only a real GPU computes. `differs` is whether other values make a
/// difference, if that was tried.
pub(crate) fn judge_reads(reads: &[ValueRead], differs: Option<bool>, confidence: &mut PredictionConfidence) {
    let sites: Vec<String> = reads
        .iter()
        .map(|read| {
            let file = read.file.rsplit('/').next().unwrap_or(&read.file);
            format!("{file}:{} ({}, {} times)", read.line, read.operator, read.count)
        })
        .collect();
    let sites = match sites.as_slice() {
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second}, {third} and {} more", rest.len())
        }
        few => few.join(", "),
    };
    match differs {
        Some(false) => confidence.remarks.push(format!(
            "values that only a real GPU computes are read at {sites}; with other values the program \
             makes the same requests"
        )),
        Some(true) => confidence.reasons.push(format!(
            "the program's memory depends on values that only a real GPU computes, read at {sites}"
        )),
        None => confidence.reasons.push(format!("values that only a real GPU computes are read at {sites}")),
    }
}

/// Returns a remark for a GPU model whose figures were not all measured on a real one.
pub(crate) fn model_remark(model: &GpuModel) -> Option<&'static str> {
    (!model.is_measured()).then_some(
        "the figures of this GPU were published, not measured, and its context is scaled from that of an \
         H200; only the H200 was compared with a real one",
    )
}
