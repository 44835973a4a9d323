//! Compares two runs, or the ranks of a job, by summaries that outlive their snapshots.

use crate::findings::finding::{Finding, FindingKind, Severity};
use crate::run::categories::{ByCategory, Category};
use crate::run::live_blocks::{Key, LiveGroup, Origin};
use crate::run::model::RunModel;
use crate::trace::site::Site;
use crate::words::{percent, printable, share, shown_path};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, DeviceKind, FrameId, Snapshot};
use std::cmp::Ordering;
use std::path::Path;

/// A site by name: file, line and function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteName {
    /// Path as recorded.
    pub file: String,
    /// Line number.
    pub line: u32,
    /// Function.
    pub function: String,
}

impl SiteName {
    /// The name of a frame.
    pub fn of(snapshot: &Snapshot, frame: FrameId) -> SiteName {
        let frame = snapshot.stacks.frame(frame);
        SiteName {
            file: snapshot.strings.get(frame.file).to_owned(),
            line: frame.line,
            function: snapshot.strings.get(frame.function).to_owned(),
        }
    }

    /// Returns the short name, `train.py:20`.
    pub fn short(&self) -> String {
        format!("{}:{}", printable(self.file_name()), self.line)
    }

    /// Returns the file without its folder, `train.py`.
    pub fn file_name(&self) -> &str {
        self.file.rsplit(['/', '\\']).next().unwrap_or(&self.file)
    }
}

/// What the blocks of one site hold at the peak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteUsage {
    /// The line; `None` without a stack.
    pub site: Option<SiteName>,
    /// Whether the memory was allocated inside `backward()`: the line is its call, or the one whose backward
    /// pass it is.
    pub in_backward: bool,
    /// Bytes that its blocks hold.
    pub bytes: Bytes,
    /// Bytes of it that the program requested.
    pub requested: Bytes,
    /// Number of its blocks.
    pub count: u64,
}

/// A finding without its evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FindingSummary {
    /// What was found.
    pub kind: FindingKind,
    /// How much it matters.
    pub severity: Severity,
    /// One sentence.
    pub summary: String,
    /// Bytes that it is about.
    pub bytes: Bytes,
    /// Bytes that each step adds.
    pub bytes_per_step: Option<Bytes>,
    /// The line to look at.
    pub site: Option<SiteName>,
    /// What to change.
    pub fix: String,
}

/// What two runs or ranks are compared by: one device, without its snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceSummary {
    /// The file.
    pub name: String,
    /// Device ordinal.
    pub device: u32,
    /// Kind of the device.
    pub kind: DeviceKind,
    /// `GPU 0` or `CPU`.
    pub device_name: String,
    /// Allocator settings, empty for PyTorch's defaults.
    pub settings: String,
    /// Number of steps.
    pub steps: usize,
    /// Allocated bytes: highest, and at the end.
    pub allocated: (Bytes, Bytes),
    /// Reserved bytes: highest, and at the end.
    pub reserved: (Bytes, Bytes),
    /// The most that each category held.
    pub most: ByCategory,
    /// What each category held at the peak.
    pub at_peak: ByCategory,
    /// What each line held at the peak, largest first.
    pub sites: Vec<SiteUsage>,
    /// The findings.
    pub findings: Vec<FindingSummary>,
}

