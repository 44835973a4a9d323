//! The JSON of `oomph fleet`: public and versioned.

use crate::sites::ReportedSite;
use analysis::SiteName;
use fleet::{
    Deviation, Difference, DimensionAnswer, DimensionValue, Distribution, FailureAnswer, FleetAnswer,
    FleetFinding, RankLabel, RankSource,
};
use schemars::JsonSchema;
use serde::Serialize;

/// All ranks of a job, compared.
#[derive(Serialize, JsonSchema)]
pub struct FleetDocument {
    /// Version of the format.
    version: u32,
    /// Names of the jobs; empty if no rank knows its job.
    jobs: Vec<String>,
    /// Number of ranks that the job has.
    expected: usize,
    /// Number of ranks that were read.
    read: usize,
    /// Number of nodes; 0 if unknown.
    nodes: usize,
    /// Highest allocated bytes.
    allocated: DistributionReport,
    /// Highest reserved bytes.
    reserved: DistributionReport,
    /// Largest distance of a peak from the median of the ranks at its coordinates, as a share of it, without
    /// ranks that are out of line.
    spread: f64,
    /// Names of all dimensions that ranks differ in.
    differs_in: Vec<String>,
    /// Dimensions that explain the peaks, the most important first; with `--by`, the one that was asked for.
    dimensions: Vec<DimensionReport>,
    /// Ranks that ran out of memory; `null` if none did.
    failure: Option<FailureReport>,
    /// Ranks and nodes that are out of line with ranks at the same coordinates.
    deviations: Vec<DeviationReport>,
    /// Findings, each with the ranks that have it.
    findings: Vec<SharedFinding>,
    /// Settings and versions that ranks differ in.
    variants: Vec<SettingReport>,
    /// Nodes on which other processes hold memory of the GPUs.
    other_processes: Vec<OtherProcessesReport>,
    /// Ranks whose files cannot be read.
    broken: Vec<BrokenReport>,
    /// Numbers of the ranks that have no file.
    missing: Vec<u32>,
}

/// A rank.
#[derive(Serialize, JsonSchema)]
struct RankName {
    /// Job, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// Number of the rank; `null` if unknown.
    rank: Option<u32>,
    /// Path or address of its snapshot.
    source: String,
}

/// Distribution of a number of bytes over the ranks.
#[derive(Serialize, JsonSchema)]
struct DistributionReport {
    /// Lowest bytes.
    lowest: u64,
    /// Median bytes.
    median: u64,
    /// Highest bytes.
    highest: u64,
    /// A rank with the highest; `null` without ranks.
    highest_rank: Option<RankName>,
}

/// A dimension of the job.
#[derive(Serialize, JsonSchema)]
struct DimensionReport {
    /// Name, such as `pp`, `node` or `local_rank`.
    name: String,
    /// Share of the distances between peaks that it explains, together with those before it.
    explained: f64,
    /// Its values, in order.
    values: Vec<DimensionValueReport>,
}

/// Ranks with the same value of a dimension.
#[derive(Serialize, JsonSchema)]
struct DimensionValueReport {
    /// The value: an index, or the name of a node.
    value: String,
    /// Number of ranks.
    ranks: usize,
    /// Median of their highest allocated bytes.
    peak: u64,
    /// Largest distance of a peak from it, as a share of it, without ranks that are out of line.
    spread: f64,
    /// What they hold beyond the median value of the dimension.
    difference: DifferenceReport,
}

/// What a rank holds beyond another at its peak.
#[derive(Serialize, JsonSchema)]
struct DifferenceReport {
    /// Bytes; negative if it holds less.
    bytes: i64,
    /// The line that makes most of it; `null` if no line does.
    site: Option<ReportedSite>,
    /// Bytes of that line's part.
    site_bytes: Option<i64>,
    /// Whether that line's memory was allocated in the backward pass.
    in_backward: bool,
    /// The module that makes most of it; `null` if unknown.
    module: Option<String>,
    /// The category that makes most of it; `null` if unknown.
    category: Option<String>,
    /// What was compared: `summaries`; `shortened_summaries`, which do not list every line, so that another
    /// line may make more of it; or `snapshots`, which have every line.
    compared: &'static str,
}

