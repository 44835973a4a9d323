//! What one rank says about itself, in some ten kilobytes: enough to compare it with thousands of others.

use analysis::{Category, Diagnosis, FindingKind, Key, Moment, Origin, SiteName, SiteUsage, site_usage};
use inputs::Input;
use recording::{JobPlace, MeshCoordinate, RunInfo, RunState};
use snapshot::Bytes;

/// Most lines of code that a summary has; what the others hold is one sum.
const MAX_SITES: usize = 512;
/// Most modules that a summary has.
const MAX_MODULES: usize = 256;
/// Most findings that a summary has.
const MAX_FINDINGS: usize = 64;
/// Most steps whose peaks are listed one by one. Longer runs have the peak of each stretch of steps.
const MAX_STEPS: usize = 1024;
/// Longest name or sentence that a summary has, in bytes.
const MAX_TEXT: usize = 500;
/// Bytes at the end of a snapshot that its fingerprint covers. The end has the segments and the settings, and
/// changes whenever the file is written again.
pub(crate) const FINGERPRINT_BYTES: u64 = 64 << 10;

/// Summary of one rank.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct SummarizedRank {
    /// The snapshot that it was made from.
    pub made_from: SnapshotIdentity,
    /// Place in the job.
    pub place: JobPlace,
    /// The device and its peaks: the one with the highest peak, if the process used several.
    pub peaks: RankPeaks,
    /// What each line held at the peak, largest first.
    pub sites: Vec<SiteUsage>,
    /// What each category held at the peak, in bytes.
    pub categories: Vec<NamedBytes>,
    /// What each module held at the peak, in bytes, largest first.
    pub modules: Vec<NamedBytes>,
    /// Findings, most important first.
    pub findings: Vec<RankedFinding>,
    /// Highest allocated bytes of each step of the main loop, or of each stretch of steps.
    pub step_peaks: Vec<u64>,
    /// Settings and versions by name, such as `allocator` and `torch`; unknown ones are left out.
    pub settings: Vec<(String, String)>,
    /// Version of oomph that made it; `None` if it did not say so yet.
    pub oomph: Option<String>,
}

/// Size and fingerprint of the snapshot that a summary was made from.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SnapshotIdentity {
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// Hash of its last 64 KiB.
    pub fingerprint: u64,
}

impl SnapshotIdentity {
    /// Identity of a file of this size that ends with these bytes.
    pub fn new(bytes: u64, end: &[u8]) -> SnapshotIdentity {
        // FNV-1a: stable across releases, which the hashers of the standard library are not.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        SnapshotIdentity { bytes, fingerprint: end.iter().fold(0xcbf2_9ce4_8422_2325, step) }
    }
}

/// Numbers of a rank's device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RankPeaks {
    /// Device ordinal.
    pub device: u32,
    /// `GPU 0` or `CPU`.
    pub device_name: String,
    /// Memory of the device, in bytes.
    pub device_total: Option<u64>,
    /// Number of recorded events.
    pub events: u64,
    /// Number of steps of the main loop.
    pub steps: u64,
    /// Highest allocated bytes.
    pub allocated: u64,
    /// Index of the event that reached them.
    pub allocated_event: u64,
    /// Step in which they were reached, from 1.
    pub allocated_step: Option<u64>,
    /// Highest reserved bytes.
    pub reserved: u64,
    /// Index of the event that reached them.
    pub reserved_event: u64,
    /// Allocated bytes at the end.
    pub end_allocated: u64,
    /// Reserved bytes at the end.
    pub end_reserved: u64,
    /// Non-PyTorch memory of the process, in bytes.
    pub non_pytorch: Option<u64>,
    /// Memory of other processes on the device, in bytes.
    pub other_processes: Option<u64>,
    /// How the program ended, as in `rankN.json`; `out_of_memory` if that ended it.
    pub ended: Option<String>,
    /// First line of the exception that ended it.
    pub exception: Option<String>,
    /// The last failed allocation.
    pub out_of_memory: Option<OomRequest>,
}

/// An allocation that failed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct OomRequest {
    /// When it failed, in microseconds since the Unix epoch; `None` if the snapshot has no times.
    pub time_us: Option<u64>,
    /// Bytes that were requested.
    pub requested: u64,
    /// The line that requested them.
    pub site: Option<SiteName>,
}

