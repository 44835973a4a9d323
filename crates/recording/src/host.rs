//! `rankN.host.jsonl`: host memory of the process and its data loaders' workers over time, one JSON object
//! per line, and pinned memory by line of code.

use crate::FileError;
use crate::lines::json_lines;
use serde::Deserialize;
use snapshot::{Bytes, FrameId, Snapshot};

/// Host memory of a recorded process.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct HostMemory {
    /// Lines that create data loaders; workers refer to them by index.
    pub loaders: Vec<HostLine>,
    /// The kernel's counters over time, about once per second at first.
    pub samples: Vec<HostSample>,
    /// Pinned memory when the recording was written.
    pub pinned: Option<PinnedMemory>,
}

/// A line of the program; the file is empty where the program itself has no part in the stack.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct HostLine {
    /// Path of the file.
    #[serde(default)]
    pub file: String,
    /// Number of the line, from 1.
    #[serde(default)]
    pub line: u32,
    /// Name of the function.
    #[serde(default)]
    pub function: String,
    /// Its frame in the snapshot, once the two are joined.
    #[serde(skip)]
    pub frame: Option<FrameId>,
}

/// The kernel's counters at one time.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct HostSample {
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
    /// Resident memory of the process.
    pub rss: Bytes,
    /// Part of it in shared memory.
    #[serde(default)]
    pub shmem: Bytes,
    /// The file system of shared memory.
    pub shm: Option<SharedMemory>,
    /// The control group with the least memory left.
    pub cgroup: Option<ControlGroup>,
    /// The machine.
    pub machine: Option<MachineMemory>,
    /// Workers of data loaders.
    #[serde(default)]
    pub workers: Vec<WorkerSample>,
}

/// `/dev/shm` at one time.
#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SharedMemory {
    /// Size of the file system.
    pub size: Bytes,
    /// Free memory in it.
    pub free: Bytes,
}

/// A control group with a memory limit.
#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ControlGroup {
    /// Memory limit.
    pub limit: Bytes,
    /// Memory in use, without the page cache.
    pub used: Bytes,
}

/// Memory of the machine.
#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MachineMemory {
    /// `MemTotal` of `/proc/meminfo`.
    pub total: Bytes,
    /// `MemAvailable` of `/proc/meminfo`.
    pub available: Bytes,
}

/// A worker of a data loader at one time.
#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WorkerSample {
    /// Process ID.
    pub pid: u64,
    /// Index of its data loader.
    pub loader: usize,
    /// Resident memory.
    pub rss: Bytes,
    /// Part of it in shared memory.
    #[serde(default)]
    pub shmem: Bytes,
    /// Part of it that no other process maps, where the kernel counts that.
    pub private: Option<Bytes>,
    /// Pages that it has touched for the first time or copied so far, where the kernel counts that.
    pub faulted: Option<Bytes>,
}

/// Pinned memory that PyTorch's host allocator has taken from the system.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct PinnedMemory {
    /// All of it, free blocks included.
    pub reserved: Bytes,
    /// Blocks by line and size, as far as their requests are known.
    pub blocks: Vec<PinnedBlocks>,
}

/// Pinned blocks of one size that were taken for requests of one line.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct PinnedBlocks {
    /// The line.
    #[serde(flatten)]
    pub line: HostLine,
    /// Size of a block.
    pub size: Bytes,
    /// Requested bytes of a block, on average.
    pub requested: Bytes,
    /// Number of blocks.
    pub count: u64,
}

impl PinnedBlocks {
    /// Returns the bytes of all blocks that nobody requested.
    pub fn waste(&self) -> Bytes {
        Bytes((self.size - self.requested).0.saturating_mul(self.count))
    }
}

impl HostSample {
    /// Returns the limit that is closest, and what is in use of it: the control group's or the machine's.
    pub fn closest_limit(&self) -> Option<(Bytes, Bytes)> {
        let group = self.cgroup.map(|group| (group.limit, group.used));
        let machine = self.machine.map(|machine| (machine.total, machine.total - machine.available));
        [group, machine].into_iter().flatten().min_by_key(|(limit, used)| *limit - *used)
    }
}

impl HostMemory {
    /// Parses a whole file. Of several lines about pinned memory the last one counts.
    pub fn parse(bytes: &[u8]) -> Result<HostMemory, FileError> {
        let mut host = HostMemory::default();
        for line in json_lines(bytes).ok_or(FileError::BadHostMemory)? {
            match line {
                HostFileLine::Sample(sample) => host.samples.push(*sample),
                HostFileLine::Pinned { pinned } => host.pinned = Some(pinned),
                HostFileLine::Loader { line, .. } => host.loaders.push(line),
            }
        }
        Ok(host)
    }

    /// Gives every line a frame of the snapshot.
    pub fn join(&mut self, snapshot: &mut Snapshot) {
        let pinned =
            self.pinned.iter_mut().flat_map(|pinned| &mut pinned.blocks).map(|blocks| &mut blocks.line);
        for line in self.loaders.iter_mut().chain(pinned).filter(|line| !line.file.is_empty()) {
            line.frame = Some(snapshot.frame_at(&line.file, line.line, &line.function));
        }
    }

    /// Returns the highest resident memory of the process.
    pub fn peak_rss(&self) -> Bytes {
        self.samples.iter().map(|sample| sample.rss).max().unwrap_or_default()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HostFileLine {
    Sample(Box<HostSample>),
    Pinned {
        pinned: PinnedMemory,
    },
    Loader {
        #[serde(rename = "loader")]
        _index: usize,
        #[serde(flatten)]
        line: HostLine,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"loader":0,"file":"a.py","line":9,"function":"main"}
{"time_us":1,"rss":10,"shmem":0,"shm":{"size":8,"free":3},"machine":{"total":100,"available":40}}
{"time_us":2,"rss":30,"cgroup":{"limit":50,"used":20},"workers":[{"pid":7,"loader":0,"rss":5,"private":2}]}
{"pinned":{"reserved":1,"blocks":[]}}
{"pinned":{"reserved":256,"blocks":[{"file":"","line":0,"function":"","size":64,"requested":40,"count":2}]}}
"#;

    #[test]
    fn a_file_of_the_recorder_is_read() {
        let host = HostMemory::parse(FILE.as_bytes()).expect("readable");
        assert_eq!((host.loaders[0].file.as_str(), host.loaders[0].line), ("a.py", 9));
        assert_eq!(host.samples.len(), 2);
        assert_eq!(host.peak_rss(), Bytes(30));
        assert_eq!(host.samples[0].closest_limit(), Some((Bytes(100), Bytes(60))));
        assert_eq!(host.samples[1].closest_limit(), Some((Bytes(50), Bytes(20))));
        assert_eq!(host.samples[1].workers[0].private, Some(Bytes(2)));
        let pinned = host.pinned.expect("the last line");
        assert_eq!((pinned.reserved, pinned.blocks[0].waste()), (Bytes(256), Bytes(48)));
        assert_eq!(pinned.blocks[0].line, HostLine::default());
    }

    #[test]
    fn half_a_last_line_is_dropped_and_other_damage_is_an_error() {
        let cut = &FILE[..FILE.len() - 20];
        assert_eq!(
            HostMemory::parse(cut.as_bytes()).expect("readable").pinned.map(|of| of.reserved),
            Some(Bytes(1))
        );
        assert!(matches!(HostMemory::parse(b"{\"a\":1}\n"), Err(FileError::BadHostMemory)));
    }
}
