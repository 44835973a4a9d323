//! What sets the ranks of a job apart: an answer of one screen, whatever their number.

mod deviations;
mod dimensions;
mod failures;
mod groups;
mod ranks;
mod statistics;

pub use deviations::{Deviation, DeviationMetric};
pub use dimensions::{DimensionAnswer, DimensionValue};
pub use failures::{EndedRanks, FailureAnswer};
pub use groups::{FleetFinding, FleetVariant, NodeMemory, VariantValue};
pub use ranks::{Difference, DifferenceBasis, RankLabel};

use crate::arrow::RankRecord;
use failure::Failure;
use ranks::FleetRank;
use std::collections::{BTreeMap, BTreeSet};

/// Most ranks that a job may claim to have: a damaged file must not decide how many are missing.
const MAX_WORLD_SIZE: u32 = 1 << 20;

/// The answer about all ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct FleetAnswer {
    /// Jobs by name; empty if no rank knows its job.
    pub jobs: Vec<String>,
    /// Number of ranks that the job should have.
    pub expected: usize,
    /// Number of ranks that were read.
    pub read: usize,
    /// Number of nodes that they ran on; 0 if unknown.
    pub nodes: usize,
    /// Highest allocated bytes of the ranks.
    pub allocated: Distribution,
    /// Highest reserved bytes of the ranks.
    pub reserved: Distribution,
    /// Names of all dimensions that ranks differ in.
    pub axes: Vec<String>,
    /// Dimensions that explain the peaks, the most important first; with a dimension that was asked for, only
    /// that one.
    pub dimensions: Vec<DimensionAnswer>,
    /// Largest distance of a peak from the median at its coordinates, as a share, without ranks that are out
    /// of line.
    pub spread: f64,
    /// Ranks that ran out of memory.
    pub failure: Option<FailureAnswer>,
    /// Ranks and nodes that are out of line.
    pub deviations: Vec<Deviation>,
    /// Findings, each with the ranks that have it.
    pub findings: Vec<FleetFinding>,
    /// Settings and versions that ranks differ in.
    pub variants: Vec<FleetVariant>,
    /// Nodes on which other processes hold memory of the GPUs.
    pub other_processes: Vec<NodeMemory>,
    /// Ranks whose files cannot be read.
    pub broken: Vec<BrokenRank>,
    /// Numbers of the ranks that have no file.
    pub missing: Vec<u32>,
}

/// Distribution of a number of bytes over the ranks.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Distribution {
    /// Lowest.
    pub lowest: u64,
    /// Median.
    pub median: u64,
    /// Highest.
    pub highest: u64,
    /// A rank that has the highest.
    pub highest_rank: Option<RankLabel>,
}

/// A rank whose files cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenRank {
    /// The rank.
    pub label: RankLabel,
    /// The reason, as the end of a sentence that begins with the file's name.
    pub reason: String,
}

