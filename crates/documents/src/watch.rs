//! The JSON of `oomph watch --json`: the current state.

use crate::ledger::LedgerRowReport;
use analysis::Pace;
use live::{DeviceCounters, Gpu, GpuProcess, MemorySplit, WatchedRecorder};
use recording::Exit;
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::Bytes;
use watch::state::{WatchRow, WatchState};

/// The memory of running programs, at one moment.
#[derive(Serialize, JsonSchema)]
pub struct WatchDocument<'a> {
    /// Version of the format.
    version: u32,
    /// Devices of recorded processes.
    devices: Vec<DeviceJson<'a>>,
    /// GPUs that no recorder uses.
    gpus: Vec<GpuJson>,
    /// Why the driver does not answer; `null` if it does.
    no_driver: Option<&'a str>,
    /// What is left out, as sentences.
    notes: &'a [String],
}

/// One device of a recorded process.
#[derive(Serialize, JsonSchema)]
struct DeviceJson<'a> {
    /// Name of the program.
    job: String,
    /// Process ID.
    pid: u32,
    /// Name of the machine.
    host: &'a str,
    /// Rank of the process, if it has one.
    rank: Option<u32>,
    /// Folder of the recording.
    folder: &'a str,
    /// Time of the sample, in microseconds since the Unix epoch.
    time_us: i64,
    /// Number of steps so far.
    step: u64,
    /// `finished`, `failed` or `gone`; `null` while the process runs.
    ended: Option<&'static str>,
    #[serde(flatten)]
    counters: CountersJson,
    /// Bytes of pinned host memory.
    pinned: Option<u64>,
    /// Memory of the device by use.
    split: SplitJson,
    /// Non-PyTorch memory of the process by owner, with `--trace-driver`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    owners: Vec<LedgerRowReport>,
    /// `no steps`, `warming up`, `flat`, `varies`, `settled`, `rising` or `leaking`.
    pace: &'static str,
    /// Bytes that each step adds; `null` if memory does not grow.
    bytes_per_step: Option<u64>,
    /// Number of steps until the device is full; `null` if memory does not grow.
    steps_until_full: Option<u64>,
    /// Lines with the most live memory, the largest first.
    sites: Vec<SiteJson>,
    /// Step at whose end these were read.
    sites_step: Option<u64>,
}

/// PyTorch's counters of one device, and the driver's.
#[derive(Serialize, JsonSchema)]
struct CountersJson {
    /// Device ordinal.
    device: u32,
    /// Bytes allocated by PyTorch.
    allocated: u64,
    /// Bytes reserved by PyTorch.
    reserved: u64,
    /// Bytes requested by the program, before rounding.
    requested: u64,
    /// Bytes that are allocated, or freed and still in use by a stream.
    active: u64,
    /// Bytes of free parts of split blocks.
    inactive_split: u64,
    /// Highest allocated bytes since the start or the last reset by the program.
    peak: u64,
    /// Number of allocations so far.
    allocations: u64,
    /// Number of allocations that succeeded only after cached memory was released.
    retries: u64,
    /// Number of failed allocations.
    ooms: u64,
    /// Number of calls of `cudaMalloc` and the like.
    device_allocs: u64,
    /// Bytes in use by all processes, by the driver.
    used: Option<u64>,
    /// Processes that use memory of the device, by the driver.
    processes: Vec<ProcessJson>,
    /// Product name of the device.
    card: String,
    /// UUID of the device.
    uuid: String,
    /// Total bytes of the device.
    total: Option<u64>,
    /// Memory limit of the process in bytes, if it has one.
    limit: Option<u64>,
}

/// A GPU as the driver describes it.
#[derive(Serialize, JsonSchema)]
struct GpuJson {
    /// Index by the driver's count.
    index: u32,
    /// UUID, as `nvidia-smi -L` prints it.
    uuid: String,
    /// Product name.
    name: String,
    /// Total bytes.
    total: u64,
    /// Bytes in use by all processes and by the driver itself.
    used: u64,
    /// Processes that use memory of the GPU.
    processes: Vec<ProcessJson>,
}

/// A process that uses memory of a GPU.
#[derive(Serialize, JsonSchema)]
struct ProcessJson {
    /// Process ID.
    pid: u32,
    /// Bytes that it uses.
    bytes: u64,
    /// Name, or empty.
    name: String,
}

/// Memory of a device by use, in bytes. What could not be measured is `null`.
#[derive(Serialize, JsonSchema)]
struct SplitJson {
    /// Bytes of tensors.
    tensors: u64,
    /// Bytes that PyTorch reserves without tensors in them.
    cached: u64,
    /// Bytes of the process that are not PyTorch's.
    non_pytorch: Option<u64>,
    /// Bytes of other processes.
    others: Option<u64>,
    /// Bytes in use by nobody that the driver names.
    unknown_owner: Option<u64>,
    /// Free bytes.
    free: Option<u64>,
}

/// A line and its live memory.
#[derive(Serialize, JsonSchema)]
struct SiteJson {
    /// Path of the file; `null` if the line is unknown.
    file: Option<String>,
    /// Line number, from 1.
    line: Option<u32>,
    /// Name of the function.
    function: Option<String>,
    /// Bytes of the live blocks allocated there.
    bytes: u64,
    /// Number of these blocks.
    count: u64,
    /// Bytes that each step adds; `null` if nothing grows.
    bytes_per_step: Option<u64>,
}

impl From<&DeviceCounters> for CountersJson {
    fn from(counters: &DeviceCounters) -> CountersJson {
        let DeviceCounters {
            device,
            allocated,
            reserved,
            requested,
            active,
            inactive_split,
            peak,
            allocations,
            retries,
            ooms,
            device_allocs,
            used,
            processes,
            driver: _,
            card,
            uuid,
            total,
            limit,
        } = counters.clone();
        let processes = processes.into_iter().map(ProcessJson::from).collect();
        CountersJson {
            device,
            allocated,
            reserved,
            requested,
            active,
            inactive_split,
            peak,
            allocations,
            retries,
            ooms,
            device_allocs,
            used,
            processes,
            card,
            uuid,
            total,
            limit,
        }
    }
}

impl From<&Gpu> for GpuJson {
    fn from(gpu: &Gpu) -> GpuJson {
        let Gpu { index, uuid, name, total, used, processes } = gpu.clone();
        let processes = processes.into_iter().map(ProcessJson::from).collect();
        GpuJson { index, uuid, name, total, used, processes }
    }
}

impl From<GpuProcess> for ProcessJson {
    fn from(GpuProcess { pid, bytes, name }: GpuProcess) -> ProcessJson {
        ProcessJson { pid, bytes, name }
    }
}

impl<'a> WatchDocument<'a> {
    /// Converts a state.
    pub fn new(state: &'a WatchState) -> WatchDocument<'a> {
        let mut document = WatchDocument {
            version: 2,
            devices: Vec::new(),
            gpus: Vec::new(),
            no_driver: state.no_driver.as_deref(),
            notes: &state.notes,
        };
        for row in &state.rows {
            match row {
                WatchRow::Recorded { recorder, device, split, .. } => {
                    document.devices.push(device_json(recorder, device, split))
                }
                WatchRow::DriverOnly(gpu) => document.gpus.push(gpu.into()),
            }
        }
        document
    }
}

fn device_json<'a>(
    recorder: &'a WatchedRecorder,
    device: &DeviceCounters,
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
        counters: device.into(),
        pinned: state.pinned,
        owners: device.owners().into_iter().map(LedgerRowReport::from).collect(),
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
