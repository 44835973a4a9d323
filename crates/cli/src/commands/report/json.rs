//! The JSON of `oomph report --json`: public and versioned. Fields may be added, none renamed.

use super::findings_json::{ReportedFinding, finding_report};
use super::live_json::{LiveReport, live};
use crate::args::ReportArgs;
use crate::terminal::Terminal;
use analysis::{
    ByCategory, Category, Device, DeviceSummary, Diagnosis, LabelledTensors, RunModel, SiteName, UsageChange,
};
use inputs::Input;
use recording::{DumpReason, Label, RunInfo};
use serde::Serialize;
use serde_json::{Map, Value};
use snapshot::{Counters, FrameId, Metric, PoolClass, Snapshot, StackId};
use source::linted::LintCache;
use std::io::Write;

/// The document: one entry per input, one per device in it.
#[derive(Serialize)]
pub(crate) struct ReportDocument {
    version: u32,
    inputs: Vec<InputReport>,
    /// What sets several inputs apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<RanksReport>,
}

/// The ranks of one job: every device of every input, in order.
#[derive(Serialize)]
struct RanksReport {
    count: usize,
    peaks: Vec<u64>,
    highest: usize,
    compared_with: usize,
    /// What the highest holds at its peak beyond the other.
    sites: Vec<ChangeReport>,
    categories: Map<String, Value>,
}

/// What one line holds on two sides.
#[derive(Serialize)]
pub(crate) struct ChangeReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_from: Option<u32>,
    in_backward: bool,
    before: u64,
    after: u64,
}

impl From<&UsageChange> for ChangeReport {
    fn from(change: &UsageChange) -> ChangeReport {
        ChangeReport {
            site: change.site.as_ref().map(site_name_report),
            moved_from: change.moved_from,
            in_backward: change.in_backward,
            before: change.before.0,
            after: change.after.0,
        }
    }
}

#[derive(Serialize)]
struct InputReport {
    file: String,
    /// How the run went, where a recorder noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<RunReport>,
    torch: String,
    settings: SettingsReport,
    devices: Vec<DeviceReport>,
}

#[derive(Serialize)]
struct RunReport {
    torch: Option<String>,
    /// `finished`, `failed`, `steps`, `periodic`, `long`, `killed` or `running`.
    ended: Option<&'static str>,
    /// What made the recorder write: `exit`, `oom`, `signal`, `alarm`, `asked` or `stop`.
    dumped: Option<&'static str>,
    exception: Option<String>,
    steps: Option<u64>,
    command: Vec<String>,
}

impl From<&RunInfo> for RunReport {
    fn from(run: &RunInfo) -> RunReport {
        let RunInfo { torch, exception, steps, command, .. } = run.clone();
        let (ended, dumped) = (run.state.word(), run.reason.map(DumpReason::word));
        RunReport { torch, ended, dumped, exception, steps, command }
    }
}

/// What a recorder named of one kind of tensor.
#[derive(Serialize)]
struct LabelReport {
    /// The most that there were at one time.
    tensors: u64,
    /// The most that they held at one time, in bytes asked for.
    bytes: u64,
    /// What they held at the peak, in bytes asked for.
    at_peak: u64,
}

#[derive(Serialize)]
struct SettingsReport {
    /// Whether the snapshot says anything about settings (torch 2.3 and later).
    recorded: bool,
    conf: String,
    values: Map<String, Value>,
}

#[derive(Serialize)]
struct DeviceReport {
    device: u32,
    /// `gpu` or `cpu`.
    kind: &'static str,
    /// The card's name, where a recorder noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    events: usize,
    history: &'static str,
    /// Microseconds since the Unix epoch; absent before torch 2.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    history_begins_us: Option<i64>,
    allocated: PeakReport,
    reserved: PeakReport,
    steps: StepsReport,
    /// The most that each category held at one time, in bytes asked for.
    categories: Map<String, Value>,
    categories_confidence: &'static str,
    categories_reason: &'static str,
    /// What each category held at the peak, in bytes taken: they add up to `allocated.peak`.
    categories_at_peak: Map<String, Value>,
    /// The tensors that a recorder named, by what they are.
    #[serde(skip_serializing_if = "Map::is_empty")]
    labels: Map<String, Value>,
    findings: Vec<ReportedFinding>,
    counters: CountersAt,
    /// Maximum non-PyTorch memory that the driver reported at the end of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    non_pytorch: Option<NonPytorchReport>,
    live: LiveReport,
    streams_and_pools: Vec<PoolReport>,
    ooms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Map<String, Value>>,
    caveats: Vec<String>,
}