/// A name and its bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct NamedBytes {
    /// The name.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// A finding of one rank.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RankedFinding {
    /// Kind in JSON, such as `leak`.
    pub kind: String,
    /// Severity in JSON, such as `high`.
    pub severity: String,
    /// One sentence.
    pub summary: String,
    /// What to change.
    pub fix: String,
    /// The line to look at.
    pub site: Option<SiteName>,
    /// Bytes that it is about.
    pub bytes: u64,
    /// Bytes that each step adds.
    pub bytes_per_step: Option<u64>,
}

impl SummarizedRank {
    /// Summarizes a snapshot with its sidecar files. `rank` is the number in the file's name, if it has one.
    pub fn new(input: &Input, made_from: SnapshotIdentity, rank: Option<u32>) -> SummarizedRank {
        SummarizedRank::with_sites(input, made_from, rank, MAX_SITES)
    }

    /// Summarizes a snapshot with every line of code, for a comparison of two ranks.
    pub(crate) fn in_full(input: &Input) -> SummarizedRank {
        SummarizedRank::with_sites(input, SnapshotIdentity::default(), None, usize::MAX)
    }

    /// Returns whether lines are missing from `sites`.
    pub(crate) fn has_hidden_sites(&self) -> bool {
        self.sites.len() > MAX_SITES
    }

    fn with_sites(
        input: &Input,
        made_from: SnapshotIdentity,
        rank: Option<u32>,
        max_sites: usize,
    ) -> SummarizedRank {
        let devices = input.devices();
        let run = input.run.as_ref();
        let mut place = run.and_then(|run| run.job.clone()).unwrap_or_default();
        place.rank = place.rank.or(rank);
        place.node = place.node.or_else(|| run.and_then(|run| run.host.clone()));
        let empty = SummarizedRank {
            made_from,
            place,
            settings: settings(input, None),
            oomph: Some(env!("CARGO_PKG_VERSION").to_owned()),
            ..SummarizedRank::default()
        };
        let highest = devices.iter().max_by_key(|device| {
            (device.history.allocated_peak.bytes, std::cmp::Reverse(device.history.device))
        });
        let ended = run.and_then(ending);
        let exception = run.and_then(RunInfo::exception_line).map(bounded);
        let Some(device) = highest else {
            return SummarizedRank { peaks: RankPeaks { ended, exception, ..RankPeaks::default() }, ..empty };
        };
        let Diagnosis { model, findings } = Diagnosis::new(device);
        let history = &device.history;
        let peak = history.allocated_peak.position;
        let gpu = input.recording.gpu(history.device);
        let non_pytorch = input.recording.non_pytorch(history.device);
        let step = peak.checked_sub(1).and_then(|event| device.steps.main_of_event(event));
        let peaks = RankPeaks {
            device: history.device,
            device_name: device.name(),
            device_total: gpu.and_then(|gpu| gpu.total).map(|total| total.0),
            events: history.len() as u64,
            steps: device.steps.main_count() as u64,
            allocated: history.allocated_peak.bytes.0,
            allocated_event: history.allocated_peak.event() as u64,
            allocated_step: step.map(|step| step as u64 + 1),
            reserved: history.reserved_peak.bytes.0,
            reserved_event: history.reserved_peak.event() as u64,
            end_allocated: history.end.allocated.0,
            end_reserved: history.end.reserved.0,
            non_pytorch: non_pytorch.map(|memory| memory.process.0),
            other_processes: non_pytorch.map(|memory| memory.others.0),
            ended,
            exception,
            out_of_memory: device.position_of(Moment::Oom).map(|position| {
                let event = position - 1;
                let record = device.snapshot.events.get(history.rows.start + event);
                let site = device.site_of_event(event).frame();
                OomRequest {
                    time_us: u64::try_from(record.time_us).ok().filter(|time| *time > 0),
                    requested: record.size.0,
                    site: site.map(|frame| bounded_site(SiteName::of(device.snapshot, frame))),
                }
            }),
        };
        let mut sites = site_usage(&model, peak);
        let hidden: Vec<SiteUsage> = sites.drain(max_sites.min(sites.len())..).collect();
        sites.extend(sum_of(&hidden));
        for usage in &mut sites {
            usage.site = usage.site.take().map(bounded_site);
        }
        let categories = model.categories.at(history, peak);
        let named = |category: &Category| NamedBytes {
            name: category.name().to_owned(),
            bytes: categories.get(*category).0,
        };
        let live = model.live_at(peak, Key::Module { most: MAX_MODULES });
        let modules = live.groups.iter().filter_map(|group| match group.origin {
            Origin::Module(Some(module)) => {
                Some(NamedBytes { name: bounded(device.modules.path(module)), bytes: group.bytes.0 })
            }
            _ => None,
        });
        let step_peaks: Vec<u64> = model.step_peaks.main.iter().map(|step| step.peak.bytes.0).collect();
        SummarizedRank {
            peaks,
            sites,
            categories: Category::ALL.iter().map(named).filter(|category| category.bytes > 0).collect(),
            modules: modules.take(MAX_MODULES).collect(),
            findings: findings
                .iter()
                .take(MAX_FINDINGS)
                .map(|finding| RankedFinding {
                    kind: finding.kind.name().to_owned(),
                    severity: finding.severity.name().to_owned(),
                    summary: bounded(&finding.summary),
                    fix: bounded(&finding.fix),
                    site: finding.site.map(|frame| bounded_site(SiteName::of(device.snapshot, frame))),
                    bytes: finding.bytes.0,
                    bytes_per_step: finding.bytes_per_step.map(|bytes| bytes.0),
                })
                .collect(),
            step_peaks: stretches(&step_peaks),
            settings: settings(input, gpu.map(|gpu| gpu.name.as_str())),
            ..empty
        }
    }

