//! What was looked for and not found.

use super::finding::{Absence, Finding, FindingKind, KINDS, OomCause};
use super::fragmentation::never_needed;
use crate::run::growth::MIN_STEPS_FOR_LEAK;
use crate::run::model::RunModel;
use crate::words::{grouped, percent, share};

/// What was not found, as text; `None` if everything was.
pub fn not_found(model: &RunModel<'_>, findings: &[Finding]) -> Option<String> {
    let steps = model.device.steps.count();
    let is_found = |kind: FindingKind| findings.iter().any(|finding| finding.kind == kind);
    let is_fragmented = findings.iter().any(|finding| finding.cause == Some(OomCause::Fragmentation));
    let can_be_missing = KINDS
        .iter()
        .filter(|row| !is_found(row.kind))
        .filter(|row| !(row.needs_cuda && model.device.is_cpu()))
        .filter(|row| !(row.needs_steps && steps == 0));
    let absent = can_be_missing.filter_map(|row| match row.absence {
        Absence::Unmentioned => None,
        Absence::Words(words) => Some(words.to_owned()),
        Absence::StepsWithoutLeak => Some(match steps {
            0 => "no loop was found, so leaks cannot be detected".to_owned(),
            1 => "1 step is too few to detect leaks".to_owned(),
            steps if steps < MIN_STEPS_FOR_LEAK => format!("{steps} steps are too few to detect leaks"),
            _ => format!("no leak in {} steps", grouped(model.device.steps.main_count() as u64)),
        }),
        Absence::FragmentationShare if is_fragmented => None,
        Absence::FragmentationShare => {
            let history = &model.device.history;
            let lost = share(never_needed(history), history.reserved_peak.bytes);
            Some(format!("fragmentation {}", percent(lost)))
        }
    });
    let absent: Vec<String> = absent.collect();
    let start = if findings.is_empty() { "nothing stands out" } else { "nothing else stands out" };
    (!absent.is_empty()).then(|| format!("{start}: {}", absent.join(", ")))
}