/// Ranks that ran out of memory.
#[derive(Serialize, JsonSchema)]
struct FailureReport {
    /// The rank that ran out first.
    first: RankName,
    /// Its node.
    node: Option<String>,
    /// When, in microseconds since the Unix epoch.
    time_us: Option<u64>,
    /// Bytes that it requested.
    requested: Option<u64>,
    /// The line that requested them.
    site: Option<ReportedSite>,
    /// Its highest allocated bytes.
    peak: u64,
    /// What it holds beyond a median rank at the same coordinates that did not run out.
    difference: Option<DifferenceReport>,
    /// All ranks that ran out, in order of time.
    ranks: Vec<RankName>,
    /// How the ranks ended, the most frequent first.
    endings: Vec<EndingReport>,
}

/// Ranks that ended in the same way.
#[derive(Serialize, JsonSchema)]
struct EndingReport {
    /// `finished`, `failed`, `killed`, `running`, `out_of_memory`, `unknown`, or why the recorder stopped it.
    ended: String,
    /// Number of ranks.
    ranks: usize,
}

/// Ranks that are out of line.
#[derive(Serialize, JsonSchema)]
struct DeviationReport {
    /// The node, if its ranks are out of line together.
    node: Option<String>,
    /// The ranks, the one that is furthest out of line first.
    ranks: Vec<RankName>,
    /// What is out of line: `allocated`, `reserved` or `non_pytorch`.
    metric: &'static str,
    /// Bytes of the first rank.
    value: u64,
    /// Median of the ranks at the same coordinates, in bytes.
    expected: u64,
    /// What the first rank holds beyond a median one.
    difference: DifferenceReport,
    /// The median rank that it is compared with.
    peer: RankName,
    /// Why the snapshots of the two could not be compared, where their summaries do not list every line.
    unread: Option<String>,
}

/// A finding, once for all ranks that have it.
#[derive(Serialize, JsonSchema)]
struct SharedFinding {
    /// Kind of finding, such as `leak`.
    kind: String,
    /// Highest severity: `high`, `medium` or `low`.
    severity: String,
    /// The finding of the rank where it is largest, in one sentence.
    summary: String,
    /// What to change.
    fix: String,
    /// Line to look at.
    site: Option<ReportedSite>,
    /// Median bytes that it is about.
    bytes: u64,
    /// Median bytes that each step adds; `null` if nothing grows.
    bytes_per_step: Option<u64>,
    /// Number of ranks that have it.
    count: usize,
    /// Their numbers, where known.
    ranks: Vec<u32>,
}

/// A setting or version that ranks differ in.
#[derive(Serialize, JsonSchema)]
struct SettingReport {
    /// `allocator`, `gpu`, `python` or `torch`.
    name: String,
    /// Its values, the most frequent first.
    values: Vec<SettingValueReport>,
}

/// Ranks with the same value of a setting.
#[derive(Serialize, JsonSchema)]
struct SettingValueReport {
    /// The value; empty for PyTorch's default allocator settings.
    value: String,
    /// Number of ranks.
    count: usize,
    /// Their numbers, where known.
    ranks: Vec<u32>,
}

/// Memory of other processes on the GPUs of a node.
#[derive(Serialize, JsonSchema)]
struct OtherProcessesReport {
    /// Name of the node.
    node: Option<String>,
    /// The most that they hold on one GPU, in bytes.
    bytes: u64,
    /// Number of ranks that see it.
    count: usize,
    /// Their numbers, where known.
    ranks: Vec<u32>,
}

/// A rank whose files cannot be read.
#[derive(Serialize, JsonSchema)]
struct BrokenReport {
    /// Number of the rank; `null` if unknown.
    rank: Option<u32>,
    /// Path or address.
    source: String,
    /// The reason, as the end of a sentence that begins with the file's name.
    reason: String,
}

impl From<&FleetAnswer> for FleetDocument {
    fn from(answer: &FleetAnswer) -> FleetDocument {
        FleetDocument {
            version: 1,
            jobs: answer.jobs.clone(),
            expected: answer.expected,
            read: answer.read,
            nodes: answer.nodes,
            allocated: distribution(&answer.allocated),
            reserved: distribution(&answer.reserved),
            spread: rounded(answer.spread),
            differs_in: answer.axes.clone(),
            dimensions: answer.dimensions.iter().map(dimension).collect(),
            failure: answer.failure.as_ref().map(failure),
            deviations: answer.deviations.iter().map(deviation).collect(),
            findings: answer.findings.iter().map(finding).collect(),
            variants: answer
                .variants
                .iter()
                .map(|variant| SettingReport {
                    name: variant.name.clone(),
                    values: variant
                        .values
                        .iter()
                        .map(|of| SettingValueReport {
                            value: of.value.clone(),
                            count: of.ranks.len(),
                            ranks: numbers(&of.ranks),
                        })
                        .collect(),
                })
                .collect(),
            other_processes: answer
                .other_processes
                .iter()
                .map(|of| OtherProcessesReport {
                    node: of.node.clone(),
                    bytes: of.bytes,
                    count: of.ranks.len(),
                    ranks: numbers(&of.ranks),
                })
                .collect(),
            broken: answer
                .broken
                .iter()
                .map(|broken| BrokenReport {
                    rank: broken.label.rank,
                    source: broken.label.source.clone(),
                    reason: broken.reason.clone(),
                })
                .collect(),
            missing: answer.missing.clone(),
        }
    }
}