impl DeviceSummary {
    /// Summary of an input in which nothing was allocated.
    pub fn empty(name: &str) -> DeviceSummary {
        DeviceSummary {
            name: name.to_owned(),
            device: 0,
            kind: DeviceKind::Gpu,
            device_name: String::new(),
            settings: String::new(),
            steps: 0,
            allocated: (Bytes::ZERO, Bytes::ZERO),
            reserved: (Bytes::ZERO, Bytes::ZERO),
            most: ByCategory::default(),
            at_peak: ByCategory::default(),
            sites: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Summarizes a run and its findings.
    pub fn new(name: &str, model: &RunModel<'_>, findings: &[Finding]) -> DeviceSummary {
        let (snapshot, history) = (model.device.snapshot, &model.device.history);
        let peak = history.allocated_peak.position;
        DeviceSummary {
            name: name.to_owned(),
            device: history.device,
            kind: snapshot.kind,
            device_name: model.device.name(),
            settings: snapshot.settings.conf.clone(),
            steps: model.device.steps.count(),
            allocated: (history.allocated_peak.bytes, history.end.allocated),
            reserved: (history.reserved_peak.bytes, history.end.reserved),
            most: model.step_peaks.most,
            at_peak: model.categories.at(history, peak),
            sites: site_usage(model, peak),
            findings: findings
                .iter()
                .map(|finding| FindingSummary {
                    kind: finding.kind,
                    severity: finding.severity,
                    summary: finding.summary.clone(),
                    bytes: finding.bytes,
                    bytes_per_step: finding.bytes_per_step,
                    site: finding.site.map(|frame| SiteName::of(snapshot, frame)),
                    fix: finding.fix.clone(),
                })
                .collect(),
        }
    }
}

/// What each line holds once `position` events have happened, largest first.
pub fn site_usage(model: &RunModel<'_>, position: usize) -> Vec<SiteUsage> {
    let groups = model.live_at(position, Key::Site).groups;
    let holding = |group: &LiveGroup| {
        let (frame, in_backward) = match group.origin {
            Origin::Site(Site::User(frame) | Site::Library(frame)) => (Some(frame), false),
            Origin::Site(Site::Backward(frame) | Site::BackwardOf(frame)) => (Some(frame), true),
            _ => (None, false),
        };
        SiteUsage {
            site: frame.map(|frame| SiteName::of(model.device.snapshot, frame)),
            in_backward,
            bytes: group.bytes,
            requested: group.requested,
            count: group.count,
        }
    };
    groups.iter().map(holding).collect()
}

/// What a site holds in one summary and in another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageChange {
    /// The line, as the second names it, or the first where the second has none.
    pub site: Option<SiteName>,
    /// Line number in the first, where it has moved.
    pub moved_from: Option<u32>,
    /// Whether it is the call of a `backward()`.
    pub in_backward: bool,
    /// Bytes in the first.
    pub before: Bytes,
    /// Bytes in the second.
    pub after: Bytes,
}

impl UsageChange {
    /// Returns how much more the second holds, in bytes.
    pub fn by(&self) -> i64 {
        difference(self.before, self.after)
    }
}

/// Pairs the lines of two summaries, largest change first. Lines are the same if file and function are and
/// the number is, once that code above has moved all of them by as many lines as make most of them the same;
/// what is left over is paired in its order.
pub fn changes(before: &[SiteUsage], after: &[SiteUsage]) -> Vec<UsageChange> {
    let mut functions: FxHashMap<_, (Vec<&SiteUsage>, Vec<&SiteUsage>)> = FxHashMap::default();
    for holding in before {
        functions.entry(holding.function()).or_default().0.push(holding);
    }
    for holding in after {
        functions.entry(holding.function()).or_default().1.push(holding);
    }
    let mut changes = Vec::new();
    for (mut left, mut right) in functions.into_values() {
        left.sort_by_key(|holding| holding.line());
        right.sort_by_key(|holding| holding.line());
        changes.extend(paired(&left, &right));
    }
    changes.retain(|change| change.by() != 0);
    changes.sort_by_cached_key(|change| {
        (std::cmp::Reverse(change.by().unsigned_abs()), change.site.clone(), change.in_backward)
    });
    changes
}

/// Pairs of lines beyond which no shifts of a function's lines are tried.
const MAX_LINE_PAIRS: usize = 4096;

/// The lines of one function on two sides, each sorted.
fn paired(left: &[&SiteUsage], right: &[&SiteUsage]) -> Vec<UsageChange> {
    let mut shifts = vec![0];
    if left.len() * right.len() <= MAX_LINE_PAIRS {
        let lines = left.iter().flat_map(|a| right.iter().map(|b| b.line() - a.line()));
        shifts.extend(lines);
        shifts.sort_unstable_by_key(|shift: &i64| (shift.unsigned_abs(), *shift));
        shifts.dedup();
    }
    let best = shifts.into_iter().map(|shift| shifted(left, right, shift)).min_by_key(|(same, changes)| {
        let moved = changes.iter().fold(0u64, |sum, change| sum.saturating_add(change.by().unsigned_abs()));
        (std::cmp::Reverse(*same), moved)
    });
    best.map(|(_, changes)| changes).unwrap_or_default()
}

/// Pairs under the assumption that every line has moved by the same number, and how many then match.
fn shifted(left: &[&SiteUsage], right: &[&SiteUsage], shift: i64) -> (usize, Vec<UsageChange>) {
    let (mut old, mut new) = (left.iter().copied().peekable(), right.iter().copied().peekable());
    let (mut changes, mut gone, mut come) = (Vec::new(), Vec::new(), Vec::new());
    while let (Some(a), Some(b)) = (old.peek(), new.peek()) {
        match (a.line() + shift).cmp(&b.line()) {
            Ordering::Less => gone.extend(old.next()),
            Ordering::Greater => come.extend(new.next()),
            Ordering::Equal => changes.extend(UsageChange::of(old.next(), new.next())),
        }
    }
    let same = changes.len();
    gone.extend(old);
    come.extend(new);
    let pairs = gone.len().max(come.len());
    changes.extend(
        (0..pairs).filter_map(|index| UsageChange::of(gone.get(index).copied(), come.get(index).copied())),
    );
    (same, changes)
}

impl SiteUsage {
    /// Line number; 0 without a stack.
    fn line(&self) -> i64 {
        self.site.as_ref().map_or(0, |site| i64::from(site.line))
    }

