//! Findings of all ranks of a job, each once.

use crate::compare::{DeviceSummary, FindingSummary};
use crate::findings::finding::FindingKind;

/// A finding, and the ranks that have it.
pub struct RankFinding<'a> {
    /// The most severe and largest of those ranks.
    pub finding: &'a FindingSummary,
    /// Their numbers, in order.
    pub ranks: Vec<usize>,
}

/// Merges findings of the same kind and site across ranks: failed allocations first, then by severity and
/// bytes.
pub fn rank_findings(ranks: &[DeviceSummary]) -> Vec<RankFinding<'_>> {
    let mut merged: Vec<RankFinding<'_>> = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        for finding in &rank.findings {
            // Two of the same kind on one rank stay two.
            let same = |other: &&mut RankFinding<'_>| {
                other.finding.kind == finding.kind
                    && other.finding.site == finding.site
                    && other.ranks.last() != Some(&number)
            };
            match merged.iter_mut().find(same) {
                Some(RankFinding { finding: worst, ranks }) => {
                    ranks.push(number);
                    if (finding.severity, finding.bytes) > (worst.severity, worst.bytes) {
                        *worst = finding;
                    }
                }
                None => merged.push(RankFinding { finding, ranks: vec![number] }),
            }
        }
    }
    merged.sort_by_key(|RankFinding { finding, .. }| {
        let is_first = finding.kind == FindingKind::Oom;
        (std::cmp::Reverse((is_first, finding.severity, finding.bytes)), finding.kind)
    });
    merged
}
