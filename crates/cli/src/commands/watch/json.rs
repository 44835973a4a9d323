//! The current state as one line of JSON.

use crate::terminal::Terminal;
use analysis::Pace;
use live::{Gpu, MemorySplit, WatchedRecorder};
use recording::Exit;
use serde::Serialize;
use snapshot::Bytes;
use std::io::Write;
use watch::state::{WatchRow, WatchState};

#[derive(Serialize)]
struct WatchDocument<'a> {
    version: u32,
    devices: Vec<DeviceJson<'a>>,
    /// GPUs that no recorder uses.
    gpus: Vec<&'a Gpu>,
    no_driver: Option<&'a str>,
    /// What is left out, in words.
    notes: &'a [String],
}

#[derive(Serialize)]
struct DeviceJson<'a> {
    job: String,
    pid: u32,
    host: &'a str,
    rank: Option<u32>,
    folder: &'a str,
    time_us: i64,
    step: u64,
    ended: Option<&'static str>,
    #[serde(flatten)]
    counters: &'a live::DeviceCounters,
    pinned: Option<u64>,
    split: SplitJson,
    pace: &'static str,
    bytes_per_step: Option<u64>,
    steps_until_full: Option<u64>,
    sites: Vec<SiteJson>,
    /// The step at whose end these were read.
    sites_step: Option<u64>,
}

#[derive(Serialize)]
struct SplitJson {
    tensors: u64,
    cached: u64,
    non_pytorch: Option<u64>,
    others: Option<u64>,
    unknown_owner: Option<u64>,
    free: Option<u64>,
}

#[derive(Serialize)]
struct SiteJson {
    file: Option<String>,
    line: Option<u32>,
    function: Option<String>,
    bytes: u64,
    count: u64,
    bytes_per_step: Option<u64>,
}

pub(super) fn print(look: &WatchState, terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut document = WatchDocument {
        version: 2,
        devices: Vec::new(),
        gpus: Vec::new(),
        no_driver: look.no_driver.as_deref(),
        notes: &look.notes,
    };
    for row in &look.rows {
        match row {
            WatchRow::Recorded { recorder, device, split, .. } => {
                document.devices.push(device_json(recorder, device, split))
            }
            WatchRow::DriverOnly(gpu) => document.gpus.push(gpu),
        }
    }
    serde_json::to_writer(terminal.out(), &document)?;
    Ok(writeln!(terminal.out())?)
}

fn device_json<'a>(
    recorder: &'a WatchedRecorder,
    device: &'a live::DeviceCounters,
    split: &MemorySplit,
) -> DeviceJson<'a> {
    let state = &recorder.state;
    let pace = recorder.pace(device.device);
    let sites = recorder.sites(device.device).into_iter().map(|site| {
        let (file, line, function) = site
            .line
            .map_or((None, None, None), |(file, line, function)| (Some(file), Some(line), Some(function)));
        let bytes_per_step = site.bytes_per_step.map(|bytes| bytes.0);
        SiteJson { file, line, function, bytes: site.bytes.0, count: site.count, bytes_per_step }
    });
    let known = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
    DeviceJson {
        job: state.job(),
        pid: state.pid,
        host: &state.host,
        rank: state.rank,
        folder: &state.folder,
        time_us: state.time_us,
        step: state.count,
        ended: recorder.exit.map(|exit| match exit {
            Exit::Finished | Exit::Stopped(_) => "finished",
            Exit::Failed | Exit::OutOfMemory => "failed",
            Exit::Killed => "gone",
        }),
        counters: device,
        pinned: state.pinned,
        split: SplitJson {
            tensors: split.tensors.0,
            cached: split.cached.0,
            non_pytorch: known(split.non_pytorch),
            others: known(split.others),
            unknown_owner: known(split.unknown_owner),
            free: known(split.free),
        },
        pace: name(pace),
        bytes_per_step: known(pace.bytes_per_step()),
        steps_until_full: recorder.steps_left(device.device),
        sites: sites.collect(),
        sites_step: recorder.sites_step(),
    }
}

fn name(pace: Pace) -> &'static str {
    match pace {
        Pace::NoSteps => "no steps",
        Pace::WarmingUp { .. } => "warming up",
        Pace::Flat => "flat",
        Pace::Varies { .. } => "varies",
        Pace::Settled { .. } => "settled",
        Pace::Rising { .. } => "rising",
        Pace::Growing { .. } => "leaking",
    }
}
