//! The findings of a run, each with where to look.

use crate::Viewer;
use crate::documents::{FindingDocument, TypedJson};
use crate::run::groups::{GroupBy, named_categories};
use crate::run::view::DeviceView;
use analysis::{EvidenceValue as Evidence, Finding, FindingKind, Origin};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Asks for the findings of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FindingsQuery {
    pub(crate) run: usize,
}

/// What the report says of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct Findings {
    findings: Vec<FindingCard>,
    /// What was looked for and not found, as the report says it.
    clear: String,
    /// Bytes of each category at the peak.
    categories: Vec<(&'static str, u64)>,
    /// Why categories are unknown or uncertain.
    categories_reason: String,
}

/// A finding, and where the views show it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FindingCard {
    #[serde(flatten)]
    report: TypedJson<FindingDocument>,
    focus: FindingFocus,
}

/// Where the views show a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FindingFocus {
    /// First position of the interval to show.
    from: usize,
    /// Position after the interval to show.
    to: usize,
    /// The position that shows it best.
    position: usize,
    /// Group of the finding's site.
    group: Option<u32>,
}

impl Viewer<'_> {
    pub(crate) fn findings(&self, view: &DeviceView<'_>) -> Findings {
        let (reports, clear) = self.commands.findings(view.model, view.findings);
        let cards = view.findings.iter().zip(reports).map(|(finding, report)| {
            let (interval, position) = focus(view, finding);
            let group = finding.site.and_then(|frame| group_of_line(view, frame));
            FindingCard {
                report,
                focus: FindingFocus { from: interval.start, to: interval.end, position, group },
            }
        });
        let peak = view.history().allocated_peak.position;
        Findings {
            findings: cards.collect(),
            clear,
            categories: named_categories(&view.model.categories.at(view.history(), peak)),
            categories_reason: view.model.categories.reason.to_string(),
        }
    }
}

/// Returns the group of a finding's line.
fn group_of_line(view: &DeviceView<'_>, frame: snapshot::FrameId) -> Option<u32> {
    view.groups(GroupBy::Site)
        .number_of(|origin| matches!(origin, Origin::Site(site) if site.frame() == Some(frame)))
}

/// Returns the interval of positions that shows a finding, and the position that shows it best.
pub(crate) fn focus(view: &DeviceView<'_>, finding: &Finding) -> (Range<usize>, usize) {
    let (history, steps) = (view.history(), &view.device().steps);
    let whole = 0..history.len() + 1;
    let number = |wanted: &str| {
        finding.evidence.iter().find_map(|(name, value)| match value {
            Evidence::Count(number) if *name == wanted => Some(*number as usize),
            _ => None,
        })
    };
    let position = number("event").map_or(history.allocated_peak.position, |event| event + 1);
    let position = view.clamped(position);
    let around = |steps_before: usize, steps_after: usize| {
        let step = steps.bounds.partition_point(|&bound| bound < position);
        let bound = |number: usize| steps.bounds.get(number).copied();
        let from = bound(step.saturating_sub(steps_before)).unwrap_or(0);
        from..bound(step + steps_after).unwrap_or(history.len()) + 1
    };
    match finding.kind {
        // Growth shows over all steps, and most at the peak.
        FindingKind::Leak => {
            let first = number("since_step").and_then(|step| steps.bounds.get(step)).copied().unwrap_or(0);
            let margin = (history.len() - first) / 20;
            (first.saturating_sub(margin)..history.len() + 1, history.allocated_peak.position.max(first))
        }
        FindingKind::Spike if steps.count() > 0 => (around(3, 3), position),
        FindingKind::Oom if steps.count() > 0 => (around(4, 1), position),
        _ => (whole, position),
    }
}
