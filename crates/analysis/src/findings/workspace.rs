//! Workspaces of cuBLAS and cuDNN, where they decide the peak or are never freed.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::categories::Category;
use crate::run::model::RunModel;
use crate::trace::modules::ModuleId;
use crate::words::{counted, percent, share};
use snapshot::{Bytes, Peak};

/// Share of the peak from which it is reported.
const MIN_SHARE: f64 = 0.2;
/// Share from which the severity is medium.
const MEDIUM_SHARE: f64 = 0.4;
/// Workspaces of an ordinary run: one for the thread that calls and one for that of `backward()`, each for
/// cuBLAS and its newer interface.
const USUAL_WORKSPACES: u64 = 4;
/// Bytes from which it is reported.
const MIN_BYTES: Bytes = Bytes(48 << 20);

/// The workspaces at the peak, in numbers.
pub(super) struct WorkspaceFacts {
    severity: Severity,
    peak: Peak,
    held: HeldWorkspaces,
    /// Share of the peak.
    share: f64,
    /// The line that takes the largest one.
    line: NamedSite,
    module: Option<ModuleId>,
    /// What to know about that line, if it is in `backward()`.
    doubt: Option<&'static str>,
    /// Workspaces that went back to the device right after use.
    trials: u64,
}

/// Workspaces that are held at the peak.
#[derive(Default)]
struct HeldWorkspaces {
    bytes: Bytes,
    count: u64,
    /// Bytes and number of those that outlive the step that made them.
    lasting: Bytes,
    lasting_count: u64,
    /// Bytes of the others.
    passing: Bytes,
    /// Size of the largest one, and its row of `allocations`.
    largest: Option<(Bytes, usize)>,
}

/// The facts, if libraries hold a good part of the peak.
pub(super) fn measure(model: &RunModel<'_>) -> Option<WorkspaceFacts> {
    let history = &model.device.history;
    let peak = history.allocated_peak;
    let held = held_at(model, peak.position);
    let ratio = share(held.bytes, peak.bytes);
    let is_usual = held.lasting_count <= USUAL_WORKSPACES && held.passing < MIN_BYTES;
    if held.bytes < MIN_BYTES || ratio < MIN_SHARE || is_usual {
        return None;
    }
    let (_, row) = held.largest?;
    let trials = model.cudnn_trials().len() as u64;
    let is_unusual = trials > 0 || held.lasting_count > USUAL_WORKSPACES;
    Some(WorkspaceFacts {
        severity: if is_unusual && ratio >= MEDIUM_SHARE { Severity::Medium } else { Severity::Low },
        peak,
        held,
        share: ratio,
        line: NamedSite::new(model, model.frame_of_allocation(row)),
        module: model.common_module(std::iter::once(row)),
        doubt: model.doubt_in_backward(row),
        trials,
    })
}

fn held_at(model: &RunModel<'_>, position: usize) -> HeldWorkspaces {
    let history = &model.device.history;
    let mut held = HeldWorkspaces::default();
    for (row, allocation) in history.allocations[..history.first_allocated_from(position)].iter().enumerate()
    {
        if model.categories.of(row) != Category::Workspace || !allocation.is_allocated_at(position) {
            continue;
        }
        held.bytes += allocation.size;
        held.count += 1;
        // What outlives its step is kept, even if the program frees it in the end.
        let step_of = |event: Option<usize>| event.and_then(|event| model.device.steps.of_event(event));
        let freed = allocation.free_event();
        if freed.is_none() || step_of(freed) != step_of(allocation.alloc_event()) {
            held.lasting += allocation.size;
            held.lasting_count += 1;
        } else {
            held.passing += allocation.size;
        }
        if held.largest.is_none_or(|(size, _)| allocation.size > size) {
            held.largest = Some((allocation.size, row));
        }
    }
    held
}

/// The finding in words.
pub(super) fn describe(facts: &WorkspaceFacts) -> Finding {
    let WorkspaceFacts { held, peak, trials, .. } = facts;
    let largest = held.largest.map_or(Bytes::ZERO, |(size, _)| size);
    let is_passing = held.passing > held.lasting;
    let reason = format!("library workspaces are {} of the peak", percent(facts.share));
    let summary =
        format!("{} of the {} peak is workspaces of cuBLAS and cuDNN, not tensors", held.bytes, peak.bytes);
    let (details, fix) = if is_passing { passing(facts, largest) } else { lasting(held.lasting_count) };
    Finding {
        count: held.count,
        site: facts.line.frame,
        module: facts.module,
        details,
        fix,
        caveats: facts.doubt.map(str::to_owned).into_iter().collect(),
        evidence: vec![
            ("event", EvidenceValue::Count(peak.event() as u64)),
            ("at_peak", EvidenceValue::Bytes(held.bytes)),
            ("lasting", EvidenceValue::Bytes(held.lasting)),
            ("passing", EvidenceValue::Bytes(held.passing)),
            ("largest", EvidenceValue::Bytes(largest)),
            ("trials_returned_to_device", EvidenceValue::Count(*trials)),
            ("threshold", EvidenceValue::Ratio(MIN_SHARE)),
        ],
        ..Finding::new(FindingKind::Workspace, facts.severity, reason, summary, held.bytes)
    }
}

/// Details and fix where most of it is freed immediately.
fn passing(facts: &WorkspaceFacts, largest: Bytes) -> (Vec<String>, String) {
    let line = facts.line.or("a line that was not recorded");
    let where_in = if facts.doubt.is_some() { "in backward of" } else { "at" };
    let mut details = vec![format!(
        "the largest, {largest}, is allocated {where_in} {line} and freed immediately, so only the peak \
         shows it"
    )];
    if facts.trials == 0 {
        let fix = format!(
            "choose smaller inputs for the convolution {where_in} {line}, or channels-last half precision, \
             whose kernels need less scratch"
        );
        return (details, fix);
    }
    details.push(format!(
        "{} were returned to the device right after use: cuDNN tries its algorithms on each new shape \
         (`torch.backends.cudnn.benchmark`)",
        counted(facts.trials, "trial workspace")
    ));
    let fix = "set `torch.backends.cudnn.benchmark = False`, or keep it and feed few, fixed shapes (pad or \
         bucket), so that the trials happen once, at the smallest shape first";
    (details, fix.to_owned())
}

/// Details and fix where most of it is kept.
fn lasting(count: u64) -> (Vec<String>, String) {
    let details = vec![format!(
        "cuBLAS keeps {}, for every thread and stream that multiplies matrices",
        counted(count, "workspace")
    )];
    let fix = "multiply on fewer streams, or set `CUBLAS_WORKSPACE_CONFIG=:16:8`: 128 KiB each, at some \
         cost in speed";
    (details, fix.to_owned())
}
