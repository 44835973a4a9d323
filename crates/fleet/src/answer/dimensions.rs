//! Which dimension of the job explains the peaks of its ranks.

use super::ranks::{Difference, FleetRank, difference_of, representative};
use super::statistics::{EQUAL_SHARE, distance_within, median, spread};
use std::collections::BTreeMap;

/// Most dimensions that explain the peaks together.
const MAX_EXPLAINING: usize = 3;
/// Share of the distances between peaks that a dimension has to explain.
const MIN_EXPLAINED: f64 = 0.10;
/// Share that a dimension has to explain beyond an earlier one to be preferred: nodes often follow stages.
const MIN_ADVANTAGE: f64 = 0.02;
/// Share of the ranks that must have a coordinate.
const MIN_PLACED: f64 = 0.5;

/// Names of dimensions that every launcher gives.
pub(super) const LOCAL_RANK: &str = "local_rank";
pub(super) const NODE: &str = "node";
const JOB: &str = "job";

/// A dimension, and what the ranks at each of its values hold.
#[derive(Clone, PartialEq, Debug)]
pub struct DimensionAnswer {
    /// Name, such as `pp`, `node` or `local_rank`.
    pub name: String,
    /// Share of the distances between peaks that it explains, together with those before it.
    pub explained: f64,
    /// Its values, in order.
    pub values: Vec<DimensionValue>,
}

/// Ranks with the same value of a dimension.
#[derive(Clone, PartialEq, Debug)]
pub struct DimensionValue {
    /// The value: an index, or the name of a node.
    pub value: String,
    /// Number of values of the dimension.
    pub of: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Median of their peaks, in bytes.
    pub peak: u64,
    /// Largest distance of a peak from it, as a share, without ranks that are out of line.
    pub spread: f64,
    /// What they hold beyond the median value of the dimension.
    pub difference: Difference,
}

/// The value of one dimension at each rank; `None` where the rank does not say.
pub(super) struct Axis {
    pub(super) name: String,
    values: Vec<Option<AxisValue>>,
}

/// Value of a dimension: numbers sort as numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum AxisValue {
    Index(u32),
    Name(String),
}

impl AxisValue {
    fn text(&self) -> String {
        match self {
            AxisValue::Index(index) => index.to_string(),
            AxisValue::Name(name) => name.clone(),
        }
    }
}

