//! The ranks that were read, as the questions about them need them: names, coordinates, differences.

use crate::arrow::RankRecord;
use crate::listing;
use crate::summary::SummarizedRank;
use analysis::{SiteName, SiteUsage, UsageChange, changes};
use std::collections::BTreeMap;

/// A rank that was read.
pub(super) struct FleetRank<'a> {
    pub(super) label: RankLabel,
    pub(super) summary: &'a SummarizedRank,
}

/// Name of a rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RankLabel {
    /// Job, where the fleet has several.
    pub job: Option<String>,
    /// Number of the rank; `None` if neither the file nor its name says it.
    pub rank: Option<u32>,
    /// Path or address of its snapshot.
    pub source: String,
}

impl RankLabel {
    /// Returns the label of a record.
    pub(super) fn new(record: &RankRecord, has_jobs: bool) -> RankLabel {
        let place = record.summary.as_ref().ok().map(|summary| &summary.place);
        let file = record.source.rsplit(['/', '\\']).next().unwrap_or(&record.source);
        RankLabel {
            job: place.and_then(|place| place.id.clone()).filter(|_| has_jobs),
            rank: place.and_then(|place| place.rank).or_else(|| listing::rank_in_name(file)),
            source: record.source.clone(),
        }
    }
}

/// What one rank holds at its peak beyond another.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Difference {
    /// Bytes beyond the other; negative if it holds less.
    pub bytes: i64,
    /// The line that makes most of the difference, and its part of it in bytes.
    pub site: Option<(SiteName, i64)>,
    /// Whether that line's memory was allocated inside `backward()`.
    pub in_backward: bool,
    /// The module that makes most of the difference, and its part of it in bytes.
    pub module: Option<(String, i64)>,
    /// The category that makes most of the difference, and its part of it in bytes.
    pub category: Option<(String, i64)>,
    /// What was compared.
    pub basis: DifferenceBasis,
}

/// What two ranks were compared by.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum DifferenceBasis {
    /// Their summaries, which list every line that matters.
    #[default]
    Summaries,
    /// Their summaries, which do not list every line: another line may make more of the difference.
    ShortenedSummaries,
    /// Their snapshots.
    Snapshots,
}

impl DifferenceBasis {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DifferenceBasis::Summaries => "summaries",
            DifferenceBasis::ShortenedSummaries => "shortened_summaries",
            DifferenceBasis::Snapshots => "snapshots",
        }
    }
}

impl Difference {
    /// Compares what two ranks hold at their peaks. `bytes` is the difference to explain.
    pub(crate) fn new(rank: &SummarizedRank, other: &SummarizedRank, bytes: i64) -> Difference {
        let is_same_sign = |by: i64| (by > 0) == (bytes > 0) && is_large_part(by, bytes);
        let lines = changes(&other.sites, &rank.sites);
        let line = lines.iter().find(|change| change.site.is_some() && is_same_sign(UsageChange::by(change)));
        let largest = |mine: &[crate::NamedBytes], theirs: &[crate::NamedBytes]| {
            let mut by_name: BTreeMap<&str, i64> = BTreeMap::new();
            for (named, sign) in
                mine.iter().map(|named| (named, 1)).chain(theirs.iter().map(|named| (named, -1)))
            {
                let bytes = i64::try_from(named.bytes).unwrap_or(i64::MAX) * sign;
                let sum = by_name.entry(&named.name).or_default();
                *sum = sum.saturating_add(bytes);
            }
            let by_name = by_name.into_iter().filter(|(_, by)| is_same_sign(*by));
            let largest = by_name.max_by_key(|(name, by)| (by.unsigned_abs(), std::cmp::Reverse(*name)));
            largest.map(|(name, by)| (name.to_owned(), by))
        };
        let is_listed = |summary: &SummarizedRank| {
            let is_same = |usage: &SiteUsage| line.is_some_and(|change| usage.site == change.site);
            !summary.has_hidden_sites() || summary.sites.iter().any(is_same)
        };
        Difference {
            bytes,
            basis: match is_listed(rank) && is_listed(other) {
                true => DifferenceBasis::Summaries,
                false => DifferenceBasis::ShortenedSummaries,
            },
            site: line.and_then(|change| Some((change.site.clone()?, change.by()))),
            in_backward: line.is_some_and(|change| change.in_backward),
            module: largest(&rank.modules, &other.modules),
            category: largest(&rank.categories, &other.categories),
        }
    }
}

/// Share of a difference below which a line or module does not explain it.
const MIN_PART: f64 = 0.2;

fn is_large_part(by: i64, bytes: i64) -> bool {
    by.unsigned_abs() as f64 >= bytes.unsigned_abs() as f64 * MIN_PART
}

/// Returns how much more the first is, in bytes.
pub(super) fn difference_of(value: u64, other: u64) -> i64 {
    let by = i64::try_from(value.abs_diff(other)).unwrap_or(i64::MAX);
    if value < other { -by } else { by }
}

/// Returns the rank whose value is the median; the first of equal ones.
pub(super) fn representative(ranks: &[usize], value: impl Fn(usize) -> u64) -> usize {
    let mut order = ranks.to_vec();
    order.sort_by_key(|&rank| (value(rank), rank));
    order[(order.len() - 1) / 2]
}