/// A share with as many digits as it is good for.
fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

fn name(label: &RankLabel) -> RankName {
    RankName { job: label.job.clone(), rank: label.rank, source: label.source.clone() }
}

fn names(labels: &[RankLabel]) -> Vec<RankName> {
    labels.iter().map(name).collect()
}

fn numbers(labels: &[RankLabel]) -> Vec<u32> {
    labels.iter().filter_map(|label| label.rank).collect()
}

fn distribution(of: &Distribution) -> DistributionReport {
    DistributionReport {
        lowest: of.lowest,
        median: of.median,
        highest: of.highest,
        highest_rank: of.highest_rank.as_ref().map(name),
    }
}

fn dimension(of: &DimensionAnswer) -> DimensionReport {
    let value = |of: &DimensionValue| DimensionValueReport {
        value: of.value.clone(),
        ranks: of.ranks,
        peak: of.peak,
        spread: rounded(of.spread),
        difference: difference(&of.difference),
    };
    DimensionReport {
        name: of.name.clone(),
        explained: rounded(of.explained),
        values: of.values.iter().map(value).collect(),
    }
}

fn difference(of: &Difference) -> DifferenceReport {
    DifferenceReport {
        bytes: of.bytes,
        site: site(of.site.as_ref().map(|(site, _)| site)),
        site_bytes: of.site.as_ref().map(|(_, bytes)| *bytes),
        in_backward: of.in_backward,
        module: of.module.as_ref().map(|(name, _)| name.clone()),
        category: of.category.as_ref().map(|(name, _)| name.clone()),
        compared: of.basis.name(),
    }
}

fn site(of: Option<&SiteName>) -> Option<ReportedSite> {
    of.map(ReportedSite::from)
}

fn failure(of: &FailureAnswer) -> FailureReport {
    FailureReport {
        first: name(&of.first),
        node: of.node.clone(),
        time_us: of.time_us,
        requested: of.requested,
        site: site(of.site.as_ref()),
        peak: of.peak,
        difference: of.difference.as_ref().map(difference),
        ranks: names(&of.ranks),
        endings: of
            .endings
            .iter()
            .map(|ending| EndingReport { ended: ending.ended.clone(), ranks: ending.ranks })
            .collect(),
    }
}

fn deviation(of: &Deviation) -> DeviationReport {
    DeviationReport {
        node: of.node.clone(),
        ranks: names(&of.ranks),
        metric: of.metric.name(),
        value: of.value,
        expected: of.expected,
        difference: difference(&of.difference),
        peer: name(&of.peer),
        unread: of.unread.clone(),
    }
}

fn finding(of: &FleetFinding) -> SharedFinding {
    SharedFinding {
        kind: of.kind.clone(),
        severity: of.severity.clone(),
        summary: of.summary.clone(),
        fix: of.fix.clone(),
        site: site(of.site.as_ref()),
        bytes: of.bytes,
        bytes_per_step: of.bytes_per_step,
        count: of.ranks.len(),
        ranks: numbers(&of.ranks),
    }
}

/// The files of a fleet, as `oomph fleet --list` prints them.
#[derive(Serialize)]
pub struct FleetListDocument {
    /// Version of the format.
    version: u32,
    /// One file per rank.
    files: Vec<ListedFile>,
}

/// The file of one rank.
#[derive(Serialize)]
struct ListedFile {
    /// Path or address.
    source: String,
    /// Size in bytes.
    bytes: u64,
}

impl From<&[RankSource]> for FleetListDocument {
    fn from(ranks: &[RankSource]) -> FleetListDocument {
        let listed =
            |rank: &RankSource| ListedFile { source: rank.file.name.clone(), bytes: rank.file.bytes };
        FleetListDocument { version: 1, files: ranks.iter().map(listed).collect() }
    }
}
