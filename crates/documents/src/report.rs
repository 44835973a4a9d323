//! The JSON of `oomph report --json`: public and versioned. Fields may be added, none renamed.

use crate::amounts::{BytesByCategory, by_category};
use crate::findings::ReportedFinding;
use crate::host::HostReport;
use crate::ledger::LedgerReport;
use crate::live::LiveReport;
use crate::phases::PhasesReport;
use crate::sites::ChangeReport;
use analysis::{
    Device, DeviceLedger, DeviceSummary, Diagnosis, Key, LabelledTensors, Moment, RunModel, RunPhases,
};
use inputs::Input;
use recording::{DumpReason, Label, RunInfo};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use snapshot::{Counters, DeviceKind, Metric, PoolClass};
use source::linted::LintCache;
use std::collections::BTreeMap;

/// Lines that are listed as the reason for the difference between ranks.
const MAX_SITES: usize = 16;

/// What a report shows of live blocks, and what else it contains.
#[derive(Clone, Copy, Debug)]
pub struct ReportOptions {
    /// Moment to look at; `None` is the last OOM, or else the peak.
    pub at: Option<Moment>,
    /// What live blocks are grouped by.
    pub by: Key,
    /// Number of groups; the rest is summed.
    pub top: usize,
    /// Whether to include the keys of `torch.cuda.memory_stats()`.
    pub with_stats: bool,
}

/// What is wrong with the memory of recorded runs, and what fills it.
#[derive(Serialize, JsonSchema)]
pub struct ReportDocument {
    /// Version of the format.
    version: u32,
    /// One entry per input.
    inputs: Vec<InputReport>,
    /// What sets several inputs apart, as the ranks of one job.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<RanksReport>,
}

/// The ranks of one job: every device of every input, in order.
#[derive(Serialize, JsonSchema)]
struct RanksReport {
    /// Number of ranks.
    count: usize,
    /// Highest allocated bytes of each rank.
    peaks: Vec<u64>,
    /// Index of the rank with the highest peak.
    highest: usize,
    /// Index of the rank that it is compared with, in the middle of the order.
    compared_with: usize,
    /// Lines that hold other amounts at the peak; `before` is the rank in the middle, `after` the highest.
    sites: Vec<ChangeReport>,
    /// Bytes by which each category of the highest exceeds the other at the peak.
    categories: BTreeMap<&'static str, i64>,
}

/// One snapshot.
#[derive(Serialize, JsonSchema)]
struct InputReport {
    /// Name of the snapshot.
    file: String,
    /// How the run went, where a recorder noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<RunReport>,
    /// Range of torch releases that write such a file.
    torch: String,
    /// Allocator settings of the run.
    settings: SettingsReport,
    /// One entry per device.
    devices: Vec<DeviceReport>,
    /// Memory of the process and its workers on the host, where a recorder noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostReport>,
}

/// How a recorded run went.
#[derive(Serialize, JsonSchema)]
struct RunReport {
    /// torch version.
    torch: Option<String>,
    /// `finished`, `failed`, `steps`, `periodic`, `long`, `killed` or `running`.
    ended: Option<&'static str>,
    /// What made the recorder write: `exit`, `oom`, `signal`, `alarm`, `asked` or `stop`.
    dumped: Option<&'static str>,
    /// Exception that ended the program.
    exception: Option<String>,
    /// Number of steps.
    steps: Option<u64>,
    /// Command line of the program.
    command: Vec<String>,
}

impl From<&RunInfo> for RunReport {
    fn from(run: &RunInfo) -> RunReport {
        let RunInfo { torch, exception, steps, command, .. } = run.clone();
        let (ended, dumped) = (run.state.word(), run.reason.map(DumpReason::word));
        RunReport { torch, ended, dumped, exception, steps, command }
    }
}