impl FleetAnswer {
    /// Compares all ranks. `by` is a dimension that was asked for; it fails if no rank has it.
    pub fn new(records: &[RankRecord], by: Option<&str>) -> Result<FleetAnswer, Failure> {
        let summaries = || records.iter().filter_map(|record| record.summary.as_ref().ok());
        let jobs: BTreeSet<&str> = summaries().filter_map(|summary| summary.place.id.as_deref()).collect();
        let nodes: BTreeSet<&str> = summaries().filter_map(|summary| summary.place.node.as_deref()).collect();
        let mut ranks: Vec<FleetRank<'_>> = Vec::new();
        let mut broken = Vec::new();
        for record in records {
            let label = RankLabel::new(record, jobs.len() > 1);
            match &record.summary {
                Ok(summary) => ranks.push(FleetRank { label, summary }),
                Err(reason) => broken.push(BrokenRank { label, reason: reason.clone() }),
            }
        }
        let (missing, expected) = missing(records, &broken);
        let peaks: Vec<u64> = ranks.iter().map(|rank| rank.summary.peaks.allocated).collect();
        let all: Vec<usize> = (0..ranks.len()).collect();
        let axes = dimensions::axes(&ranks);
        let (explaining, cells) = dimensions::explain(&axes, &all, &peaks);
        let asked = by.map(|name| {
            axes.iter().find(|axis| axis.name == name).ok_or_else(|| unknown_dimension(name, &axes))
        });
        let dimension = |axis: &dimensions::Axis, explained: f64| DimensionAnswer {
            name: axis.name.clone(),
            explained,
            values: dimensions::values(axis, &all, &ranks, &peaks),
        };
        let dimensions = match asked.transpose()? {
            Some(axis) => vec![dimension(axis, dimensions::explained_by(axis, &all, &peaks))],
            None => explaining.iter().map(|(axis, explained)| dimension(axis, *explained)).collect(),
        };
        // What fills the memory of a rank that ran out is part of the answer about failures.
        let ended: Vec<Vec<usize>> = cells
            .iter()
            .map(|cell| cell.iter().copied().filter(|&rank| !ranks[rank].summary.ran_out()).collect())
            .filter(|cell: &Vec<usize>| !cell.is_empty())
            .collect();
        let spreads = ended
            .iter()
            .filter(|cell| cell.len() > 1)
            .map(|cell| statistics::spread(&cell.iter().map(|&rank| peaks[rank]).collect::<Vec<_>>()));
        Ok(FleetAnswer {
            jobs: jobs.into_iter().map(str::to_owned).collect(),
            expected,
            read: ranks.len(),
            nodes: nodes.len(),
            allocated: Distribution::new(&ranks, |rank| rank.summary.peaks.allocated),
            reserved: Distribution::new(&ranks, |rank| rank.summary.peaks.reserved),
            spread: spreads.fold(0.0, f64::max),
            dimensions,
            failure: failures::failures(&cells, &ranks),
            deviations: deviations::deviations(&ended, &ranks),
            findings: groups::findings(&ranks),
            variants: groups::variants(&ranks),
            other_processes: groups::other_processes(&ranks),
            axes: axes.into_iter().map(|axis| axis.name).collect(),
            broken,
            missing,
        })
    }
}

impl Distribution {
    fn new(ranks: &[FleetRank<'_>], value: impl Fn(&FleetRank<'_>) -> u64) -> Distribution {
        let values: Vec<u64> = ranks.iter().map(&value).collect();
        let highest = values.iter().copied().max().unwrap_or(0);
        let holder = ranks.iter().find(|rank| value(rank) == highest);
        Distribution {
            lowest: values.iter().copied().min().unwrap_or(0),
            median: statistics::median(&values),
            highest,
            highest_rank: holder.map(|rank| rank.label.clone()),
        }
    }
}

fn unknown_dimension(name: &str, axes: &[dimensions::Axis]) -> Failure {
    let known: Vec<String> = axes.iter().map(|axis| format!("`{}`", axis.name)).collect();
    let hint = match known.is_empty() {
        true => "recordings of `oomph run` have the ranks' coordinates; snapshots alone do not".to_owned(),
        false => format!("the ranks differ in {}", known.join(", ")),
    };
    Failure::new(format!("no rank has the dimension `{name}`"), None, None).hinting(hint)
}

/// Returns the numbers without a file, up to the size of the job, and how many ranks there should be. With
/// several jobs, or files without numbers, nothing is known to be missing.
fn missing(records: &[RankRecord], broken: &[BrokenRank]) -> (Vec<u32>, usize) {
    let mut jobs: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    let mut world = None;
    let mut seen = BTreeSet::new();
    for record in records {
        let label = RankLabel::new(record, false);
        match (label.rank, &record.summary) {
            (Some(rank), _) => seen.insert(rank),
            (None, _) => return (Vec::new(), records.len()),
        };
        if let Ok(summary) = &record.summary {
            *jobs.entry(summary.place.id.as_deref()).or_default() += 1;
            world = world.max(summary.place.world_size);
        }
    }
    let is_one_job = jobs.len() <= 1 && seen.len() == records.len();
    let highest = seen.last().copied().unwrap_or(0);
    if !is_one_job || broken.len() == records.len() || highest >= MAX_WORLD_SIZE {
        return (Vec::new(), records.len());
    }
    // Without the size of the job, gaps between the numbers are what is known. A few files picked from many
    // are no gaps.
    let size = match world {
        Some(world) => world.min(MAX_WORLD_SIZE).max(highest + 1),
        None if seen.len() * 2 > highest as usize => highest + 1,
        None => return (Vec::new(), records.len()),
    };
    let missing: Vec<u32> = (0..size).filter(|rank| !seen.contains(rank)).collect();
    (missing, size as usize)
}

#[cfg(test)]
mod tests;
