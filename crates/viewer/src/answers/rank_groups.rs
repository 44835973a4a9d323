//! Ranks that are alike: the same kinds of findings, and nearly the same peak.

use super::ranks::{DeviceFacts, RankFindingShape};
use analysis::rank_in_name;
use analysis::words::grouped;
use serde::Serialize;

/// Share of the lowest peak in a group by which the highest may exceed it.
const MAX_SPREAD: f64 = 0.01;
/// Ranges of ranks that are named.
const MAX_RANGES: usize = 6;

/// Ranks that are alike.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct RankGroup {
    /// How many there are.
    count: usize,
    /// Which they are: `0–63, 128`.
    members: String,
    /// Lowest peak of allocated bytes.
    lowest: u64,
    /// Highest peak of allocated bytes.
    highest: u64,
    /// Number of the run with the median peak, which stands for all of them.
    representative: usize,
    /// Allocated bytes of that run over its events.
    timeline: Vec<u64>,
    /// Findings of that run.
    findings: Vec<RankFindingShape>,
}

/// Groups ranks; also returns the index of each rank's group.
pub(crate) fn groups(ranks: &[&DeviceFacts]) -> (Vec<RankGroup>, Vec<usize>) {
    let kinds = |rank: usize| -> Vec<&'static str> {
        let mut kinds: Vec<&str> = ranks[rank].findings.iter().map(|finding| finding.kind).collect();
        kinds.sort_unstable();
        kinds
    };
    let peak = |rank: usize| ranks[rank].summary.allocated.0.0;
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_cached_key(|&rank| (kinds(rank), peak(rank), rank));
    let mut alike: Vec<Vec<usize>> = Vec::new();
    for rank in order {
        let is_alike = |group: &&mut Vec<usize>| {
            let lowest = peak(group[0]);
            peak(rank) as f64 <= lowest as f64 * (1.0 + MAX_SPREAD) && kinds(group[0]) == kinds(rank)
        };
        match alike.last_mut().filter(is_alike) {
            Some(group) => group.push(rank),
            None => alike.push(vec![rank]),
        }
    }
    alike.sort_by_key(|group| (std::cmp::Reverse(group.last().map(|&rank| peak(rank))), group[0]));
    let mut group_of = vec![0; ranks.len()];
    for (number, group) in alike.iter().enumerate() {
        for &rank in group {
            group_of[rank] = number;
        }
    }
    let described = alike.iter().map(|group| {
        let median = ranks[group[(group.len() - 1) / 2]];
        RankGroup {
            count: group.len(),
            members: members(ranks, group),
            lowest: peak(group[0]),
            highest: peak(group[group.len() - 1]),
            representative: median.run,
            timeline: median.timeline.clone(),
            findings: median.findings.clone(),
        }
    });
    (described.collect(), group_of)
}

/// Numbers of ranks as ranges.
fn members(ranks: &[&DeviceFacts], group: &[usize]) -> String {
    let mut numbers: Vec<usize> =
        group.iter().map(|&rank| rank_in_name(&ranks[rank].summary.name).unwrap_or(rank)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let named: Vec<String> = ranges
        .iter()
        .take(MAX_RANGES)
        .map(|&(first, last)| if first == last { first.to_string() } else { format!("{first}–{last}") })
        .collect();
    let rest: usize = ranges.iter().skip(MAX_RANGES).map(|(first, last)| last - first + 1).sum();
    let more = if rest > 0 { format!(" and {} more", grouped(rest as u64)) } else { String::new() };
    named.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::DeviceSummary;
    use snapshot::Bytes;

    fn rank(number: usize, peak: u64, kind: Option<&'static str>) -> DeviceFacts {
        let mut summary = DeviceSummary::empty(&format!("run/rank{number}.pickle.xz"));
        summary.allocated.0 = Bytes(peak);
        DeviceFacts::drawn(number, summary, kind)
    }

    #[test]
    fn ranks_are_alike_by_peak_and_findings() {
        let ranks: Vec<DeviceFacts> = (0..64)
            .map(|number| match number {
                5 => rank(number, 1000, Some("leak")),
                40..48 => rank(number, 1200 + number as u64 % 3, None),
                _ => rank(number, 1000 + number as u64 % 10, None),
            })
            .collect();
        let (groups, group_of) = groups(&ranks.iter().collect::<Vec<_>>());
        let found: Vec<(usize, &str)> = groups.iter().map(|group| (group.count, &*group.members)).collect();
        assert_eq!(found, [(8, "40–47"), (55, "0–4, 6–39, 48–63"), (1, "5")]);
        assert_eq!((group_of[5], group_of[44], group_of[0]), (2, 0, 1));
        assert_eq!((groups[1].lowest, groups[1].highest), (1000, 1009));
    }

    #[test]
    fn many_ranges_are_counted() {
        let ranks: Vec<DeviceFacts> = (0..40).map(|number| rank(2 * number, 1000, None)).collect();
        let (groups, _) = groups(&ranks.iter().collect::<Vec<_>>());
        assert_eq!(groups[0].members, "0, 2, 4, 6, 8, 10 and 34 more");
    }
}
