//! The runs as ranks of one job, and what sets the highest apart.

use crate::question::ExportPart;
use crate::question::Question;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use analysis::{DeviceSummary, Skew};
use serde::{Deserialize, Serialize};

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
        Ok(viewer.ranks())
    }

    fn exported(part: &ExportPart<'_>) -> Vec<RanksQuery> {
        match *part {
            ExportPart::Page { runs, .. } if runs.len() > 1 => vec![RanksQuery {}],
            _ => Vec::new(),
        }
    }
}

/// The ranks of one job.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct Ranks {
    ranks: Vec<RankSummary>,
    /// How the highest rank differs; `null` if none stands out.
    skew: Option<RankSkew>,
}

/// One rank.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "Rank"))]
pub(crate) struct RankSummary {
    /// Number of the run.
    run: usize,
    name: String,
    /// Peak of allocated bytes.
    peak: u64,
    /// Peak of reserved bytes.
    reserved: u64,
    /// Highest allocated bytes in equal parts of the run's events.
    timeline: Vec<u64>,
    findings: Vec<RankFindingShape>,
}

/// A finding of a rank, in short.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RankFinding"))]
pub(crate) struct RankFindingShape {
    kind: &'static str,
    severity: &'static str,
    summary: String,
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
    pub(crate) fn ranks(&self) -> Ranks {
        let inputs = self.inputs();
        let views: Vec<DeviceView<'_>> = inputs.iter().flat_map(|loaded| loaded.views()).collect();
        let summaries: Vec<DeviceSummary> =
            views.iter().map(|view| DeviceSummary::new(view.name, view.model, view.findings)).collect();
        let ranks = views.iter().zip(&summaries).map(|(view, summary)| rank(view, summary)).collect();
        let skew = analysis::skew(&summaries).map(|skew| rank_skew(&skew, &summaries));
        Ranks { ranks, skew }
    }
}

fn rank(view: &DeviceView<'_>, summary: &DeviceSummary) -> RankSummary {
    let findings = summary.findings.iter().map(|finding| RankFindingShape {
        kind: finding.kind.name(),
        severity: finding.severity.name(),
        summary: finding.summary.clone(),
    });
    RankSummary {
        run: view.id,
        name: summary.name.clone(),
        peak: summary.allocated.0.0,
        reserved: summary.reserved.0.0,
        timeline: memory_timeline(view),
        findings: findings.collect(),
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
