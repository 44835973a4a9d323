//! The JSON of `oomph report --json`: public and versioned. Fields may be added, none renamed.

use crate::args::ReportArgs;
use crate::terminal::Terminal;
use analysis::{Device, Group, Key, Moment, Origin, Site};
use serde::Serialize;
use serde_json::{Map, Value};
use snapshot::{Counters, FrameId, Metric, PoolClass, Snapshot};
use std::io::Write;

/// The document: one entry per input, one per device in it.
#[derive(Serialize)]
pub(super) struct Document {
    version: u32,
    inputs: Vec<InputReport>,
}

#[derive(Serialize)]
struct InputReport {
    file: String,
    torch: String,
    settings: SettingsReport,
    devices: Vec<DeviceReport>,
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
    events: usize,
    history: &'static str,
    /// Microseconds since the Unix epoch; absent before torch 2.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    history_begins_us: Option<i64>,
    allocated: PeakReport,
    reserved: PeakReport,
    steps: StepsReport,
    categories: Categories,
    findings: Vec<Value>,
    counters: CountersAt,
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
}

/// Bytes at the peak; until categories can be told apart, all of it is unknown.
#[derive(Serialize, Default)]
struct Categories {
    parameter: u64,
    gradient: u64,
    optimizer: u64,
    activation: u64,
    input: u64,
    temporary: u64,
    workspace: u64,
    unknown: u64,
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
struct LiveReport {
    at: String,
    event: usize,
    by: &'static str,
    bytes: u64,
    count: u64,
    groups: Vec<GroupReport>,
    /// Everything that is not listed in `groups`.
    rest: RestReport,
}

#[derive(Serialize)]
struct GroupReport {
    bytes: u64,
    requested: u64,
    count: u64,
    /// How many of the blocks were allocated before the history begins.
    before_history: u64,
    /// `user`, `library` (no line of your own on the stack), `native` (C++ only), `unknown` (no stack)
    /// or `before` (no stack, from before the history begins).
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<SiteReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<Vec<SiteReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

#[derive(Serialize)]
struct RestReport {
    groups: u64,
    bytes: u64,
    count: u64,
}

#[derive(Serialize)]
struct SiteReport {
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

impl Document {
    pub(super) fn new() -> Document {
        Document { version: 1, inputs: Vec::new() }
    }

    pub(super) fn add(&mut self, name: &str, devices: &[Device<'_>], args: &ReportArgs, snapshot: &Snapshot) {
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
            file: name.to_owned(),
            torch: snapshot.torch.to_string(),
            settings: SettingsReport { recorded: settings.recorded, conf: settings.conf.clone(), values },
            devices: devices.iter().map(|device| report(device, args)).collect(),
        });
    }

    pub(super) fn print(&self, terminal: &mut Terminal) -> anyhow::Result<()> {
        serde_json::to_writer_pretty(terminal.out(), self)?;
        Ok(writeln!(terminal.out())?)
    }
}

fn report(device: &Device<'_>, args: &ReportArgs) -> DeviceReport {
    let history = &device.history;
    let events = &device.snapshot.events;
    DeviceReport {
        device: history.device,
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
        steps: StepsReport { count: 0, source: "none" },
        categories: Categories { unknown: history.allocated_peak.bytes.0, ..Categories::default() },
        findings: Vec::new(),
        counters: CountersAt { peak: history.allocated_peak.counters.into(), end: history.end.into() },
        live: live(device, args),
        streams_and_pools: pools(device),
        ooms: history.stats.ooms,
        stats: args.summary.then(|| stats(device)),
        caveats: history.caveats.iter().chain(&device.snapshot.caveats).cloned().collect(),
    }
}

fn live(device: &Device<'_>, args: &ReportArgs) -> LiveReport {
    let position = device.position_of(args.at).unwrap_or(device.history.len());
    let live = device.live_at(position, args.by.into());
    let (shown, rest) = live.top(args.top);
    LiveReport {
        at: match args.at {
            Moment::Peak => "peak".to_owned(),
            Moment::Oom => "oom".to_owned(),
            Moment::End => "end".to_owned(),
            Moment::Event(event) => event.to_string(),
        },
        event: position.saturating_sub(1),
        by: match args.by.into() {
            Key::Site => "site",
            Key::Stack => "stack",
            Key::Size => "size",
        },
        bytes: live.bytes.0,
        count: live.count,
        groups: shown.iter().map(|group| group_report(device.snapshot, group)).collect(),
        rest: RestReport { groups: rest.groups, bytes: rest.bytes.0, count: rest.count },
    }
}

fn group_report(snapshot: &Snapshot, group: &Group) -> GroupReport {
    let mut report = GroupReport {
        bytes: group.bytes.0,
        requested: group.requested.0,
        count: group.count,
        before_history: group.from_before,
        origin: None,
        site: None,
        stack: None,
        size: None,
    };
    match group.origin {
        Origin::Site(site) => {
            let (origin, frame) = match site {
                Site::User(frame) => ("user", Some(frame)),
                Site::Library(frame) => ("library", Some(frame)),
                Site::Native => ("native", None),
                Site::Unknown => ("unknown", None),
                Site::Before => ("before", None),
            };
            report.origin = Some(origin);
            report.site = frame.map(|frame| site_report(snapshot, frame));
        }
        Origin::Stack(stack) => {
            let frames = snapshot.stacks.frames(stack);
            report.stack = Some(frames.iter().map(|&frame| site_report(snapshot, frame)).collect());
        }
        Origin::Size(size) => report.size = Some(size.0),
    }
    report
}

fn site_report(snapshot: &Snapshot, frame: FrameId) -> SiteReport {
    let frame = snapshot.stacks.frame(frame);
    SiteReport {
        file: snapshot.strings.get(frame.file).to_owned(),
        line: frame.line,
        function: snapshot.strings.get(frame.function).to_owned(),
    }
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
    if let Some(retries) = analysis::retries(device.snapshot, &device.history) {
        map.insert("num_alloc_retries".to_owned(), retries.into());
    }
    map
}