#[derive(Serialize)]
struct PeakReport {
    peak: u64,
    peak_event: usize,
    end: u64,
}

#[derive(Serialize)]
struct StepsReport {
    count: usize,
    source: &'static str,
    confidence: &'static str,
    /// The event with which each step begins, and the end of the last.
    bounds: Vec<usize>,
}

#[derive(Serialize)]
struct NonPytorchReport {
    /// The process's own: the CUDA context, libraries.
    process: u64,
    others: u64,
}

#[derive(Serialize)]
struct CountersAt {
    peak: CountersReport,
    end: CountersReport,
}

#[derive(Serialize)]
struct CountersReport {
    allocated: u64,
    active: u64,
    requested: u64,
    reserved: u64,
    inactive_split: u64,
}

impl From<Counters> for CountersReport {
    fn from(counters: Counters) -> CountersReport {
        CountersReport {
            allocated: counters.allocated.0,
            active: counters.active.0,
            requested: counters.requested.0,
            reserved: counters.reserved.0,
            inactive_split: counters.inactive_split.0,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct ReportedSite {
    file: String,
    line: u32,
    function: String,
}

#[derive(Serialize)]
struct PoolReport {
    stream: u64,
    pool: (u64, u64),
    small: bool,
    expandable: bool,
    #[serde(flatten)]
    end: CountersReport,
}

impl ReportDocument {
    pub(crate) fn new() -> ReportDocument {
        ReportDocument { version: 2, inputs: Vec::new(), ranks: None }
    }

    pub(crate) fn add(&mut self, input: &Input, answers: &[Diagnosis<'_>], args: &ReportArgs) {
        let snapshot = &input.snapshot;
        let text = |id| snapshot.strings.get(id);
        let settings = &snapshot.settings;
        let values = settings
            .pairs
            .iter()
            .map(|(key, json)| {
                let value = serde_json::from_str(text(*json)).unwrap_or_else(|_| Value::from(text(*json)));
                (text(*key).to_owned(), value)
            })
            .collect();
        self.inputs.push(InputReport {
            file: input.name.clone(),
            recording: input.run.as_ref().map(RunReport::from),
            torch: snapshot.torch.to_string(),
            settings: SettingsReport { recorded: settings.recorded, conf: settings.conf.clone(), values },
            devices: answers.iter().map(|answer| report(answer, args)).collect(),
        });
    }

    /// Prints it; several inputs are compared as ranks.
    pub(crate) fn print(
        mut self,
        summaries: &[DeviceSummary],
        terminal: &mut Terminal,
    ) -> anyhow::Result<()> {
        if self.inputs.len() > 1 {
            self.ranks = analysis::skew(summaries).map(|skew| RanksReport {
                count: summaries.len(),
                peaks: summaries.iter().map(|rank| rank.allocated.0.0).collect(),
                highest: skew.highest,
                compared_with: skew.middle,
                sites: skew.changes.iter().take(16).map(ChangeReport::from).collect(),
                categories: skew
                    .categories
                    .iter()
                    .map(|(of, by)| (of.name().to_owned(), (*by).into()))
                    .collect(),
            });
        }
        serde_json::to_writer_pretty(terminal.out(), &self)?;
        Ok(writeln!(terminal.out())?)
    }
}

pub(crate) fn by_category(held: &ByCategory) -> Map<String, Value> {
    Category::ALL.iter().map(|&of| (of.name().to_owned(), held.get(of).0.into())).collect()
}

fn report(answer: &Diagnosis<'_>, args: &ReportArgs) -> DeviceReport {
    let (model, device) = (&answer.model, answer.model.device);
    let history = &device.history;
    let events = &device.snapshot.events;
    let mut linted = LintCache::default();
    DeviceReport {
        device: history.device,
        kind: if device.is_cpu() { "cpu" } else { "gpu" },
        name: device
            .recording
            .gpu(history.device)
            .map(|card| card.name.clone())
            .filter(|name| !name.is_empty()),
        events: history.len(),
        history: if history.complete { "complete" } else { "truncated" },
        history_begins_us: history
            .rows
            .clone()
            .next()
            .map(|row| events.get(row).time_us)
            .filter(|&time| time != 0),
        allocated: PeakReport {
            peak: history.allocated_peak.bytes.0,
            peak_event: history.allocated_peak.event(),
            end: history.end.allocated.0,
        },
        reserved: PeakReport {
            peak: history.reserved_peak.bytes.0,
            peak_event: history.reserved_peak.event(),
            end: history.end.reserved.0,
        },
        steps: StepsReport {
            count: model.device.steps.count(),
            source: model.device.steps.source.name(),
            confidence: model.device.steps.confidence.name(),
            bounds: model.device.steps.bounds.clone(),
        },
        categories: by_category(&model.step_peaks.most),
        categories_confidence: model.categories.confidence.name(),
        categories_reason: model.categories.reason,
        categories_at_peak: by_category(&model.categories.at(history, history.allocated_peak.position)),
        labels: labels(model),
        findings: answer
            .findings
            .iter()
            .map(|finding| finding_report(device, finding, &mut linted))
            .collect(),
        counters: CountersAt { peak: history.allocated_peak.counters.into(), end: history.end.into() },
        non_pytorch: device
            .recording
            .non_pytorch(history.device)
            .map(|memory| NonPytorchReport { process: memory.process.0, others: memory.others.0 }),
        live: live(model, args),
        streams_and_pools: pools(device),
        ooms: history.stats.ooms,
        stats: args.summary.then(|| stats(device)),
        caveats: history.caveats.iter().chain(&device.snapshot.caveats).cloned().collect(),
    }
}

/// What a recorder named, by what it is.
fn labels(model: &RunModel<'_>) -> Map<String, Value> {
    let named = model.labelled();
    let report = |label: Label| {
        let LabelledTensors { tensors, most, at_peak } = named[label as usize];
        let report = LabelReport { tensors, bytes: most.0, at_peak: at_peak.0 };
        Some((label.name().to_owned(), serde_json::to_value(report).ok()?))
    };
    Label::ALL.into_iter().filter(|&label| named[label as usize].tensors > 0).filter_map(report).collect()
}

pub(crate) fn stack_report(snapshot: &Snapshot, stack: StackId) -> Vec<ReportedSite> {
    snapshot.stacks.frames(stack).iter().map(|&frame| site_report(snapshot, frame)).collect()
}

pub(crate) fn site_report(snapshot: &Snapshot, frame: FrameId) -> ReportedSite {
    site_name_report(&SiteName::of(snapshot, frame))
}

pub(crate) fn site_name_report(site: &SiteName) -> ReportedSite {
    ReportedSite { file: site.file.clone(), line: site.line, function: site.function.clone() }
}

/// The end of the history by stream, pool and kind of segment.
fn pools(device: &Device<'_>) -> Vec<PoolReport> {
    device
        .pools_at_end()
        .into_iter()
        .map(|(pool, counters)| PoolReport {
            stream: pool.stream,
            pool: (pool.pool.0, pool.pool.1),
            small: pool.small,
            expandable: pool.expandable,
            end: counters.into(),
        })
        .collect()
}

/// The keys of `torch.cuda.memory_stats()` that the file holds the information for.
fn stats(device: &Device<'_>) -> Map<String, Value> {
    let stats = &device.history.stats;
    let mut map = Map::new();
    let mut add = |prefix: String, stat: snapshot::Stat| {
        for (field, value) in [
            ("current", stat.current),
            ("peak", stat.peak),
            ("allocated", stat.allocated),
            ("freed", stat.freed()),
        ] {
            map.insert(format!("{prefix}.{field}"), value.into());
        }
    };
    for metric in Metric::ALL {
        for class in PoolClass::ALL {
            add(format!("{}.{}", metric.key(), class.key()), stats.get(metric, class));
        }
    }
    add("oversize_allocations".to_owned(), stats.oversize_allocations);
    add("oversize_segments".to_owned(), stats.oversize_segments);
    map.insert("num_ooms".to_owned(), stats.ooms.into());
    map.insert("num_device_alloc".to_owned(), stats.device_allocs.into());
    map.insert("num_device_free".to_owned(), stats.device_frees.into());
    if let Some(retries) = analysis::retries(device) {
        map.insert("num_alloc_retries".to_owned(), retries.into());
    }
    map
}
