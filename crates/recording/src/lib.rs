//! Reads what oomph's recorder writes: the sidecar files of a snapshot (`docs/reference/recording.md`), and
//! how the program ended.
//!
//! Each file has one module, with the struct that mirrors its JSON and the typed value that everyone else
//! uses. Parsers take bytes, so files of other users can be read by whatever means is safe;
//! [`Sidecars::read`] takes the path of a snapshot and reads everything next to it. Nothing here prints:
//! files that cannot be read are returned as [`UnreadableFile`].
//!
//! ```
//! use recording::{Exit, RunInfo, RunState};
//!
//! let json = br#"{"ended": "failed", "exception": "OutOfMemoryError: CUDA out of memory."}"#;
//! let run = RunInfo::parse(json)?;
//! assert_eq!(run.state, RunState::Exited(Exit::OutOfMemory));
//! # Ok::<(), recording::FileError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod heap;
mod host;
mod job_place;
mod labels;
mod ledger;
mod lines;
mod observed;
mod phases;
mod ranks;
mod run;
mod settings;
mod steps;

pub use crate::heap::HeapDump;
pub use error::FileError;
pub use host::{
    ControlGroup, HostLine, HostMemory, HostSample, MachineMemory, PinnedBlocks, PinnedMemory, SharedMemory,
    WorkerSample,
};
pub use job_place::{JobPlace, MeshCoordinate};
pub use labels::{Label, LabelMark, LabeledTensor, Labels, Placed};
pub use ledger::{
    CommunicatorMemory, DriverCount, DriverCounts, DriverMemory, LedgerCounters, LedgerFile, LedgerSample,
    PoolOwner, PoolOwnerKind,
};
pub use observed::{ModelName, ObservedBlock, ObservedLine, ObservedLines, ObservedProgram};
pub use phases::PhaseMark;
pub use ranks::{
    COMPRESSED_SUFFIXES, META_FILE, SUMMARY_SUFFIX, SidecarPart, Sidecars, UnreadableFile, rank_of_file,
    snapshot_stem, unfinished_name,
};
pub use run::{
    DumpReason, EmulationInfo, Exit, GpuInfo, LaterIteration, LoopInfo, Process, RunInfo, RunState, Shortage,
    StopReason, ValueRead, is_out_of_memory, own_process,
};
pub use settings::{SettingsLog, SettingsMark};
pub use steps::{NonPytorchMemory, StepCounters, StepLine, StepMark};

use snapshot::{Bytes, History};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contents of the sidecar files of one snapshot. Every part may be missing, and nothing has been checked
/// against the snapshot yet.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Ends of steps, in order of time.
    pub marks: Vec<StepMark>,
    /// Whether allocations after the last step were recorded with their stacks.
    pub ends_with_stacks: bool,
    /// Allocations that each device had made when the snapshot was written.
    pub allocations: AllocationCounts,
    /// Names and addresses of tensors over time.
    pub labels: Labels,
    /// Paths of modules, which the metadata of events refers to by number.
    pub modules: Vec<String>,
    /// Allocator settings, if the program changed them while it was recorded.
    pub settings: Option<SettingsLog>,
    /// The driver's numbers when an allocation failed.
    pub shortage: Option<Shortage>,
    /// The devices, as the driver describes them.
    pub gpus: Vec<GpuInfo>,
    /// Non-PyTorch memory of each device.
    pub non_pytorch: Vec<NonPytorchMemory>,
    /// Most memory that PyTorch itself counted as allocated on each device, at the ends of steps.
    pub counted_peaks: BTreeMap<u32, Bytes>,
    /// Memory of the devices by owner.
    pub ledger: Option<Arc<LedgerFile>>,
    /// References that kept tensors alive. The dump at the end comes first, then the one written while memory
    /// grew.
    pub heaps: Vec<Arc<HeapDump>>,
    /// Host memory over time.
    pub host: Option<HostMemory>,
    /// Phases of the program, in order of time.
    pub phases: Vec<PhaseMark>,
}

impl Recording {
    /// The recording of a plain snapshot: nothing is known.
    pub const NONE: &'static Recording = &Recording {
        marks: Vec::new(),
        ends_with_stacks: true,
        allocations: AllocationCounts(Vec::new()),
        labels: Labels { tensors: Vec::new(), sets: Vec::new(), marks: Vec::new() },
        modules: Vec::new(),
        settings: None,
        shortage: None,
        gpus: Vec::new(),
        non_pytorch: Vec::new(),
        counted_peaks: BTreeMap::new(),
        ledger: None,
        heaps: Vec::new(),
        host: None,
        phases: Vec::new(),
    };

    /// Returns the driver's description of a device.
    pub fn gpu(&self, device: u32) -> Option<&GpuInfo> {
        self.gpus.iter().find(|gpu| gpu.device == device)
    }

    /// Returns the most that PyTorch counted as allocated, if that was before the history of a device begins.
    pub fn earlier_peak(&self, history: &History) -> Option<Bytes> {
        let counted = self.counted_peaks.get(&history.device).copied();
        counted.filter(|&counted| !history.complete && counted > history.allocated_peak.bytes)
    }

    /// Returns the non-PyTorch memory of a device.
    pub fn non_pytorch(&self, device: u32) -> Option<&NonPytorchMemory> {
        self.non_pytorch.iter().find(|memory| memory.device == device)
    }
}

impl Default for Recording {
    fn default() -> Recording {
        Recording::NONE.clone()
    }
}

/// Allocations made so far, by device: `allocation.all.allocated` of `memory_stats()`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct AllocationCounts(pub Vec<(u32, u64)>);

impl AllocationCounts {
    /// Returns the number of allocations of one device.
    pub fn of(&self, device: u32) -> Option<u64> {
        self.0.iter().find(|(of, _)| *of == device).map(|(_, count)| *count)
    }
}

/// Converts `{"0": 1234}`; keys that are not device ordinals are left out.
impl From<BTreeMap<String, u64>> for AllocationCounts {
    fn from(by_device: BTreeMap<String, u64>) -> AllocationCounts {
        let parsed = by_device.into_iter().filter_map(|(device, count)| Some((device.parse().ok()?, count)));
        AllocationCounts(parsed.collect())
    }
}
