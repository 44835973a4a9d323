//! What many ranks have in common: findings, settings, other processes on a node.

use super::ranks::{FleetRank, RankLabel};
use super::statistics::median;
use analysis::SiteName;
use std::collections::BTreeMap;

/// Most findings of an answer.
const MAX_FINDINGS: usize = 64;
/// Least memory of other processes that is reported, in bytes: a display or a monitor takes less.
const MIN_OTHER_BYTES: u64 = 256 << 20;

/// A finding, once for all ranks that have it.
#[derive(Clone, PartialEq, Debug)]
pub struct FleetFinding {
    /// Kind in JSON, such as `leak`.
    pub kind: String,
    /// Highest severity, in JSON.
    pub severity: String,
    /// The line to look at.
    pub site: Option<SiteName>,
    /// The finding of the rank where it is largest, in one sentence.
    pub summary: String,
    /// What to change there.
    pub fix: String,
    /// Median bytes.
    pub bytes: u64,
    /// Median bytes per step, of the ranks where it grows.
    pub bytes_per_step: Option<u64>,
    /// The ranks that have it.
    pub ranks: Vec<RankLabel>,
}

/// Returns each finding once, the most severe and most frequent first.
pub(super) fn findings(ranks: &[FleetRank<'_>]) -> Vec<FleetFinding> {
    type Key<'a> = (&'a str, Option<(&'a str, u32, &'a str)>);
    let mut groups: BTreeMap<Key<'_>, Vec<(usize, &crate::RankedFinding)>> = BTreeMap::new();
    for (number, rank) in ranks.iter().enumerate() {
        for finding in &rank.summary.findings {
            // Folders differ from node to node; the name of the file does not.
            let site = finding.site.as_ref();
            let site = site.map(|site| (site.file_name(), site.line, site.function.as_str()));
            let group = groups.entry((&finding.kind, site)).or_default();
            if group.last().is_none_or(|(last, _)| *last != number) {
                group.push((number, finding));
            }
        }
    }
    let mut found: Vec<FleetFinding> = groups
        .into_values()
        .filter_map(|group| {
            let largest = group.iter().max_by_key(|(_, finding)| (severity(finding), finding.bytes))?.1;
            let per_step: Vec<u64> = group.iter().filter_map(|(_, finding)| finding.bytes_per_step).collect();
            Some(FleetFinding {
                kind: largest.kind.clone(),
                severity: largest.severity.clone(),
                site: largest.site.clone(),
                summary: largest.summary.clone(),
                fix: largest.fix.clone(),
                bytes: median(&group.iter().map(|(_, finding)| finding.bytes).collect::<Vec<_>>()),
                bytes_per_step: (!per_step.is_empty()).then(|| median(&per_step)),
                ranks: group.iter().map(|(rank, _)| ranks[*rank].label.clone()).collect(),
            })
        })
        .collect();
    let order = |word: &str| SEVERITIES.iter().position(|known| *known == word);
    found.sort_by(|a, b| {
        let key = |of: &FleetFinding| std::cmp::Reverse((order(&of.severity), of.ranks.len(), of.bytes));
        key(a).cmp(&key(b)).then_with(|| a.kind.cmp(&b.kind))
    });
    found.truncate(MAX_FINDINGS);
    found
}

const SEVERITIES: [&str; 3] = ["low", "medium", "high"];

fn severity(finding: &crate::RankedFinding) -> Option<usize> {
    SEVERITIES.iter().position(|known| *known == finding.severity)
}

/// A setting or version that ranks differ in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FleetVariant {
    /// Name, such as `allocator` or `torch`.
    pub name: String,
    /// Its values, the most frequent first.
    pub values: Vec<VariantValue>,
}

/// Ranks with the same value of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariantValue {
    /// The value; empty for PyTorch's default allocator settings.
    pub value: String,
    /// The ranks.
    pub ranks: Vec<RankLabel>,
}

/// Returns the settings and versions that ranks differ in.
pub(super) fn variants(ranks: &[FleetRank<'_>]) -> Vec<FleetVariant> {
    let mut names: BTreeMap<&str, BTreeMap<&str, Vec<RankLabel>>> = BTreeMap::new();
    for rank in ranks {
        for (name, value) in &rank.summary.settings {
            names.entry(name).or_default().entry(value).or_default().push(rank.label.clone());
        }
    }
    let differing = names.into_iter().filter(|(_, values)| values.len() > 1);
    let variant = |(name, values): (&str, BTreeMap<&str, Vec<RankLabel>>)| {
        let values = values.into_iter().map(|(value, ranks)| VariantValue { value: value.to_owned(), ranks });
        let mut values: Vec<VariantValue> = values.collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.ranks.len()));
        FleetVariant { name: name.to_owned(), values }
    };
    differing.map(variant).collect()
}

/// Memory of other processes on the GPUs of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeMemory {
    /// Name of the node, if known.
    pub node: Option<String>,
    /// Most that other processes hold on one of its GPUs, in bytes.
    pub bytes: u64,
    /// The ranks that see it.
    pub ranks: Vec<RankLabel>,
}

/// Returns the nodes on which other processes hold memory of the GPUs, the most first.
pub(super) fn other_processes(ranks: &[FleetRank<'_>]) -> Vec<NodeMemory> {
    let mut nodes: BTreeMap<Option<&str>, NodeMemory> = BTreeMap::new();
    for rank in ranks {
        let bytes = rank.summary.peaks.other_processes.unwrap_or(0);
        if bytes < MIN_OTHER_BYTES {
            continue;
        }
        let node = rank.summary.place.node.as_deref();
        let memory = nodes.entry(node).or_insert_with(|| NodeMemory {
            node: node.map(str::to_owned),
            bytes: 0,
            ranks: Vec::new(),
        });
        memory.bytes = memory.bytes.max(bytes);
        memory.ranks.push(rank.label.clone());
    }
    let mut nodes: Vec<NodeMemory> = nodes.into_values().collect();
    nodes.sort_by_key(|node| std::cmp::Reverse(node.bytes));
    nodes
}
