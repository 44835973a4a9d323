//! What was looked for and not found.

use super::finding::{Finding, FindingKind, OomCause};
use super::fragmentation::never_needed;
use crate::run::growth::FEWEST_STEPS;
use crate::run::model::RunModel;
use crate::words::{grouped, percent, share};

/// What was not found, as text; `None` if everything was.
pub fn not_found(model: &RunModel<'_>, findings: &[Finding]) -> Option<String> {
    let missing = |kind: FindingKind| !findings.iter().any(|finding| finding.kind == kind);
    let mut parts = Vec::new();
    if missing(FindingKind::Leak) {
        parts.push(match model.device.steps.count() {
            0 => "no loop was found, so leaks cannot be detected".to_owned(),
            steps if steps < FEWEST_STEPS => format!("{steps} steps are too few to detect leaks"),
            steps => format!("no leak in {} steps", grouped(steps as u64)),
        });
    }
    let is_fragmented = findings.iter().any(|finding| finding.cause == Some(OomCause::Fragmentation));
    if missing(FindingKind::Fragmentation) && !is_fragmented && !model.device.is_cpu() {
        let reserved = model.device.history.reserved_peak.bytes;
        parts
            .push(format!("fragmentation {}", percent(share(never_needed(&model.device.history), reserved))));
    }
    for (kind, text) in [
        (FindingKind::Spike, "no spike"),
        (FindingKind::Churn, "no churn"),
        (FindingKind::Pending, "no pending frees"),
        (FindingKind::Oom, "no failed allocation"),
    ] {
        // Spikes and churn are relative to other steps.
        let needs_steps = matches!(kind, FindingKind::Spike | FindingKind::Churn);
        // The CPU's memory has no cache and no streams.
        let is_of_cuda = matches!(kind, FindingKind::Churn | FindingKind::Pending);
        if model.device.is_cpu() && is_of_cuda {
            continue;
        }
        if missing(kind) && !(needs_steps && model.device.steps.count() == 0) {
            parts.push(text.to_owned());
        }
    }
    let start = if findings.is_empty() { "nothing stands out" } else { "nothing else stands out" };
    (!parts.is_empty()).then(|| format!("{start}: {}", parts.join(", ")))
}
