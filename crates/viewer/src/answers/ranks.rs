//! The runs as ranks of one job, and what sets the highest apart.

use super::rank_groups::{self, RankGroup};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use analysis::{DeviceSummary, Skew};
use serde::{Deserialize, Serialize};

/// Ranks up to which each has a sparkline of its own.
const MAX_SPARKLINES: usize = 64;
/// Points of a rank's sparkline.
const SPARKLINE_POINTS: usize = 160;
/// Sites that are compared.
const MAX_SITES: usize = 24;

/// Asks for the ranks; it has no parameters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct RanksQuery {}

impl Question for RanksQuery {
    const NAME: &'static str = "ranks";
    type Answer = Ranks;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<Ranks, Problem> {
        viewer.ranks()
    }

    fn exported(part: &ExportPart<'_>) -> Vec<RanksQuery> {
        match *part {
            ExportPart::Page { has_ranks: true, .. } => vec![RanksQuery {}],
            _ => Vec::new(),
        }
    }
}

/// The ranks of one job.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct Ranks {
    /// Number of inputs that are not read yet; the page asks again while there are any.
    unread: usize,
    ranks: Vec<RankSummary>,
    /// Ranks that are alike, those with the highest peak first.
    groups: Vec<RankGroup>,
    unreadable: Vec<UnreadableRank>,
    /// How the highest rank differs; `null` if none stands out, or before all are read.
    skew: Option<RankSkew>,
}

/// One rank.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "Rank"))]
pub(crate) struct RankSummary {
    /// Number of the run.
    run: usize,
    /// Number of the input.
    input: usize,
    name: String,
    /// Peak of allocated bytes.
    peak: u64,
    /// Peak of reserved bytes.
    reserved: u64,
    /// Index of its group in `groups`.
    group: usize,
    /// Highest allocated bytes in equal parts of the run's events; empty if there are many ranks.
    timeline: Vec<u64>,
    /// Empty if there are many ranks: then those of its group say the same.
    findings: Vec<RankFindingShape>,
}

/// An input that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct UnreadableRank {
    /// Number of the input.
    input: usize,
    name: String,
    /// Why.
    problem: String,
}

/// A finding of a rank, in short.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RankFinding"))]
pub(crate) struct RankFindingShape {
    pub(crate) kind: &'static str,
    severity: &'static str,
    summary: String,
}

/// What a device is compared with others by; it stays in memory when the snapshot does not.
pub(crate) struct DeviceFacts {
    /// Number of the run.
    pub(crate) run: usize,
    input: usize,
    /// Without the lines, which take most of the memory.
    pub(crate) summary: DeviceSummary,
    pub(crate) timeline: Vec<u64>,
    pub(crate) findings: Vec<RankFindingShape>,
}

impl DeviceFacts {
    pub(crate) fn new(view: &DeviceView<'_>) -> DeviceFacts {
        let mut summary = DeviceSummary::new(view.name, view.model, view.findings);
        summary.sites = Vec::new();
        let findings = summary.findings.iter().map(|finding| RankFindingShape {
            kind: finding.kind.name(),
            severity: finding.severity.name(),
            summary: finding.summary.clone(),
        });
        DeviceFacts {
            run: view.id,
            input: view.input,
            timeline: memory_timeline(view),
            findings: findings.collect(),
            summary,
        }
    }
}

/// How the highest rank differs from the median.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct RankSkew {
    /// Index of the highest rank in `ranks`.
    highest: usize,
    /// Index of the rank that it is compared with.
    compared_with: usize,
    words: String,
    /// Why the inputs may not be ranks at all.
    doubt: Option<&'static str>,
    sites: Vec<SiteChange>,
    /// Bytes by which categories differ.
    categories: Vec<(&'static str, i64)>,
}

/// Memory of a site in two runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct SiteChange {
    label: String,
    before: u64,
    after: u64,
}

