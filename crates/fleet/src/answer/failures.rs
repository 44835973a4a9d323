//! Ranks that ran out of memory: which one first, at which line, and what became of the others.

use super::ranks::{Difference, FleetRank, RankLabel, difference_of, representative};
use analysis::SiteName;
use std::collections::BTreeMap;

/// The ranks that ran out of memory.
#[derive(Clone, PartialEq, Debug)]
pub struct FailureAnswer {
    /// The rank that ran out first.
    pub first: RankLabel,
    /// Its node.
    pub node: Option<String>,
    /// When, in microseconds since the Unix epoch; `None` if no snapshot has times.
    pub time_us: Option<u64>,
    /// Bytes that it requested.
    pub requested: Option<u64>,
    /// The line that requested them.
    pub site: Option<SiteName>,
    /// Its highest allocated bytes.
    pub peak: u64,
    /// What it holds beyond a median rank at the same coordinates.
    pub difference: Option<Difference>,
    /// All ranks that ran out, in order of time.
    pub ranks: Vec<RankLabel>,
    /// How many ranks ended in which way, the most frequent first.
    pub endings: Vec<EndedRanks>,
}

/// Ranks that ended in the same way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedRanks {
    /// How they ended, as in `rankN.json`: `finished`, `failed`, `killed`, `running`, `out_of_memory`,
    /// `unknown`.
    pub ended: String,
    /// Number of ranks.
    pub ranks: usize,
}

/// Returns who ran out first, if anybody did.
pub(super) fn failures(groups: &[Vec<usize>], ranks: &[FleetRank<'_>]) -> Option<FailureAnswer> {
    let mut out: Vec<usize> = (0..ranks.len()).filter(|&rank| ranks[rank].summary.ran_out()).collect();
    let time =
        |rank: usize| ranks[rank].summary.peaks.out_of_memory.as_ref().and_then(|failed| failed.time_us);
    out.sort_by_key(|&rank| (time(rank).unwrap_or(u64::MAX), rank));
    let &first = out.first()?;
    let summary = ranks[first].summary;
    let failed = summary.peaks.out_of_memory.as_ref();
    let peers: Vec<usize> = groups
        .iter()
        .find(|group| group.contains(&first))
        .map(|group| group.iter().copied().filter(|&rank| !ranks[rank].summary.ran_out()).collect())
        .unwrap_or_default();
    let difference = (!peers.is_empty()).then(|| {
        let peer = representative(&peers, |rank| ranks[rank].summary.peaks.allocated);
        let bytes = difference_of(summary.peaks.allocated, ranks[peer].summary.peaks.allocated);
        Difference::new(summary, ranks[peer].summary, bytes)
    });
    let mut endings: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in ranks {
        let word =
            if rank.summary.ran_out() { Some("out_of_memory") } else { rank.summary.peaks.ended.as_deref() };
        *endings.entry(word.unwrap_or("unknown")).or_default() += 1;
    }
    let mut endings: Vec<EndedRanks> =
        endings.into_iter().map(|(ended, ranks)| EndedRanks { ended: ended.to_owned(), ranks }).collect();
    endings.sort_by_key(|ending| std::cmp::Reverse(ending.ranks));
    Some(FailureAnswer {
        first: ranks[first].label.clone(),
        node: summary.place.node.clone(),
        time_us: time(first),
        requested: failed.map(|failed| failed.requested),
        site: failed.and_then(|failed| failed.site.clone()),
        peak: summary.peaks.allocated,
        difference,
        ranks: out.iter().map(|&rank| ranks[rank].label.clone()).collect(),
        endings,
    })
}
