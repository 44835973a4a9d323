//! Reads all ranks on all cores, within a memory budget.

use crate::arrow::{MAX_SUMMARY_BYTES, RankRecord};
use crate::listing::{RankContent, RankSource, snapshot_stem};
use crate::storage::StoredFile;
use crate::summary::{FINGERPRINT_BYTES, SnapshotIdentity, SummarizedRank, bounded};
use failure::Failure;
use inputs::{Input, ProgressReporter};
use recording::{FileError, SUMMARY_SUFFIX};
use serde::Deserialize;
use snapshot::Bytes;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

/// Largest sidecar file that is read, in bytes.
const MAX_SIDECAR_BYTES: u64 = 256 << 20;
/// Memory that a plain snapshot takes while it is summarized, in multiples of its size; an
/// estimate on the high side.
const MEMORY_PER_BYTE: u64 = 4;
/// The same for a compressed one.
const MEMORY_PER_COMPRESSED_BYTE: u64 = 60;
/// Memory for all snapshots that are read at one time where the system does not say how much it has.
const DEFAULT_BUDGET: u64 = 4 << 30;

/// Reads every rank, in the order of the files. Those that cannot be read say why.
pub fn read(files: &[RankSource], progress: &ProgressReporter) -> Vec<RankRecord> {
    let total = files.iter().map(|file| file.file.bytes).sum();
    let budget = MemoryBudget::new(memory_budget());
    let advance: Advance = Arc::from((progress.bytes)("reading ranks", total));
    let lost = |file: &RankSource| RankRecord {
        source: file.file.name.clone(),
        summary: Err("was not read: its thread ended early".to_owned()),
    };
    let records = on_all_cores(files, |file| record(file, &budget, &advance));
    records.into_iter().zip(files).map(|(record, file)| record.unwrap_or_else(|| lost(file))).collect()
}

/// Returns what a function gives for each file, with as many threads as there are cores; `None` where a
/// thread ended early.
fn on_all_cores<T: Send + Sync>(
    files: &[RankSource],
    answer: impl Fn(&RankSource) -> T + Sync,
) -> Vec<Option<T>> {
    let next = AtomicUsize::new(0);
    let answers: Vec<OnceLock<T>> = files.iter().map(|_| OnceLock::new()).collect();
    let workers = available_parallelism().map_or(1, usize::from).min(files.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(index) else { break };
                    answers[index].get_or_init(|| answer(file));
                }
            });
        }
    });
    answers.into_iter().map(OnceLock::into_inner).collect()
}

/// Reads one rank.
pub fn read_one(file: &RankSource, progress: &ProgressReporter) -> RankRecord {
    let advance: Advance = Arc::from((progress.bytes)("reading", file.file.bytes));
    record(file, &MemoryBudget::new(u64::MAX), &advance)
}

/// Returns the number of each rank: from its summary, which knows the rank in the whole job, or from the name
/// of its file where there is none.
pub fn rank_numbers(files: &[RankSource]) -> Vec<Option<u32>> {
    let numbers = on_all_cores(files, |file| summarized_rank(file).or(file.rank_in_name()));
    numbers.into_iter().map(Option::flatten).collect()
}

/// The rank that a summary says, without reading a snapshot.
fn summarized_rank(file: &RankSource) -> Option<u32> {
    let summary = match file.content {
        RankContent::Snapshot { may_have_summary: true } => matching_summary(&file.file)?,
        RankContent::Summary => RankRecord::from_arrow(&whole(&file.file).ok()?).ok()?.summary.ok()?,
        RankContent::Snapshot { may_have_summary: false } | RankContent::Failed => return None,
    };
    summary.place.rank
}

/// Progress in bytes.
type Advance = Arc<dyn Fn(u64) + Send + Sync>;

fn record(file: &RankSource, budget: &MemoryBudget, advance: &Advance) -> RankRecord {
    let (stored, source) = (&file.file, file.file.name.clone());
    let read = match file.content {
        RankContent::Snapshot { may_have_summary } => {
            let matching = if may_have_summary { matching_summary(stored) } else { None };
            let summary = match matching {
                Some(mut summary) => {
                    summary.place.rank = summary.place.rank.or(file.rank_in_name());
                    advance(stored.bytes);
                    Ok(summary)
                }
                None => {
                    let _share = budget.take(memory_needed(stored));
                    summarize_with(stored, file.rank_in_name(), Some(advance))
                }
            };
            return RankRecord { source, summary: summary.map_err(|error| sentence(&error, &stored.name)) };
        }
        RankContent::Summary => whole(stored).and_then(|bytes| RankRecord::from_arrow(&bytes)),
        RankContent::Failed => whole(stored).and_then(|bytes| {
            let note: FailureNote = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
            Ok(RankRecord { source: note.source, summary: Err(bounded(&note.error)) })
        }),
    };
    advance(stored.bytes);
    match read {
        // The summary next to a snapshot does not name it.
        Ok(record) if record.source.is_empty() => RankRecord { source, ..record },
        Ok(record) => record,
        Err(error) => RankRecord { source, summary: Err(error) },
    }
}

/// What a distributed reader says about a rank that none of its tasks could read.
#[derive(Deserialize)]
struct FailureNote {
    source: String,
    error: String,
}

