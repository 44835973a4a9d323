//! `rankN.ledger`: memory of each device by owner, at some moments of the run, and the owners of private
//! pools.

use crate::{FileError, Process, own_process};
use serde::{Deserialize, Serialize};
use snapshot::{Bytes, PoolId};

/// Name under which the recorder lists its own process.
const OWN_NAME: &str = "this process";

/// Memory by owner over a run.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct LedgerFile {
    /// Whether calls of the CUDA driver were counted (`--trace-driver`).
    #[serde(default, rename = "traced")]
    pub is_traced: bool,
    /// Moments of the run, in order of time.
    #[serde(default)]
    pub samples: Vec<LedgerSample>,
    /// Owners of private pools when the snapshot was written.
    #[serde(default)]
    pub pools: Vec<PoolOwner>,
}

/// Memory at one moment.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct LedgerSample {
    /// What happened: `start`, `step`, or why the snapshot was written.
    pub at: String,
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
    /// Steps that had ended.
    #[serde(default)]
    pub step: u64,
    /// Counters of each device.
    #[serde(default)]
    pub devices: Vec<LedgerCounters>,
    /// What libraries had taken from the driver.
    #[serde(default)]
    pub driver: DriverCounts,
}

/// Counters of one device at one moment, in bytes.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct LedgerCounters {
    /// Device ordinal.
    pub device: u32,
    /// Allocations made so far: `allocation.all.allocated` of `memory_stats()`.
    pub allocations: Option<u64>,
    /// Allocated by PyTorch.
    pub allocated: u64,
    /// Reserved by PyTorch.
    #[serde(default)]
    pub reserved: u64,
    /// In use by all processes and by the driver itself.
    pub used: Option<u64>,
    /// Processes that use the device.
    #[serde(default)]
    processes: Vec<LedgerProcess>,
    /// NCCL's own count for each communicator.
    #[serde(default)]
    pub nccl: Vec<CommunicatorMemory>,
}

/// A process as the recorder lists it.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
struct LedgerProcess {
    pid: u64,
    bytes: u64,
    #[serde(default)]
    name: String,
}

/// Memory of an NCCL communicator.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct CommunicatorMemory {
    /// Name of its process group.
    pub group: String,
    /// Bytes.
    pub bytes: u64,
}

/// What libraries have taken from the CUDA driver.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct DriverCounts {
    /// By device, kind of memory and library.
    #[serde(default)]
    pub entries: Vec<DriverCount>,
    /// Calls that overlapped with a call of another thread, so that their memory is unknown.
    #[serde(default)]
    pub missed: u64,
}

/// What one library has taken.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct DriverCount {
    /// Device ordinal; -1 for host memory.
    pub device: i64,
    /// Kind of memory.
    pub kind: DriverMemory,
    /// Bytes. Negative where a library gave back what another had taken.
    pub bytes: i64,
    /// Path of the library.
    pub library: String,
}

/// Kind of memory that a library takes from the driver.
#[derive(Serialize, Deserialize, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DriverMemory {
    /// `cudaMalloc`.
    Allocated,
    /// Physical memory that is mapped: `cuMemCreate`.
    Mapped,
    /// Pools of `cudaMallocAsync`.
    Pooled,
    /// Contexts.
    Context,
    /// Modules and kernels.
    Kernels,
    /// CUDA graphs.
    Graphs,
    /// Pinned host memory.
    Pinned,
    /// Host memory of the program that was pinned later.
    Registered,
    /// Streams, events, limits.
    #[default]
    #[serde(other)]
    Other,
}

/// Owner of a private pool.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct PoolOwner {
    /// ID of the pool.
    id: (u64, u64),
    /// What it is.
    pub kind: PoolOwnerKind,
    /// Number of CUDA graphs that use the pool.
    #[serde(default)]
    pub graphs: u64,
    /// Compiled functions, with their compile ID and shapes.
    #[serde(default)]
    pub names: Vec<String>,
}

/// What owns a private pool.
#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum PoolOwnerKind {
    /// CUDA graph trees of `torch.compile`.
    Compile,
    /// A `torch.cuda.MemPool`.
    MemPool,
    /// CUDA graphs that the program has captured.
    #[default]
    #[serde(other)]
    Graph,
}

impl PoolOwner {
    /// Returns the ID of the pool.
    pub fn pool(&self) -> PoolId {
        PoolId(self.id.0, self.id.1)
    }
}

impl LedgerFile {
    /// Parses the file.
    pub fn parse(bytes: &[u8]) -> Result<LedgerFile, FileError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl LedgerSample {
    /// Returns the counters of a device.
    pub fn of(&self, device: u32) -> Option<&LedgerCounters> {
        self.devices.iter().find(|counters| counters.device == device)
    }
}

impl LedgerCounters {
    /// Returns the memory of the recorded process by the driver's count, and the other processes.
    pub fn processes(&self) -> (Option<Bytes>, Vec<Process>) {
        let by_name = self.processes.iter().position(|process| process.name == OWN_NAME);
        let held: Vec<u64> = self.processes.iter().map(|process| process.bytes).collect();
        let own = own_process(by_name, &held, self.reserved);
        let others = self.processes.iter().enumerate().filter(|(index, _)| Some(*index) != own);
        let others = others.map(|(_, LedgerProcess { pid, bytes, name })| Process {
            pid: *pid,
            bytes: Bytes(*bytes),
            name: name.clone(),
        });
        (own.map(|own| Bytes(held[own])), others.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_process_is_told_from_others() {
        let json = br#"{"traced": true, "samples": [{"at": "exit", "time_us": 1, "devices": [{"device": 0,
            "allocated": 1, "reserved": 5, "used": 40, "processes": [{"pid": 7, "bytes": 20, "name": "serve"},
            {"pid": 8, "bytes": 9, "name": "this process"}]}],
            "driver": {"entries": [{"device": 0, "kind": "of a later version", "bytes": -3, "peak": 1,
            "calls": 2, "library": "x"}], "missed": 0}}],
            "pools": [{"id": [0, 1], "kind": "compile", "graphs": 2, "names": ["[0/0] forward"]}]}"#;
        let ledger = LedgerFile::parse(json).expect("a ledger");
        assert!(ledger.is_traced);
        let sample = &ledger.samples[0];
        let (own, others) = sample.of(0).expect("the device").processes();
        assert_eq!(own, Some(Bytes(9)));
        assert_eq!(others, [Process { pid: 7, bytes: Bytes(20), name: "serve".to_owned() }]);
        assert_eq!(sample.driver.entries[0].kind, DriverMemory::Other);
        assert_eq!(ledger.pools[0].pool(), PoolId(0, 1));
        assert_eq!(ledger.pools[0].kind, PoolOwnerKind::Compile);
    }
}
