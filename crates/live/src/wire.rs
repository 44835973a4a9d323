//! The messages of the live socket, one JSON object per line; `python/oomph/recording/live.py` is the other
//! side.

use crate::limits::{
    MAX_DEVICES, MAX_FRAMES, MAX_PROCESSES, MAX_STACKS, MAX_STEPS, MAX_WORDS, first, first_if_any, shorten,
};
use analysis::LedgerRow;
use recording::DriverCount;
use serde::{Deserialize, Serialize};

/// Longest name of a job, in bytes: that of a file.
const MAX_JOB_BYTES: usize = 255;

/// A request to a recorder.
#[derive(Serialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RecorderRequest {
    /// Only steps after this one are wanted.
    pub since: u64,
    /// The [`RecorderState::era`] that `since` belongs to.
    pub era: u64,
    /// Whether the stacks of live blocks are wanted.
    pub stacks: bool,
    /// Only stacks of a later step than this are wanted.
    pub stacks_since: u64,
    /// Whether to write a recording.
    pub dump: bool,
}

/// The answer of a recorder. Fields of later versions are ignored.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub struct RecorderState {
    /// Version of the format: 1.
    pub version: u32,
    /// Process that records.
    pub pid: u32,
    /// Name of the machine.
    pub host: String,
    /// Rank that a launcher gave to the process.
    pub rank: Option<u32>,
    /// Number of processes that the launcher started; 0 if unknown.
    #[serde(default)]
    pub world_size: u32,
    /// Command line.
    #[serde(default, deserialize_with = "first::<_, _, MAX_WORDS>")]
    pub command: Vec<String>,
    /// Folder of the recording.
    pub folder: String,
    /// Prefix of the names of its files (`rank0`), once some are written.
    pub name: Option<String>,
    /// Release of PyTorch.
    #[serde(default)]
    pub torch: String,
    /// Recorded memory: `cuda` or `cpu`.
    pub kind: String,
    /// When the recorder started, in microseconds since the Unix epoch.
    pub started_us: i64,
    /// When it answered, in microseconds since the Unix epoch.
    pub time_us: i64,
    /// Number that changes when the recorder starts to count steps over.
    #[serde(default)]
    pub era: u64,
    /// Number of steps so far.
    #[serde(default)]
    pub count: u64,
    /// Last steps.
    #[serde(default, deserialize_with = "first::<_, _, MAX_STEPS>")]
    pub steps: Vec<LiveStep>,
    /// Counters of each device now.
    #[serde(default, deserialize_with = "first::<_, _, MAX_DEVICES>")]
    pub devices: Vec<DeviceCounters>,
    /// Pinned host memory, in bytes.
    pub pinned: Option<u64>,
    /// Whether the stacks of live blocks are available.
    #[serde(default)]
    pub has_stacks: bool,
    /// Stacks that hold most; `None` if they were not asked for, or are not new.
    #[serde(default, deserialize_with = "first_if_any::<_, _, MAX_STACKS>")]
    pub stacks: Option<Vec<LiveStack>>,
    /// Step at whose end the stacks were read.
    #[serde(default)]
    pub stacks_step: u64,
    /// Number of recordings written on request of a watcher.
    #[serde(default)]
    pub dumps: u64,
    /// Whether a recording is being written.
    #[serde(default)]
    pub is_dumping: bool,
}

impl RecorderState {
    /// Returns whether host memory is recorded, not that of a GPU.
    pub fn is_cpu(&self) -> bool {
        self.kind == "cpu"
    }
}

/// The end of a step, as a recorder reports it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct LiveStep {
    /// Number of the step, from 1.
    pub step: u64,
    /// When it ended, in microseconds since the Unix epoch.
    pub time_us: i64,
    /// Counters of each device then.
    #[serde(deserialize_with = "first::<_, _, MAX_DEVICES>")]
    pub devices: Vec<LiveStepCounters>,
}

/// Counters of one device at the end of a step, in bytes.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct LiveStepCounters {
    /// Device ordinal.
    pub device: u32,
    /// Allocated by PyTorch.
    pub allocated: u64,
    /// Reserved by PyTorch.
    pub reserved: u64,
}