fn whole(file: &StoredFile) -> Result<Vec<u8>, String> {
    if file.bytes > MAX_SUMMARY_BYTES {
        return Err(format!("is not a summary: it has {}", Bytes(file.bytes)));
    }
    if file.bytes == 0 {
        return Err("is empty".to_owned());
    }
    file.read_range(0..file.bytes).map_err(|error| format!("cannot be read: {error}"))
}

/// An error as the end of a sentence that begins with the file's name.
fn sentence(error: &anyhow::Error, name: &str) -> String {
    let (what, cause) = match error.downcast_ref::<Failure>() {
        Some(failure) => (failure.to_string(), failure.cause().map(str::to_owned)),
        None => (format!("cannot be read: {error}"), None),
    };
    let what = what.strip_prefix(&format!("`{name}` ")).unwrap_or(&what);
    bounded(&cause.map_or_else(|| what.to_owned(), |cause| format!("{what}: {cause}")))
}

/// The summary next to a snapshot, if it was made from just this snapshot.
fn matching_summary(file: &StoredFile) -> Option<SummarizedRank> {
    let name = format!("{}.{SUMMARY_SUFFIX}", snapshot_stem(file.file_name()));
    let bytes = file.read_sibling(&name, MAX_SUMMARY_BYTES)?.ok()?;
    let summary = RankRecord::from_arrow(&bytes).ok()?.summary.ok()?;
    (summary.made_from.bytes == file.bytes && identity(file).ok()? == summary.made_from).then_some(summary)
}

/// Size and fingerprint of a file.
fn identity(file: &StoredFile) -> io::Result<SnapshotIdentity> {
    let end = match file.bytes {
        0 => Vec::new(),
        bytes => file.read_range(bytes.saturating_sub(FINGERPRINT_BYTES)..bytes)?,
    };
    Ok(SnapshotIdentity::new(file.bytes, &end))
}

/// Summarizes the snapshot in a file, whether or not there is a summary next to it.
pub fn summarize(file: &RankSource) -> anyhow::Result<SummarizedRank> {
    summarize_with(&file.file, file.rank_in_name(), None)
}

/// Loads the snapshot of a rank with all of its sidecar files.
pub fn load(rank: &RankSource, progress: &ProgressReporter) -> anyhow::Result<Input> {
    let file = &rank.file;
    if let Some(path) = file.local_path() {
        return inputs::load(path, progress);
    }
    let advance: Advance = Arc::from((progress.bytes)("reading", file.bytes));
    load_with(file, Some(&advance), |_| true)
}

fn summarize_with(
    file: &StoredFile,
    rank: Option<u32>,
    advance: Option<&Advance>,
) -> anyhow::Result<SummarizedRank> {
    let made_from = identity(file).map_err(|error| unreadable(file, &error))?;
    // References of the heap name the holder of a leak; the report of a single rank has them.
    let input = load_with(file, advance, |name| !name.ends_with(".heap"))?;
    Ok(SummarizedRank::new(&input, made_from, rank))
}

fn load_with(
    file: &StoredFile,
    advance: Option<&Advance>,
    is_wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<Input> {
    let stream = CountedReader {
        inner: file.open().map_err(|error| unreadable(file, &error))?,
        advance: advance.cloned(),
    };
    let sidecar = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let read = if is_wanted(name) { file.read_sibling(name, MAX_SIDECAR_BYTES) } else { None };
        read.map(|bytes| bytes.map_err(FileError::from))
    };
    inputs::load_stream(file.as_path(), stream, file.bytes, sidecar, &ProgressReporter::SILENT)
}

fn unreadable(file: &StoredFile, error: &io::Error) -> Failure {
    let what = format!("`{}` cannot be read", file.name);
    Failure::new(what, Some(error.to_string()), None).refused(error.kind())
}

/// A reader that reports its progress.
struct CountedReader {
    inner: Box<dyn Read + Send>,
    advance: Option<Advance>,
}

impl Read for CountedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        if let Some(advance) = &self.advance {
            advance(count as u64);
        }
        Ok(count)
    }
}

fn memory_needed(file: &StoredFile) -> u64 {
    let name = file.file_name().to_ascii_lowercase();
    let is_compressed = recording::COMPRESSED_SUFFIXES.iter().any(|ending| name.ends_with(ending));
    file.bytes.saturating_mul(if is_compressed { MEMORY_PER_COMPRESSED_BYTE } else { MEMORY_PER_BYTE })
}

/// Half of the memory that Linux says is available.
fn memory_budget() -> u64 {
    let kib = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    kib().map_or(DEFAULT_BUDGET, |kib| kib.saturating_mul(1024) / 2)
}

/// Memory that threads share.
struct MemoryBudget {
    total: u64,
    taken: Mutex<u64>,
    changed: Condvar,
}

/// Memory that one thread has taken.
struct BudgetShare<'a> {
    budget: &'a MemoryBudget,
    bytes: u64,
}

impl MemoryBudget {
    fn new(total: u64) -> MemoryBudget {
        MemoryBudget { total, taken: Mutex::new(0), changed: Condvar::new() }
    }

    /// Waits until this much is left. A file beyond the whole budget waits for all others, and is read alone.
    fn take(&self, bytes: u64) -> BudgetShare<'_> {
        let bytes = bytes.min(self.total);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken > self.total - bytes {
            taken = self.changed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += bytes;
        BudgetShare { budget: self, bytes }
    }
}

impl Drop for BudgetShare<'_> {
    fn drop(&mut self) {
        *self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.budget.changed.notify_all();
    }
}