    /// Returns whether the rank ended because a GPU ran out of memory.
    pub fn ran_out(&self) -> bool {
        let unknown = matches!(self.peaks.ended.as_deref(), None | Some("running" | "killed" | "failed"));
        self.peaks.ended.as_deref() == Some(OUT_OF_MEMORY) || unknown && self.peaks.out_of_memory.is_some()
    }

    /// Returns the coordinate along a dimension of the mesh.
    pub fn coordinate(&self, dimension: &str) -> Option<&MeshCoordinate> {
        self.place.dimensions.iter().find(|coordinate| coordinate.name == dimension)
    }

    /// Returns the bytes per step of the leak that grows fastest.
    pub fn growth(&self) -> Option<u64> {
        let leaks = self.findings.iter().filter(|finding| finding.kind == FindingKind::Leak.name());
        leaks.filter_map(|leak| leak.bytes_per_step).max()
    }
}

/// Word for a program that a failed allocation has ended.
pub(crate) const OUT_OF_MEMORY: &str = "out_of_memory";

/// How a program ended, in one word.
fn ending(run: &RunInfo) -> Option<String> {
    let is_out = run.state == RunState::Exited(recording::Exit::OutOfMemory);
    if is_out { Some(OUT_OF_MEMORY) } else { run.state.word() }.map(str::to_owned)
}

/// Settings and versions that can differ between ranks.
fn settings(input: &Input, gpu: Option<&str>) -> Vec<(String, String)> {
    let run = input.run.as_ref();
    let recorded = &input.snapshot.settings;
    let allocator = recorded.recorded.then(|| recorded.conf.clone());
    let named = [
        ("allocator", allocator),
        ("gpu", gpu.filter(|name| !name.is_empty()).map(str::to_owned)),
        ("python", run.and_then(|run| run.python.clone())),
        ("torch", run.and_then(|run| run.torch.clone())),
    ];
    named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), bounded(&value?)))).collect()
}

/// The sum of the lines that are not listed.
fn sum_of(hidden: &[SiteUsage]) -> Option<SiteUsage> {
    (!hidden.is_empty()).then(|| SiteUsage {
        site: None,
        in_backward: false,
        bytes: hidden.iter().map(|usage| usage.bytes).sum(),
        requested: hidden.iter().map(|usage| usage.requested).sum::<Bytes>(),
        count: hidden.iter().map(|usage| usage.count).sum(),
    })
}

/// The peak of each stretch of steps, at most [`MAX_STEPS`] of them.
fn stretches(peaks: &[u64]) -> Vec<u64> {
    let length = peaks.len().div_ceil(MAX_STEPS).max(1);
    peaks.chunks(length).filter_map(|stretch| stretch.iter().max().copied()).collect()
}

/// A text of at most [`MAX_TEXT`] bytes.
pub(crate) fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

fn bounded_site(site: SiteName) -> SiteName {
    // The end of a path says more than its beginning.
    let from = site.file.ceil_char_boundary(site.file.len().saturating_sub(MAX_TEXT));
    SiteName { file: site.file[from..].to_owned(), line: site.line, function: bounded(&site.function) }
}