/// PyTorch's counters of one device, and the driver's. Amounts of memory are in bytes.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub struct DeviceCounters {
    /// Device ordinal.
    pub device: u32,
    /// Allocated by PyTorch.
    pub allocated: u64,
    /// Reserved by PyTorch.
    pub reserved: u64,
    /// Requested by the program, before rounding.
    #[serde(default)]
    pub requested: u64,
    /// Allocated, or freed and still in use by a stream.
    #[serde(default)]
    pub active: u64,
    /// Free parts of split blocks.
    #[serde(default)]
    pub inactive_split: u64,
    /// Highest allocated amount since the start or the last reset by the program.
    #[serde(default)]
    pub peak: u64,
    /// Number of allocations so far.
    #[serde(default)]
    pub allocations: u64,
    /// Number of allocations that succeeded only after cached memory was released.
    #[serde(default)]
    pub retries: u64,
    /// Number of failed allocations.
    #[serde(default)]
    pub ooms: u64,
    /// Number of calls of `cudaMalloc` and the like.
    #[serde(default)]
    pub device_allocs: u64,
    /// In use by all processes, by the driver.
    pub used: Option<u64>,
    /// Processes that use memory of the device, by the driver.
    #[serde(default, deserialize_with = "first::<_, _, MAX_PROCESSES>")]
    pub processes: Vec<GpuProcess>,
    /// What libraries have taken from the driver, if its calls are counted (`--trace-driver`).
    #[serde(default, deserialize_with = "first::<_, _, MAX_PROCESSES>")]
    pub driver: Vec<DriverCount>,
    /// Product name of the device.
    #[serde(default)]
    pub card: String,
    /// UUID of the device.
    #[serde(default)]
    pub uuid: String,
    /// Total memory of the device.
    pub total: Option<u64>,
    /// Memory limit of the process, if it has one.
    pub limit: Option<u64>,
}

impl DeviceCounters {
    /// Returns non-PyTorch memory of the process by owner, the largest first; empty if it is not counted.
    pub fn owners(&self) -> Vec<LedgerRow> {
        LedgerRow::of_driver(&self.driver, self.device, self.reserved)
    }
}

/// A process that uses memory of a device.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct GpuProcess {
    /// Process id.
    pub pid: u32,
    /// Memory of the device that it uses, in bytes.
    pub bytes: u64,
    /// Name, or empty.
    #[serde(default)]
    pub name: String,
}

/// Live blocks that were allocated with one stack.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct LiveStack {
    /// Device ordinal.
    pub device: u32,
    /// Frames, innermost first.
    #[serde(deserialize_with = "first::<_, _, MAX_FRAMES>")]
    pub frames: Vec<LiveFrame>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Number of the blocks.
    pub count: u64,
}

/// A frame of a Python stack.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct LiveFrame {
    /// File of the line.
    pub filename: String,
    /// Number of the line.
    pub line: u32,
    /// Function of the line.
    pub name: String,
}

impl RecorderState {
    /// Returns the name of the program: its script or module.
    pub fn job(&self) -> String {
        let mut job = self.whole_job();
        shorten(&mut job, MAX_JOB_BYTES);
        job
    }

    fn whole_job(&self) -> String {
        let mut words = self.command.iter().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "-m" => return words.next().cloned().unwrap_or_default(),
                "-c" => return "-c".to_owned(),
                "-X" | "-W" => {
                    words.next();
                }
                option if option.starts_with('-') && option.len() > 1 => {}
                script => return script.rsplit('/').next().unwrap_or(script).to_owned(),
            }
        }
        self.command.first().map_or_else(
            || format!("process {}", self.pid),
            |program| program.rsplit('/').next().unwrap_or(program).to_owned(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_called_by_its_script_or_module() {
        for (command, expected) in [
            ("python train.py --lr 3", "train.py"),
            ("/usr/bin/python3 -u -X dev runs/train.py", "train.py"),
            ("python -m torch.distributed.run train.py", "torch.distributed.run"),
            ("python -c pass", "-c"),
            ("/usr/bin/python", "python"),
            ("", "process 7"),
        ] {
            let command = command.split_whitespace().map(str::to_owned).collect();
            assert_eq!(RecorderState { command, pid: 7, ..RecorderState::default() }.job(), expected);
        }
    }

    #[test]
    fn non_pytorch_memory_has_owners_where_calls_of_the_driver_are_counted() {
        let text = r#"{"device": 0, "allocated": 5, "reserved": 9, "driver": [
            {"device": 0, "kind": "context", "bytes": 500, "library": "/x/libc10_cuda.so"},
            {"device": 0, "kind": "mapped", "bytes": 9, "library": "/x/libc10_cuda.so"},
            {"device": 0, "kind": "allocated", "bytes": 700, "library": "/x/libnccl.so.2"}]}"#;
        let counters: DeviceCounters = serde_json::from_str(text).expect("readable");
        let owners = counters.owners();
        let shown: Vec<_> = owners.iter().map(|row| (row.owner.name(), row.bytes.0)).collect();
        assert_eq!(shown, [("NCCL", 700), ("CUDA context", 500)]);
        assert_eq!(DeviceCounters::default().owners(), []);
    }

    #[test]
    fn fields_of_later_versions_are_ignored() {
        let text = r#"{"version": 1, "pid": 1, "host": "h", "rank": null, "folder": "/f", "name": null,
            "kind": "cuda", "started_us": 1, "time_us": 2, "more": [],
            "devices": [{"device": 0, "allocated": 5, "reserved": 9, "new": {}}]}"#;
        let state: RecorderState = serde_json::from_str(text).expect("readable");
        assert_eq!((state.devices[0].allocated, state.devices[0].total), (5, None));
    }
}
