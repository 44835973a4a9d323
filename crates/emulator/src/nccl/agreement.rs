//! Finds out that ranks will wait for each other forever, as they would on real cards.
//!
//! The ranks of a communicator have to call the same collectives in the same order. Each of them logs its
//! calls in a file, and compares the log with those of the others whenever it waits. If the calls are the
//! same, but every process of the run waits for a message and none has arrived for a while, none will.

use super::communicator::RENDEZVOUS_VARIABLE;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long every process has to wait before the run counts as deadlocked.
const DEADLOCK_AFTER: Duration = Duration::from_secs(5);

/// File with the number of ranks that run, from oomph's Python part.
const PROCESSES_FILE: &str = "processes";

/// Processes that are named in a message.
const MAX_SHOWN: usize = 4;

/// This process in messages: the rank that its launcher gave it.
pub(super) fn own_name() -> String {
    match std::env::var("RANK") {
        Ok(rank) => format!("rank {rank}"),
        Err(_) => format!("process {}", std::process::id()),
    }
}

/// Calls of one rank on a communicator.
pub(super) struct CallLog {
    directory: PathBuf,
    rank: usize,
    calls: Mutex<LoggedCalls>,
}

#[derive(Default)]
struct LoggedCalls {
    file: Option<File>,
    own: Vec<String>,
    /// How far the logs of other ranks have been compared: calls, and bytes of the file.
    compared: BTreeMap<usize, (usize, u64)>,
}

impl CallLog {
    pub(super) fn new(directory: &Path, rank: usize) -> CallLog {
        CallLog { directory: directory.to_owned(), rank, calls: Mutex::default() }
    }

    fn path(&self, rank: usize) -> PathBuf {
        self.directory.join(format!("calls-{rank}"))
    }

    /// Logs a call, for the other ranks to see.
    pub(super) fn add(&self, call: &str) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.file.is_none() {
            calls.file = OpenOptions::new().create(true).append(true).open(self.path(self.rank)).ok();
        }
        let line = format!("{call}\t{}\n", own_name());
        if let Some(file) = &mut calls.file {
            let _ = file.write_all(line.as_bytes());
        }
        calls.own.push(call.to_owned());
    }

    /// The call that this rank is in.
    pub(super) fn last(&self) -> String {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.own.last().cloned().unwrap_or_else(|| "ncclCommInitRank".to_owned())
    }

    /// The first call in which one of these ranks differs from this one, in words.
    pub(super) fn difference(&self, ranks: impl Iterator<Item = usize>) -> Option<String> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let LoggedCalls { own, compared, .. } = &mut *calls;
        for rank in ranks.filter(|&rank| rank != self.rank) {
            let (count, at) = compared.entry(rank).or_default();
            let Ok(mut file) = File::open(self.path(rank)) else { continue };
            let mut text = String::new();
            if file.seek(SeekFrom::Start(*at)).is_err() || file.read_to_string(&mut text).is_err() {
                continue;
            }
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let Some(mine) = own.get(*count) else { break };
                let (theirs, name) = line.trim_end().split_once('\t').unwrap_or((line.trim_end(), ""));
                if theirs != mine {
                    return Some(format!(
                        "the ranks call different collectives: {} calls {mine}, {name} calls {theirs} \
                         (call {} of this group)",
                        own_name(),
                        *count + 1
                    ));
                }
                *count += 1;
                *at += line.len() as u64;
            }
        }
        None
    }
}

/// What the processes of a run wait for.
pub(super) struct Agreement {
    /// Folder that the processes of the run share, if they were started as one.
    shared: Option<PathBuf>,
    is_waiting: Cell<bool>,
}

impl Agreement {
    pub(super) fn new() -> Agreement {
        let shared = std::env::var_os(RENDEZVOUS_VARIABLE).map(PathBuf::from);
        Agreement { shared, is_waiting: Cell::new(false) }
    }

    /// Registers this process: the others are deadlocked only if it waits as well.
    pub(super) fn join(&self) {
        if let Some(shared) = &self.shared {
            let _ = fs::write(shared.join(format!("process-{}", std::process::id())), []);
        }
    }

    pub(super) fn stop_waiting(&self) {
        if let Some(shared) = &self.shared
            && self.is_waiting.replace(false)
        {
            let _ = fs::remove_file(waiting_file(shared, &std::process::id().to_string()));
        }
    }

    /// Returns who waits for what if all processes of the run have been waiting for a while.
    pub(super) fn deadlock(&self, idle: Duration, waits_for: impl Fn() -> String) -> Option<String> {
        let shared = self.shared.as_ref().filter(|_| idle >= DEADLOCK_AFTER)?;
        if !self.is_waiting.replace(true) {
            let text = format!("{} waits in {}", own_name(), waits_for());
            let _ = fs::write(waiting_file(shared, &std::process::id().to_string()), text);
            return None;
        }
        // A process that is still starting does not wait. Without a launcher of ours, nobody knows how many
        // there are.
        let processes: usize = fs::read_to_string(shared.join(PROCESSES_FILE)).ok()?.trim().parse().ok()?;
        let names: Vec<String> = fs::read_dir(shared)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        let waiting: Vec<String> = names
            .iter()
            .filter_map(|name| name.strip_prefix("process-"))
            .filter(|process| is_alive(process))
            .map(|process| fs::read_to_string(waiting_file(shared, process)).ok())
            .collect::<Option<Vec<String>>>()?;
        if waiting.len() < processes {
            return None;
        }
        let more = waiting.len().saturating_sub(MAX_SHOWN);
        let mut shown: Vec<String> = waiting.into_iter().take(MAX_SHOWN).collect();
        if more > 0 {
            shown.push(format!("and {more} more"));
        }
        Some(format!("all ranks wait for each other: {}", shown.join("; ")))
    }
}

impl Drop for Agreement {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

/// File in which a process says what it waits for.
fn waiting_file(shared: &Path, process: &str) -> PathBuf {
    shared.join(format!("waiting-{process}"))
}

fn is_alive(process: &str) -> bool {
    process.parse().is_ok_and(|process: i32| unsafe { libc::kill(process, 0) } == 0)
}