/// Tensors of one kind that a recorder named.
#[derive(Serialize, JsonSchema)]
struct LabelReport {
    /// Requested bytes at the peak.
    at_peak: u64,
    /// Highest requested bytes at one time.
    bytes: u64,
    /// Highest number of them at one time.
    tensors: u64,
}

/// Allocator settings.
#[derive(Serialize, JsonSchema)]
struct SettingsReport {
    /// Whether the snapshot says anything about settings (torch 2.3 and later).
    recorded: bool,
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`.
    conf: String,
    /// All settings of the snapshot by name.
    values: Map<String, Value>,
}

/// The memory of one device.
#[derive(Serialize, JsonSchema)]
struct DeviceReport {
    /// Device ordinal.
    device: u32,
    /// `gpu`, `cpu` or `pinned`: host memory that PyTorch has pinned (torch 2.14 and later).
    kind: &'static str,
    /// The card's name, where a recorder noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Number of events.
    events: usize,
    /// `complete`, or `truncated` if the first events are missing.
    history: &'static str,
    /// Time of the first event, in microseconds since the Unix epoch; absent before torch 2.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    history_begins_us: Option<i64>,
    /// Allocated bytes.
    allocated: PeakReport,
    /// Reserved bytes.
    reserved: PeakReport,
    /// Steps of the run.
    steps: StepsReport,
    /// Highest requested bytes of each category at one time.
    categories: BytesByCategory,
    /// Confidence in the categories: `high`, `medium` or `low`.
    categories_confidence: &'static str,
    /// Reason for the confidence.
    categories_reason: &'static str,
    /// Allocated bytes of each category at the peak: they add up to `allocated.peak`.
    categories_at_peak: BytesByCategory,
    /// Tensors that a recorder named, by what they are.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<&'static str, LabelReport>,
    /// Findings, the most severe first.
    findings: Vec<ReportedFinding>,
    /// PyTorch's counters.
    counters: CountersAt,
    /// Highest non-PyTorch memory that the driver reported at the end of a step, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    non_pytorch: Option<NonPytorchReport>,
    /// Memory of the process by owner, when most of the device was in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<LedgerReport>,
    /// Phases of the program, where a recorder noted more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<PhasesReport>,
    /// Live blocks at one moment, in groups.
    live: LiveReport,
    /// Memory at the end, by stream, pool and kind of segment.
    streams_and_pools: Vec<PoolReport>,
    /// Number of failed allocations.
    ooms: u64,
    /// With `--summary`: the keys of `torch.cuda.memory_stats()`, as far as the file shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BTreeMap<String, i64>")]
    stats: Option<Map<String, Value>>,
    /// What limits the answer, as sentences.
    caveats: Vec<String>,
}

/// An amount of memory over the run.
#[derive(Serialize, JsonSchema)]
struct PeakReport {
    /// Highest number of bytes.
    peak: u64,
    /// Index of the event that reaches it.
    peak_event: usize,
    /// Bytes at the end.
    end: u64,
}

/// Steps of a run.
#[derive(Serialize, JsonSchema)]
struct StepsReport {
    /// Number of steps.
    count: usize,
    /// Number of steps of the main loop. A step that contains a loop of its own, such as an evaluation,
    /// counts as one here, and as several in `count` and `bounds`.
    main_count: usize,
    /// How their bounds are known: `recorded`, `annotated`, `inferred` or `none`.
    source: &'static str,
    /// Confidence in the steps: `high`, `medium` or `low`.
    confidence: &'static str,
    /// Index of the event with which each step begins, and the end of the last.
    bounds: Vec<usize>,
}

/// Memory of a GPU that is not PyTorch's.
#[derive(Serialize, JsonSchema)]
struct NonPytorchReport {
    /// Bytes of the process: the CUDA context, libraries.
    process: u64,
    /// Bytes of other processes.
    others: u64,
}

/// PyTorch's counters at two moments.
#[derive(Serialize, JsonSchema)]
struct CountersAt {
    /// Counters at the peak of allocated memory.
    peak: CountersReport,
    /// Counters at the end.
    end: CountersReport,
}

/// PyTorch's counters, in bytes.
#[derive(Serialize, JsonSchema)]
struct CountersReport {
    /// Allocated bytes.
    allocated: u64,
    /// Bytes that are allocated, or freed and still in use by a stream.
    active: u64,
    /// Bytes that the program requested, before rounding.
    requested: u64,
    /// Reserved bytes.
    reserved: u64,
    /// Bytes of free parts of split blocks.
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

/// Memory of one stream and pool at the end.
#[derive(Serialize, JsonSchema)]
struct PoolReport {
    /// Number of the stream.
    stream: u64,
    /// ID of the pool; `[0, 0]` is the default pool.
    pool: (u64, u64),
    /// Whether the segments are for small blocks.
    small: bool,
    /// Whether the segments are expandable.
    expandable: bool,
    #[serde(flatten)]
    end: CountersReport,
}

impl Default for ReportDocument {
    fn default() -> ReportDocument {
        ReportDocument { version: 2, inputs: Vec::new(), ranks: None }
    }
}

impl ReportDocument {
    /// Adds an input with the diagnosis of each of its devices.
    pub fn add(&mut self, input: &Input, answers: &[Diagnosis<'_>], options: &ReportOptions) {
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
            devices: answers.iter().map(|answer| report(answer, options)).collect(),
            host: input.recording.host.as_ref().map(|host| HostReport::new(host, snapshot)),
        });
    }

    /// Compares several inputs as ranks, by the summaries of their devices.
    pub fn compare_ranks(&mut self, summaries: &[DeviceSummary]) {
        self.ranks = analysis::skew(summaries).map(|skew| RanksReport {
            count: summaries.len(),
            peaks: summaries.iter().map(|rank| rank.allocated.0.0).collect(),
            highest: skew.highest,
            compared_with: skew.middle,
            sites: skew.changes.iter().take(MAX_SITES).map(ChangeReport::from).collect(),
            categories: skew.categories.iter().map(|(of, by)| (of.name(), *by)).collect(),
        });
    }
}

fn report(answer: &Diagnosis<'_>, options: &ReportOptions) -> DeviceReport {
    let (model, device) = (&answer.model, answer.model.device);
    let history = &device.history;
    let events = &device.snapshot.events;
    let mut linted = LintCache::default();
    DeviceReport {
        device: history.device,
        kind: match device.snapshot.kind {
            DeviceKind::Gpu => "gpu",
            DeviceKind::Cpu => "cpu",
            DeviceKind::Pinned => "pinned",
        },
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
            main_count: model.device.steps.main_count(),
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
            .map(|finding| ReportedFinding::new(device, finding, &mut linted))
            .collect(),
        counters: CountersAt { peak: history.allocated_peak.counters.into(), end: history.end.into() },
        non_pytorch: device
            .recording
            .non_pytorch(history.device)
            .map(|memory| NonPytorchReport { process: memory.process.0, others: memory.others.0 }),
        ledger: DeviceLedger::highest(device.recording, history.device).map(LedgerReport::from),
        phases: RunPhases::new(model).map(|found| PhasesReport::new(found, device.snapshot)),
        live: LiveReport::new(model, options),
        streams_and_pools: pools(device),
        ooms: history.stats.ooms,
        stats: options.with_stats.then(|| stats(device)),
        caveats: device.caveats().cloned().collect(),
    }
}

/// What a recorder named, by what it is.
fn labels(model: &RunModel<'_>) -> BTreeMap<&'static str, LabelReport> {
    let named = model.labelled();
    let report = |label: Label| {
        let LabelledTensors { tensors, most, at_peak } = named[label as usize];
        (label.name(), LabelReport { tensors, bytes: most.0, at_peak: at_peak.0 })
    };
    Label::ALL.into_iter().filter(|&label| named[label as usize].tensors > 0).map(report).collect()
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
