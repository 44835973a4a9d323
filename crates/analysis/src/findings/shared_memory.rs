//! `/dev/shm` nearly full: data loader workers hand over batches through it.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::words::{percent, share};
use recording::{HostMemory, HostSample, SharedMemory};
use snapshot::Bytes;

/// Share in use from which it is reported.
const MIN_SHARE: f64 = 0.9;
/// Share from which the severity is high: a batch may be larger than the rest.
const HIGH_SHARE: f64 = 0.97;

/// The fullest moment of `/dev/shm`.
pub(super) struct SharedMemoryFacts {
    shm: SharedMemory,
    /// Shared memory that the process and its workers map; what several map is counted once for each.
    mapped: Bytes,
    workers: u64,
    /// The data loader with the most workers then.
    line: NamedSite,
}

/// The facts, if there was hardly any room in `/dev/shm`.
pub(super) fn measure(model: &RunModel<'_>, host: &HostMemory) -> Option<SharedMemoryFacts> {
    let used = |sample: &HostSample| sample.shm.map_or(0.0, |shm| share(shm.size - shm.free, shm.size));
    let fullest = host.samples.iter().max_by(|a, b| used(a).total_cmp(&used(b)))?;
    if used(fullest) < MIN_SHARE {
        return None;
    }
    let workers = &fullest.workers;
    let loader = (0..host.loaders.len())
        .max_by_key(|&loader| workers.iter().filter(|worker| worker.loader == loader).count());
    Some(SharedMemoryFacts {
        shm: fullest.shm?,
        mapped: fullest.shmem + workers.iter().map(|worker| worker.shmem).sum(),
        workers: workers.len() as u64,
        line: NamedSite::new(model, loader.and_then(|loader| host.loaders[loader].frame)),
    })
}

/// The finding in words.
pub(super) fn describe(facts: &SharedMemoryFacts) -> Finding {
    let SharedMemory { size, free } = facts.shm;
    let used = size - free;
    let ratio = share(used, size);
    let severity = if ratio >= HIGH_SHARE { Severity::High } else { Severity::Medium };
    Finding {
        count: facts.workers,
        site: facts.line.frame,
        details: vec![format!(
            "this process and its workers mapped {} of shared memory; a worker that finds no room is killed \
             by a bus error",
            facts.mapped
        )],
        fix: "make it larger (`docker run --shm-size=16g` or `--ipc=host`; a memory-backed volume at \
              /dev/shm in Kubernetes), or lower `prefetch_factor`, the number of workers or the batch size"
            .to_owned(),
        evidence: vec![
            ("size", EvidenceValue::Bytes(size)),
            ("free", EvidenceValue::Bytes(free)),
            ("mapped", EvidenceValue::Bytes(facts.mapped)),
            ("threshold", EvidenceValue::Ratio(MIN_SHARE)),
        ],
        ..Finding::new(
            FindingKind::SharedMemoryNearlyFull,
            severity,
            format!("{} of /dev/shm was in use", percent(ratio)),
            format!("{used} of {size} of /dev/shm was in use"),
            used,
        )
    }
}