/// Returns every dimension that at least two ranks differ in: first those of the mesh, in its order.
pub(super) fn axes(ranks: &[FleetRank<'_>]) -> Vec<Axis> {
    let mut names: Vec<String> = Vec::new();
    for coordinate in ranks.iter().flat_map(|rank| &rank.summary.place.dimensions) {
        if !names.contains(&coordinate.name) {
            names.push(coordinate.name.clone());
        }
    }
    let mut axes: Vec<Axis> = Vec::new();
    let mut add = |name: &str, value: &dyn Fn(&FleetRank<'_>) -> Option<AxisValue>| {
        axes.push(Axis { name: name.to_owned(), values: ranks.iter().map(value).collect() });
    };
    for name in &names {
        add(name, &|rank| rank.summary.coordinate(name).map(|coordinate| AxisValue::Index(coordinate.index)));
    }
    add(JOB, &|rank| rank.label.job.clone().map(AxisValue::Name));
    add(LOCAL_RANK, &|rank| rank.summary.place.local_rank.map(AxisValue::Index));
    add(NODE, &|rank| rank.summary.place.node.clone().map(AxisValue::Name));
    axes.retain(|axis| {
        let placed = axis.values.iter().flatten().count();
        let mut values: Vec<&AxisValue> = axis.values.iter().flatten().collect();
        values.sort_unstable();
        values.dedup();
        values.len() > 1 && placed as f64 >= MIN_PLACED * ranks.len() as f64
    });
    axes
}

/// Splits each group by the values of a dimension.
pub(super) fn split(groups: &[Vec<usize>], axis: &Axis) -> Vec<Vec<usize>> {
    let mut parts = Vec::new();
    for group in groups {
        let mut by_value: BTreeMap<&Option<AxisValue>, Vec<usize>> = BTreeMap::new();
        for &rank in group {
            by_value.entry(&axis.values[rank]).or_default().push(rank);
        }
        parts.extend(by_value.into_values());
    }
    parts
}

/// Returns the dimensions that explain the peaks, with the share that each explains together with those
/// before it, and the groups of ranks that agree in all of them.
pub(super) fn explain<'a>(
    axes: &'a [Axis],
    all: &[usize],
    peaks: &[u64],
) -> (Vec<(&'a Axis, f64)>, Vec<Vec<usize>>) {
    let values = |groups: &[Vec<usize>]| -> Vec<Vec<u64>> {
        groups.iter().map(|group| group.iter().map(|&rank| peaks[rank]).collect()).collect()
    };
    let mut groups = vec![all.to_vec()];
    let whole = distance_within(&values(&groups));
    let middle = median(&all.iter().map(|&rank| peaks[rank]).collect::<Vec<_>>());
    let mut chosen: Vec<(&Axis, f64)> = Vec::new();
    if !whole.is_finite() {
        return (chosen, groups);
    }
    while chosen.len() < MAX_EXPLAINING {
        let before = chosen.last().map_or(0.0, |(_, explained)| *explained);
        let mut best: Option<(&Axis, f64, Vec<Vec<usize>>)> = None;
        // A node that is out of line is a deviation, not a dimension.
        let candidates = axes.iter().filter(|axis| axis.name != NODE);
        for axis in candidates.filter(|axis| chosen.iter().all(|(other, _)| other.name != axis.name)) {
            let parts = split(&groups, axis);
            let explained = 1.0 - distance_within(&values(&parts)) / whole.max(1.0);
            let bar = best.as_ref().map_or(before + MIN_EXPLAINED, |(_, best, _)| best + MIN_ADVANTAGE);
            if explained >= bar && is_material(&parts, &groups, peaks, middle) {
                best = Some((axis, explained, parts));
            }
        }
        let Some((axis, explained, parts)) = best else { break };
        chosen.push((axis, explained));
        groups = parts;
    }
    (chosen, groups)
}

/// Whether the medians of the parts differ by more than noise, in at least one group.
fn is_material(parts: &[Vec<usize>], groups: &[Vec<usize>], peaks: &[u64], middle: u64) -> bool {
    let index_of_group = |rank: usize| groups.iter().position(|group| group.contains(&rank));
    let mut bounds: BTreeMap<Option<usize>, (u64, u64)> = BTreeMap::new();
    // Parts with a single rank may be a rank that is out of line.
    for part in parts.iter().filter(|part| part.len() > 1) {
        let peak = median(&part.iter().map(|&rank| peaks[rank]).collect::<Vec<_>>());
        let bound = bounds.entry(index_of_group(part[0])).or_insert((peak, peak));
        *bound = (bound.0.min(peak), bound.1.max(peak));
    }
    bounds.values().any(|(low, high)| (high - low) as f64 > middle as f64 * EQUAL_SHARE / 2.0)
}

/// Returns the ranks at each value of a dimension, and what sets them apart from the median value.
pub(super) fn values(
    axis: &Axis,
    all: &[usize],
    ranks: &[FleetRank<'_>],
    peaks: &[u64],
) -> Vec<DimensionValue> {
    let placed: Vec<usize> = all.iter().copied().filter(|&rank| axis.values[rank].is_some()).collect();
    let groups = split(&[placed], axis);
    let medians: Vec<u64> = groups
        .iter()
        .map(|group| median(&group.iter().map(|&rank| peaks[rank]).collect::<Vec<_>>()))
        .collect();
    let of = groups.len();
    let reference = representative(&(0..of).collect::<Vec<_>>(), |group| medians[group]);
    let other = representative(&groups[reference], |rank| peaks[rank]);
    groups
        .iter()
        .zip(&medians)
        .map(|(group, &peak)| {
            let rank = representative(group, |rank| peaks[rank]);
            let bytes = difference_of(peak, medians[reference]);
            DimensionValue {
                value: axis.values[rank].as_ref().map(AxisValue::text).unwrap_or_default(),
                of,
                ranks: group.len(),
                peak,
                spread: spread(&group.iter().map(|&rank| peaks[rank]).collect::<Vec<_>>()),
                difference: Difference::new(ranks[rank].summary, ranks[other].summary, bytes),
            }
        })
        .collect()
}

/// Returns the share of the distances between peaks that one dimension explains alone.
pub(super) fn explained_by(axis: &Axis, all: &[usize], peaks: &[u64]) -> f64 {
    let values = |groups: &[Vec<usize>]| -> f64 {
        let groups = groups.iter().map(|group| group.iter().map(|&rank| peaks[rank]).collect());
        distance_within(&groups.collect::<Vec<Vec<u64>>>())
    };
    let whole = values(&[all.to_vec()]);
    let explained = 1.0 - values(&split(&[all.to_vec()], axis)) / whole.max(1.0);
    if explained.is_finite() { explained.max(0.0) } else { 0.0 }
}