    /// What stays the same when code moves within its file, or the file to another folder.
    fn function(&self) -> (Option<(&str, &str)>, bool) {
        (self.site.as_ref().map(|site| (site.file_name(), site.function.as_str())), self.in_backward)
    }
}

impl UsageChange {
    fn of(before: Option<&SiteUsage>, after: Option<&SiteUsage>) -> Option<UsageChange> {
        let named = after.or(before)?;
        let line = |holding: &SiteUsage| Some(holding.site.as_ref()?.line);
        let old = before.and_then(line);
        Some(UsageChange {
            site: named.site.clone(),
            moved_from: old.filter(|_| after.is_some_and(|after| line(after) != old)),
            in_backward: named.in_backward,
            before: before.map_or(Bytes::ZERO, |holding| holding.bytes),
            after: after.map_or(Bytes::ZERO, |holding| holding.bytes),
        })
    }
}

/// Returns how much more the second is, in bytes.
pub fn difference(before: Bytes, after: Bytes) -> i64 {
    let by = i64::try_from(after.0.abs_diff(before.0)).unwrap_or(i64::MAX);
    if after < before { -by } else { by }
}

/// Folders may differ from machine to machine; the name of the file and of the function do not.
fn same_function(a: Option<&SiteName>, b: Option<&SiteName>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.function == b.function && a.file_name() == b.file_name(),
        (None, None) => true,
        _ => false,
    }
}

/// Change of a finding between two runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FindingChange {
    /// Only the second has it.
    Appeared,
    /// Both have it.
    Stayed,
    /// Only the first has it.
    Gone,
}

/// The findings of two summaries, paired by kind and function.
pub fn finding_changes<'a>(
    before: &'a [FindingSummary],
    after: &'a [FindingSummary],
) -> Vec<(FindingChange, &'a FindingSummary, Option<&'a FindingSummary>)> {
    let mut left: Vec<&FindingSummary> = before.iter().collect();
    let mut finding_changes: Vec<(FindingChange, &FindingSummary, Option<&FindingSummary>)> = Vec::new();
    for finding in after {
        let same = |other: &&FindingSummary| {
            // There is one finding of most kinds; leaks are distinguished by their site.
            other.kind == finding.kind
                && (finding.kind != FindingKind::Leak
                    || same_function(other.site.as_ref(), finding.site.as_ref()))
        };
        match left.iter().position(same) {
            Some(found) => finding_changes.push((FindingChange::Stayed, finding, Some(left.remove(found)))),
            None => finding_changes.push((FindingChange::Appeared, finding, None)),
        }
    }
    finding_changes.extend(left.into_iter().map(|finding| (FindingChange::Gone, finding, None)));
    finding_changes.sort_by_key(|&(change, finding, _)| {
        (change, std::cmp::Reverse(finding.severity), std::cmp::Reverse(finding.bytes))
    });
    finding_changes
}

/// How much the peaks of the ranks of a job differ.
#[derive(Clone, PartialEq, Debug)]
pub struct Skew {
    /// The rank with the highest peak.
    pub highest: usize,
    /// The median rank, to compare it with.
    pub middle: usize,
    /// What the highest has beyond that, line by line.
    pub changes: Vec<UsageChange>,
    /// The same difference by category, in bytes.
    pub categories: Vec<(Category, i64)>,
}

