//! Workers of a data loader whose private memory grows while they work: forked workers share the dataset with
//! their parent, and copy each page in which a reference count changes.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::words::{counted, share};
use recording::{HostMemory, WorkerSample};
use snapshot::Bytes;
use std::collections::BTreeMap;

/// Samples of a worker's life that a trend takes.
const MIN_SAMPLES: usize = 3;
/// Growth of each worker from which it is reported: the interpreter's own objects are copied as well, some
/// tens of MiB.
const MIN_COPIED: Bytes = Bytes(64 << 20);
/// The same for memory that workers allocate themselves, such as buffers and caches.
const MIN_ALLOCATED: Bytes = Bytes(256 << 20);
/// Share of the growth in the second half of the samples. What workers need to get going is there early.
const MIN_LATE_SHARE: f64 = 0.2;
/// Bytes of all workers from which the severity is medium.
const MEDIUM_BYTES: Bytes = Bytes(1 << 30);

/// Growth of the workers of one data loader, in numbers.
pub(super) struct WorkerGrowthFacts {
    line: NamedSite,
    /// Growth of each worker, by process ID.
    workers: Vec<(u64, WorkerGrowth)>,
    /// Seconds between the first and the last sample of a worker.
    seconds: u64,
}

/// Growth of one worker from its first sample to its last.
#[derive(Clone, Copy, Default)]
struct WorkerGrowth {
    private: Bytes,
    /// Part of it that the worker shared with its parent before.
    copied: Bytes,
    late: Bytes,
    end: Bytes,
}

/// A worker at one time: microseconds, what the kernel counts, its private memory.
type LifeSample = (i64, WorkerSample, Bytes);
type Life = Vec<LifeSample>;

/// The facts, for the data loader whose workers have grown most.
pub(super) fn measure(model: &RunModel<'_>, host: &HostMemory) -> Option<WorkerGrowthFacts> {
    let mut lives: BTreeMap<(usize, u64), Life> = BTreeMap::new();
    for sample in &host.samples {
        for worker in &sample.workers {
            if let Some(private) = worker.private {
                lives.entry((worker.loader, worker.pid)).or_default().push((
                    sample.time_us,
                    *worker,
                    private,
                ));
            }
        }
    }
    // Workers of one epoch end together; those of the next begin with what they share.
    let mut epochs: BTreeMap<(usize, i64), Vec<(u64, &Life)>> = BTreeMap::new();
    for ((loader, pid), life) in lives.iter().filter(|(_, life)| life.len() >= MIN_SAMPLES) {
        epochs.entry((*loader, life[0].0)).or_default().push((*pid, life));
    }
    let (loader, epoch, total) = epochs
        .iter()
        .map(|((loader, _), workers)| {
            (*loader, workers, workers.iter().map(|(_, life)| growth(life).private).sum::<Bytes>())
        })
        .max_by_key(|(_, _, total)| *total)?;
    let facts = WorkerGrowthFacts {
        line: NamedSite::new(model, host.loaders.get(loader).and_then(|line| line.frame)),
        seconds: epoch.iter().map(|(_, life)| seconds(life)).max()?,
        workers: epoch.iter().map(|(pid, life)| (*pid, growth(life))).collect(),
    };
    let limit = if facts.is_copied() { MIN_COPIED } else { MIN_ALLOCATED };
    let late = share(facts.sum(|worker| worker.late), total);
    (total.0 >= limit.0 * facts.workers.len() as u64 && late >= MIN_LATE_SHARE).then_some(facts)
}

fn growth(life: &Life) -> WorkerGrowth {
    let (first, middle, last) = (&life[0], &life[life.len() / 2], &life[life.len() - 1]);
    let (private, copied) = growth_between(first, last);
    WorkerGrowth { private, copied, late: growth_between(middle, last).0, end: last.2 }
}

/// Private memory that a worker took, and the part of it that it copied. Memory also becomes private when the
/// parent copies or frees its side of it, which costs the worker no page fault and is left out.
fn growth_between(first: &LifeSample, last: &LifeSample) -> (Bytes, Bytes) {
    let shared = |(_, worker, private): &LifeSample| worker.rss - *private;
    let private = last.2 - first.2;
    let no_longer_shared = private.min(shared(first) - shared(last));
    let copied = match (first.1.faulted, last.1.faulted) {
        (Some(before), Some(after)) => no_longer_shared.min(after - before),
        _ => no_longer_shared,
    };
    (private - (no_longer_shared - copied), copied)
}

fn seconds(life: &Life) -> u64 {
    u64::try_from((life[life.len() - 1].0 - life[0].0) / 1_000_000).unwrap_or(0)
}

impl WorkerGrowthFacts {
    fn sum(&self, of: fn(&WorkerGrowth) -> Bytes) -> Bytes {
        self.workers.iter().map(|(_, worker)| of(worker)).sum()
    }

    /// Whether most of it was shared with the parent before.
    fn is_copied(&self) -> bool {
        self.sum(|worker| worker.copied).0 * 2 >= self.sum(|worker| worker.private).0
    }
}

/// The finding in words.
pub(super) fn describe(facts: &WorkerGrowthFacts) -> Finding {
    let grown = facts.sum(|worker| worker.private);
    let count = facts.workers.len() as u64;
    let each = Bytes(grown.0 / count.max(1));
    let seconds = facts.seconds;
    let severity = if grown >= MEDIUM_BYTES { Severity::Medium } else { Severity::Low };
    let who = counted(count, "data loader worker");
    let summary = format!("the private memory of {who} grew by {grown} in {seconds} s, {each} each");
    let (details, fix) = if facts.is_copied() {
        (
            "their resident memory stayed the same: they copied pages that they shared with their parent. \
             Python writes a reference count into every object that it reads, and a write copies the page",
            "keep the dataset in a few large arrays (NumPy, torch, Arrow, or bytes with offsets) instead of \
             lists or dictionaries of Python objects, or use fewer workers",
        )
    } else {
        (
            "their resident memory grew as well: what they allocate stays alive",
            "look for what the dataset keeps from one item to the next (caches, open files, lists), or use \
             fewer workers",
        )
    };
    let workers = facts.workers.iter().map(|(pid, worker)| {
        EvidenceValue::Record(vec![
            ("pid", EvidenceValue::Pid(*pid)),
            ("private", EvidenceValue::Bytes(worker.end)),
            ("growth", EvidenceValue::Bytes(worker.private)),
            ("copied", EvidenceValue::Bytes(worker.copied)),
        ])
    });
    Finding {
        count,
        site: facts.line.frame,
        details: vec![details.to_owned()],
        fix: fix.to_owned(),
        evidence: vec![
            ("seconds", EvidenceValue::Count(seconds)),
            ("copied", EvidenceValue::Bytes(facts.sum(|worker| worker.copied))),
            ("workers", EvidenceValue::List(workers.collect())),
            ("threshold", EvidenceValue::Bytes(if facts.is_copied() { MIN_COPIED } else { MIN_ALLOCATED })),
        ],
        ..Finding::new(
            FindingKind::WorkerGrowth,
            severity,
            format!("{each} per worker, and it still grew in the second half"),
            summary,
            grown,
        )
    }
}