impl Viewer<'_> {
    pub(crate) fn ranks(&self) -> Result<Ranks, Problem> {
        if !self.inputs.is_on_demand() {
            self.inputs.summarize_all();
        }
        let names = self.inputs.names();
        let (mut facts, mut unreadable) = (Vec::new(), Vec::new());
        let mut read = 0;
        for (input, found) in self.inputs.facts() {
            read += 1;
            match found {
                Ok(devices) => facts.extend(devices),
                Err(problem) => {
                    let name = names.get(input).cloned().unwrap_or_default();
                    unreadable.push(UnreadableRank { input, name, problem: problem.what.clone() });
                }
            }
        }
        let (groups, group_of) = rank_groups::groups(&facts);
        let has_sparklines = facts.len() <= MAX_SPARKLINES;
        let ranks = facts.iter().zip(group_of).map(|(facts, group)| RankSummary {
            run: facts.run,
            input: facts.input,
            name: facts.summary.name.clone(),
            peak: facts.summary.allocated.0.0,
            reserved: facts.summary.reserved.0.0,
            group,
            timeline: if has_sparklines { facts.timeline.clone() } else { Vec::new() },
            findings: if has_sparklines { facts.findings.clone() } else { Vec::new() },
        });
        let unread = names.len() - read;
        let skew = if unread == 0 { self.skew_of(&facts) } else { None };
        Ok(Ranks { unread, ranks: ranks.collect(), groups, unreadable, skew })
    }

    /// Compares the highest rank with the median one, whose lines are read again. Computed once.
    fn skew_of(&self, facts: &[&DeviceFacts]) -> Option<RankSkew> {
        let compare = || {
            let mut summaries: Vec<DeviceSummary> = facts.iter().map(|facts| facts.summary.clone()).collect();
            let Skew { highest, middle, .. } = analysis::skew(&summaries)?;
            for rank in [highest, middle] {
                let about = facts.get(rank)?;
                let loaded = self.inputs.get(about.input).ok()?;
                let view = loaded.view(about.run)?;
                summaries[rank] = DeviceSummary::new(view.name, view.model, view.findings);
            }
            analysis::skew(&summaries).map(|skew| rank_skew(&skew, &summaries))
        };
        self.skew.get_or_init(compare).clone()
    }
}

#[cfg(test)]
impl DeviceFacts {
    /// A rank with a finding of this kind, for tests.
    pub(crate) fn drawn(run: usize, summary: DeviceSummary, kind: Option<&'static str>) -> DeviceFacts {
        let finding = |kind| RankFindingShape { kind, severity: "high", summary: String::new() };
        let findings = kind.map(finding).into_iter().collect();
        DeviceFacts { run, input: run, summary, timeline: Vec::new(), findings }
    }
}

fn rank_skew(skew: &Skew, summaries: &[DeviceSummary]) -> RankSkew {
    let sites = skew.changes.iter().take(MAX_SITES).map(|change| {
        let label = change.site.as_ref().map_or("(no line)".to_owned(), |site| site.short());
        let label = if change.in_backward { format!("{label}, in backward()") } else { label };
        SiteChange { label, before: change.before.0, after: change.after.0 }
    });
    RankSkew {
        highest: skew.highest,
        compared_with: skew.middle,
        words: skew.words(summaries),
        doubt: skew.doubt(summaries),
        sites: sites.collect(),
        categories: skew.categories.iter().map(|&(category, bytes)| (category.name(), bytes)).collect(),
    }
}

/// Returns the highest allocated bytes in equal parts of the run's events.
fn memory_timeline(view: &DeviceView<'_>) -> Vec<u64> {
    let positions = view.history().len() + 1;
    let points = SPARKLINE_POINTS.min(positions);
    let bound = |point: usize| point * positions / points;
    (0..points)
        .map(|point| view.curve().extremes(view.device(), bound(point)..bound(point + 1)).highest)
        .collect()
}
