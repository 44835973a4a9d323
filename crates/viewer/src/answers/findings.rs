//! The findings of a run, each with where to look.

use crate::documents::{FindingDocument, TypedJson};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::groups::{GroupBy, named_categories};
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use analysis::{EvidenceValue as Evidence, Finding, Focus, Origin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Asks for the findings of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct FindingsQuery {
    pub(crate) run: usize,
}

impl Question for FindingsQuery {
    const NAME: &'static str = "findings";
    type Answer = Findings;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<Findings, Problem> {
        viewer.about(self.run, |view| Ok(viewer.findings(view)))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<FindingsQuery> {
        match *part {
            ExportPart::Page { runs, .. } => runs.iter().map(|&run| FindingsQuery { run }).collect(),
            _ => Vec::new(),
        }
    }
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
    /// Title of the kind, in lower case.
    title: &'static str,
    /// What `count` counts, in the singular.
    count_noun: &'static str,
    /// Units of the numbers in `evidence`, by the names that lead to them: `lines.bytes`.
    #[cfg_attr(test, ts(as = "std::collections::BTreeMap<String, EvidenceUnit>"))]
    units: BTreeMap<String, &'static str>,
    focus: FindingFocus,
}

/// Unit of a number in the evidence of a finding.
#[cfg(test)]
#[derive(ts_rs::TS)]
#[ts(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its TypeScript is used")]
pub(crate) enum EvidenceUnit {
    /// Bytes.
    Bytes,
    /// A number of things, or the index of an event or step.
    Count,
    /// Microseconds.
    Us,
    /// Number of a process.
    Pid,
    /// A ratio.
    Ratio,
}

/// Adds the units of the numbers in a record to `units`, by the names that lead to them.
fn add_units(prefix: &str, record: &[(&'static str, Evidence)], units: &mut BTreeMap<String, &'static str>) {
    for (name, value) in record {
        add_unit(&format!("{prefix}{name}"), value, units);
    }
}

fn add_unit(path: &str, value: &Evidence, units: &mut BTreeMap<String, &'static str>) {
    match value {
        Evidence::Record(record) => add_units(&format!("{path}."), record, units),
        Evidence::List(values) => values.iter().for_each(|value| add_unit(path, value, units)),
        value => units.extend(value.unit().map(|unit| (path.to_owned(), unit))),
    }
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
            let mut units = BTreeMap::new();
            add_units("", &finding.evidence, &mut units);
            FindingCard {
                report,
                title: finding.kind.title(),
                count_noun: finding.kind.count_noun(),
                units,
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
    match finding.kind.focus() {
        // Growth shows over all steps, and most at the peak.
        Focus::Growth => {
            let first = number("since_step").and_then(|step| steps.bounds.get(step)).copied().unwrap_or(0);
            let margin = (history.len() - first) / 20;
            (first.saturating_sub(margin)..history.len() + 1, history.allocated_peak.position.max(first))
        }
        Focus::Steps(before, after) if steps.count() > 0 => (around(before, after), position),
        Focus::Run | Focus::Steps(..) => (whole, position),
    }
}
