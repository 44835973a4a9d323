//! Ranks and nodes that are out of line with ranks at the same coordinates.

use super::ranks::{Difference, FleetRank, RankLabel, difference_of};
use super::statistics::{median, tolerance};
use std::collections::BTreeMap;

/// Fewest ranks at the same coordinates that say what is normal.
const MIN_PEERS: usize = 3;
/// Fewest ranks of a node that make a deviation the node's own.
const MIN_NODE_RANKS: usize = 2;
/// Share of a node's ranks that must be out of line for the same.
const MIN_NODE_SHARE: f64 = 0.6;

/// Ranks that are out of line.
#[derive(Clone, PartialEq, Debug)]
pub struct Deviation {
    /// The node, if its ranks are out of line together.
    pub node: Option<String>,
    /// The ranks, the one that is furthest out of line first.
    pub ranks: Vec<RankLabel>,
    /// What is out of line.
    pub metric: DeviationMetric,
    /// Bytes of the first rank.
    pub value: u64,
    /// Median of the ranks at the same coordinates, in bytes.
    pub expected: u64,
    /// What the first rank holds beyond a median one.
    pub difference: Difference,
    /// The median rank that it is compared with.
    pub peer: RankLabel,
    /// Why the snapshots of the two could not be compared, where their summaries do not list every line.
    pub unread: Option<String>,
}

/// A number of a rank that is compared with other ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeviationMetric {
    /// Highest allocated bytes.
    Allocated,
    /// Highest reserved bytes.
    Reserved,
    /// Non-PyTorch memory of the process.
    NonPytorch,
}

impl DeviationMetric {
    /// Every metric, in the order in which a rank is judged: only the first that is out of line counts.
    const ALL: [DeviationMetric; 3] =
        [DeviationMetric::Allocated, DeviationMetric::Reserved, DeviationMetric::NonPytorch];

    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DeviationMetric::Allocated => "allocated",
            DeviationMetric::Reserved => "reserved",
            DeviationMetric::NonPytorch => "non_pytorch",
        }
    }

    fn of(self, rank: &FleetRank<'_>) -> Option<u64> {
        let peaks = &rank.summary.peaks;
        match self {
            DeviationMetric::Allocated => Some(peaks.allocated),
            DeviationMetric::Reserved => Some(peaks.reserved),
            DeviationMetric::NonPytorch => peaks.non_pytorch,
        }
    }
}

/// A rank out of line, with the median rank that it is compared with.
struct OutOfLine {
    rank: usize,
    peer: usize,
    value: u64,
    expected: u64,
}

/// Returns the deviations within groups of ranks at the same coordinates, the largest first.
pub(super) fn deviations(groups: &[Vec<usize>], ranks: &[FleetRank<'_>]) -> Vec<Deviation> {
    let mut is_named = vec![false; ranks.len()];
    let mut found = Vec::new();
    for metric in DeviationMetric::ALL {
        let mut out: Vec<OutOfLine> = Vec::new();
        for group in groups {
            out.extend(out_of_line(group, ranks, metric).into_iter().filter(|out| !is_named[out.rank]));
        }
        for rank in &out {
            is_named[rank.rank] = true;
        }
        found.extend(by_node(out, ranks).into_iter().map(|(node, out)| deviation(node, &out, metric, ranks)));
    }
    let key = |found: &Deviation| (found.metric, std::cmp::Reverse(found.difference.bytes.unsigned_abs()));
    found.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.ranks.cmp(&b.ranks)));
    found
}

fn out_of_line(group: &[usize], ranks: &[FleetRank<'_>], metric: DeviationMetric) -> Vec<OutOfLine> {
    let known: Vec<usize> = group.iter().copied().filter(|&rank| metric.of(&ranks[rank]).is_some()).collect();
    if known.len() < MIN_PEERS {
        return Vec::new();
    }
    let value = |rank: usize| metric.of(&ranks[rank]).unwrap_or(0);
    let voters = voters(&known, ranks);
    let votes = |of: &dyn Fn(usize) -> u64| -> Vec<u64> {
        voters.iter().map(|voter| median(&voter.iter().map(|&rank| of(rank)).collect::<Vec<_>>())).collect()
    };
    let expected = median(&votes(&value));
    let limit = tolerance(&votes(&|rank| value(rank).abs_diff(expected)), expected);
    let Some(peer) = known.iter().copied().min_by_key(|&rank| value(rank).abs_diff(expected)) else {
        return Vec::new();
    };
    let is_out = |rank: &usize| value(*rank).abs_diff(expected) as f64 > limit;
    let out = known.into_iter().filter(is_out);
    out.map(|rank| OutOfLine { rank, peer, value: value(rank), expected }).collect()
}

/// Returns the groups of ranks that decide together what is normal, each with one vote: nodes, so that one
/// node with most of the ranks does not decide alone, or single ranks if there are too few nodes.
fn voters(known: &[usize], ranks: &[FleetRank<'_>]) -> Vec<Vec<usize>> {
    let mut nodes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut alone = Vec::new();
    for &rank in known {
        match ranks[rank].summary.place.node.as_deref() {
            Some(node) => nodes.entry(node).or_default().push(rank),
            None => alone.push(vec![rank]),
        }
    }
    if nodes.len() < MIN_PEERS {
        return known.iter().map(|&rank| vec![rank]).collect();
    }
    nodes.into_values().chain(alone).collect()
}

/// Joins the ranks of nodes that are out of line together.
fn by_node(out: Vec<OutOfLine>, ranks: &[FleetRank<'_>]) -> Vec<(Option<String>, Vec<OutOfLine>)> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for node in ranks.iter().filter_map(|rank| rank.summary.place.node.as_deref()) {
        *sizes.entry(node).or_default() += 1;
    }
    let mut by_node: BTreeMap<(String, bool), Vec<OutOfLine>> = BTreeMap::new();
    let mut alone = Vec::new();
    for out in out {
        match ranks[out.rank].summary.place.node.clone() {
            Some(node) => by_node.entry((node, out.value > out.expected)).or_default().push(out),
            None => alone.push((None, vec![out])),
        }
    }
    for ((node, _), mut out) in by_node {
        let size = sizes.get(node.as_str()).copied().unwrap_or(0);
        let is_whole = sizes.len() > 1 && out.len() as f64 >= MIN_NODE_SHARE * size as f64;
        out.sort_by_key(|out| std::cmp::Reverse(out.value.abs_diff(out.expected)));
        if out.len() >= MIN_NODE_RANKS && is_whole {
            alone.push((Some(node), out));
        } else {
            alone.extend(out.into_iter().map(|out| (None, vec![out])));
        }
    }
    alone
}

fn deviation(
    node: Option<String>,
    out: &[OutOfLine],
    metric: DeviationMetric,
    ranks: &[FleetRank<'_>],
) -> Deviation {
    let OutOfLine { rank, peer, value, expected } = out[0];
    let bytes = difference_of(value, expected);
    let difference = match metric {
        DeviationMetric::Allocated => Difference::new(ranks[rank].summary, ranks[peer].summary, bytes),
        // No line of the program makes the others.
        DeviationMetric::Reserved | DeviationMetric::NonPytorch => {
            Difference { bytes, ..Difference::default() }
        }
    };
    let labels = out.iter().map(|out| ranks[out.rank].label.clone()).collect();
    let peer = ranks[peer].label.clone();
    Deviation { node, ranks: labels, metric, value, expected, difference, peer, unread: None }
}
