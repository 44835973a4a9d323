//! Host memory in the JSON of `oomph report --json`.

use crate::sites::ReportedSite;
use recording::{HostLine, HostMemory, PinnedBlocks, WorkerSample};
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::{Bytes, Snapshot};
use std::collections::BTreeMap;

/// Memory of a process and its data loaders' workers on the host.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HostReport {
    /// Number of samples of the kernel's counters, which the amounts below are taken from.
    samples: usize,
    /// Highest resident memory of the process, in bytes.
    peak_rss: u64,
    /// Workers, by process ID.
    workers: Vec<WorkerReport>,
    /// `/dev/shm` when it was fullest.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory: Option<UsageReport>,
    /// The control group or the machine, whichever had less memory left, when it was fullest.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<UsageReport>,
    /// Pinned memory at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<PinnedReport>,
}

/// A worker of a data loader.
#[derive(Serialize, JsonSchema)]
struct WorkerReport {
    /// Process ID.
    pid: u64,
    /// Line that creates its data loader.
    #[serde(skip_serializing_if = "Option::is_none")]
    loader: Option<ReportedSite>,
    /// Highest resident memory, in bytes.
    peak_rss: u64,
    /// Private memory in its first sample, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_private: Option<u64>,
    /// Private memory in its last sample, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_private: Option<u64>,
}

/// An amount of memory with a limit.
#[derive(Serialize, JsonSchema)]
struct UsageReport {
    /// All of it, in bytes.
    size: u64,
    /// Bytes in use.
    used: u64,
}

/// Pinned memory that PyTorch's host allocator has taken from the system.
#[derive(Serialize, JsonSchema)]
struct PinnedReport {
    /// Bytes of all blocks, free ones included.
    reserved: u64,
    /// Blocks by line and size, as far as their requests are known.
    blocks: Vec<PinnedBlocksReport>,
}

/// Pinned blocks of one size for requests of one line.
#[derive(Serialize, JsonSchema)]
struct PinnedBlocksReport {
    /// The line that requested them.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    /// Bytes of each block.
    size: u64,
    /// Requested bytes of each block, on average.
    requested: u64,
    /// Number of blocks.
    count: u64,
}

impl UsageReport {
    fn fullest(usage: impl Iterator<Item = (Bytes, Bytes)>) -> Option<UsageReport> {
        let (size, used) = usage.max_by_key(|(_, used)| *used)?;
        Some(UsageReport { size: size.0, used: used.0 })
    }
}

impl HostReport {
    /// The host memory of a recording whose lines are frames of this snapshot.
    pub(crate) fn new(host: &HostMemory, snapshot: &Snapshot) -> HostReport {
        let site = |line: &HostLine| line.frame.map(|frame| ReportedSite::of(snapshot, frame));
        let mut lives: BTreeMap<u64, Vec<&WorkerSample>> = BTreeMap::new();
        for worker in host.samples.iter().flat_map(|sample| &sample.workers) {
            lives.entry(worker.pid).or_default().push(worker);
        }
        let private = |sample: Option<&&WorkerSample>| sample.and_then(|of| of.private).map(|bytes| bytes.0);
        let workers = lives.iter().map(|(pid, life)| WorkerReport {
            pid: *pid,
            loader: life.first().and_then(|of| site(host.loaders.get(of.loader)?)),
            peak_rss: life.iter().map(|of| of.rss.0).max().unwrap_or(0),
            first_private: private(life.first()),
            last_private: private(life.last()),
        });
        let shm = host.samples.iter().filter_map(|sample| sample.shm);
        let pinned = |blocks: &PinnedBlocks| PinnedBlocksReport {
            site: site(&blocks.line),
            size: blocks.size.0,
            requested: blocks.requested.0,
            count: blocks.count,
        };
        HostReport {
            samples: host.samples.len(),
            peak_rss: host.peak_rss().0,
            workers: workers.collect(),
            shared_memory: UsageReport::fullest(shm.map(|shm| (shm.size, shm.size - shm.free))),
            limit: UsageReport::fullest(host.samples.iter().filter_map(|sample| sample.closest_limit())),
            pinned: host.pinned.as_ref().map(|of| PinnedReport {
                reserved: of.reserved.0,
                blocks: of.blocks.iter().map(pinned).collect(),
            }),
        }
    }
}