/// Compares the highest rank with the median one; `None` for fewer than two.
pub fn skew(ranks: &[DeviceSummary]) -> Option<Skew> {
    if ranks.len() < 2 {
        return None;
    }
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|&rank| (ranks[rank].allocated.0, std::cmp::Reverse(rank)));
    let (highest, middle) = (order[order.len() - 1], order[(order.len() - 1) / 2]);
    let mut categories: Vec<(Category, i64)> = Category::ALL
        .iter()
        .map(|&of| (of, difference(ranks[middle].at_peak.get(of), ranks[highest].at_peak.get(of))))
        .filter(|(_, bytes)| *bytes != 0)
        .collect();
    categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.unsigned_abs()));
    Some(Skew { highest, middle, changes: changes(&ranks[middle].sites, &ranks[highest].sites), categories })
}

/// Returns the rank that a file is named after: 12 for `run/rank12.pickle.xz`.
pub fn rank_in_name(path: &str) -> Option<usize> {
    let file = path.rsplit(['/', '\\']).next()?;
    recording::snapshot_stem(file)?.strip_prefix("rank")?.parse().ok()
}

/// Share below which the ranks count as equal.
const MIN_SKEW_SHARE: f64 = 0.02;

impl Skew {
    /// What the highest rank has beyond the median one, and its share in the highest.
    fn extra(&self, ranks: &[DeviceSummary]) -> (Bytes, f64) {
        let (highest, middle) = (ranks[self.highest].allocated.0, ranks[self.middle].allocated.0);
        let extra = highest.saturating_sub(middle);
        (extra, share(extra, highest))
    }

    /// Whether the highest stands out.
    pub fn is_uneven(&self, ranks: &[DeviceSummary]) -> bool {
        self.extra(ranks).1 >= MIN_SKEW_SHARE
    }

    /// Returns the comparison in a sentence, without a full stop.
    pub fn words(&self, ranks: &[DeviceSummary]) -> String {
        let (highest, middle) = (ranks[self.highest].allocated.0, ranks[self.middle].allocated.0);
        let (extra, part) = self.extra(ranks);
        if !self.is_of_ranks(ranks) {
            let file = &ranks[self.highest].name;
            return format!("the highest peak is {highest}, in {}", shown_path(Path::new(file)));
        }
        // Ranks that cannot be read are not among these.
        let number = |rank: usize| rank_in_name(&ranks[rank].name).unwrap_or(rank);
        if part >= MIN_SKEW_SHARE {
            let (rank, part) = (number(self.highest), percent(part));
            return format!("rank {rank} peaks at {highest}, {extra} ({part}) above the median rank");
        }
        let peaks = ranks.iter().map(|rank| rank.allocated.0).enumerate();
        let (rank, lowest) = peaks.min_by_key(|&(_, peak)| peak).unwrap_or((0, middle));
        if share(middle.saturating_sub(lowest), middle) > MIN_SKEW_SHARE {
            return format!("most peak at about {middle}, rank {} only at {lowest}", number(rank));
        }
        format!("all peak at about {middle}")
    }

    /// Returns whether these are compared as the ranks of one job: they are named so, or share lines of code.
    pub fn is_of_ranks(&self, ranks: &[DeviceSummary]) -> bool {
        !self.is_of_several_programs(ranks) || ranks.iter().all(|rank| rank_in_name(&rank.name).is_some())
    }

    /// Returns why these may not be the ranks of one job, if there is a reason.
    pub fn doubt(&self, ranks: &[DeviceSummary]) -> Option<&'static str> {
        let doubt = if self.is_of_ranks(ranks) {
            "the highest and the median rank share no line of code: are these the ranks of one job?"
        } else {
            "not compared as ranks of one job: the files with the highest and the median peak share no line \
             of code"
        };
        self.is_of_several_programs(ranks).then_some(doubt)
    }

    /// Whether the highest and the median rank share no line of code, as far as lines are known.
    fn is_of_several_programs(&self, ranks: &[DeviceSummary]) -> bool {
        let (highest, middle) = (&ranks[self.highest].sites, &ranks[self.middle].sites);
        let has_lines = |lines: &[SiteUsage]| lines.iter().any(|line| line.site.is_some());
        let is_shared =
            |line: &SiteUsage| line.site.is_some() && middle.iter().any(|other| other.site == line.site);
        has_lines(highest) && has_lines(middle) && !highest.iter().any(is_shared)
    }
}
