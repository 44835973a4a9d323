//! Exchange of small messages between the ranks of a communicator, each a separate process, as files in a
//! directory known to all of them.
//!
//! A message is written under another name and then renamed, so it is either complete or absent. Sending
//! never waits. A rank that waits for a message gives up when its sender has left or died, when the ranks
//! call different collectives or all wait for each other ([`super::agreement`]), or after
//! [`MESSAGE_TIMEOUT`].
//!
//! A predicted job runs only some of its ranks. Each of the others has a stand-in among those that run, whose
//! messages count as its own ([`super::stand_ins`]).

use super::agreement::{Agreement, CallLog};
use super::contents::{BufferContents, number};
use super::stand_ins::StandIns;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank waits for running ranks while no message arrives.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// First and longest interval between checks for messages, and interval between checks whether the other
/// ranks are alive.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(2);
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Message from one rank to others.
#[derive(Clone, Debug)]
pub(super) struct RankMessage {
    pub(super) contents: BufferContents,
    /// Number of rounds that its sender had finished.
    finished: u64,
}

impl RankMessage {
    fn encode(finished: u64, contents: &BufferContents) -> Vec<u8> {
        let mut text = finished.to_le_bytes().to_vec();
        contents.encode(&mut text);
        text
    }

    fn decode(mut text: &[u8]) -> Option<RankMessage> {
        let finished = number(&mut text)?;
        Some(RankMessage { contents: BufferContents::decode(text)?, finished })
    }
}

/// Reason why a message did not arrive.
#[derive(Debug)]
pub(super) enum ExchangeFailure {
    Aborted,
    /// No message arrived from these ranks for [`MESSAGE_TIMEOUT`].
    TimedOut(Vec<usize>),
    /// These ranks left or died.
    Exited(Vec<usize>),
    /// The ranks call different collectives, or wait for each other forever: who does what.
    Disagreement(String),
    Io(io::Error),
}

impl std::fmt::Display for ExchangeFailure {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            ExchangeFailure::Aborted => write!(to, "the communicator was aborted"),
            ExchangeFailure::TimedOut(ranks) => {
                write!(to, "no message from ranks {ranks:?} within {} s", MESSAGE_TIMEOUT.as_secs())
            }
            ExchangeFailure::Exited(ranks) => write!(to, "ranks {ranks:?} have exited"),
            ExchangeFailure::Disagreement(text) => write!(to, "{text}"),
            ExchangeFailure::Io(error) => write!(to, "{error}"),
        }
    }
}

/// One rank's end of the exchange.
pub(super) struct Exchange {
    directory: PathBuf,
    rank: usize,
    size: usize,
    /// Process that created the exchange; its forks do not take part.
    process: u32,
    counts: Mutex<RoundCounts>,
    stand_ins: StandIns,
    /// Collectives that this rank has called, for the others to compare with theirs.
    calls: CallLog,
    /// Process IDs of the ranks, once all of them have joined.
    processes: OnceLock<Vec<i32>>,
    aborted: AtomicBool,
}

#[derive(Default)]
struct RoundCounts {
    rounds: u64,
    finished: u64,
    /// Number of rounds whose messages were removed.
    removed: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Last message to a rank that does not run, by its length.
    mirrored: BTreeMap<usize, BufferContents>,
}

impl Exchange {
    pub(super) fn new(directory: PathBuf, rank: usize, size: usize) -> io::Result<Exchange> {
        fs::create_dir_all(&directory)?;
        let stand_ins = StandIns::read(&directory, rank, size);
        let calls = CallLog::new(&directory, rank);
        Agreement::new().join();
        let counts = RoundCounts { sent: vec![0; size], received: vec![0; size], ..RoundCounts::default() };
        Ok(Exchange {
            directory,
            rank,
            size,
            process: std::process::id(),
            counts: Mutex::new(counts),
            stand_ins,
            calls,
            processes: OnceLock::new(),
            aborted: AtomicBool::new(false),
        })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Notes that this rank calls a collective; `shape` is what all ranks have to agree on.
    pub(super) fn log_call(&self, shape: &str) {
        self.calls.add(shape);
    }

    /// Whether a rank runs, as opposed to having a stand-in.
    pub(super) fn is_present(&self, rank: usize) -> bool {
        self.stand_ins.of(rank) == rank
    }

    fn counts(&self) -> MutexGuard<'_, RoundCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn round_file(&self, round: u64, rank: usize) -> PathBuf {
        self.directory.join(format!("round-{round}-rank-{rank}"))
    }

    fn message_file(&self, from: usize, to: usize, number: u64) -> PathBuf {
        self.directory.join(format!("from-{from}-to-{to}-{number}"))
    }

    fn exit_file(&self, rank: usize) -> PathBuf {
        self.directory.join(format!("exited-{rank}"))
    }

    fn write(&self, path: &Path, text: &[u8]) -> Result<(), ExchangeFailure> {
        let aside = path.with_extension("writing");
        fs::write(&aside, text).and_then(|()| fs::rename(&aside, path)).map_err(ExchangeFailure::Io)
    }

    /// Contributes this rank's part to the next round, in which all ranks take part; returns the round.
    pub(super) fn contribute(&self, contents: &BufferContents) -> Result<u64, ExchangeFailure> {
        let (round, finished) = {
            let mut counts = self.counts();
            counts.rounds += 1;
            (counts.rounds - 1, counts.finished)
        };
        self.write(&self.round_file(round, self.rank), &RankMessage::encode(finished, contents))?;
        Ok(round)
    }

    /// All ranks' parts of a round, by rank.
    pub(super) fn collect(&self, round: u64) -> Result<Vec<RankMessage>, ExchangeFailure> {
        let senders: Vec<(usize, PathBuf)> =
            self.stand_ins.present(self.size).map(|rank| (rank, self.round_file(round, rank))).collect();
        let messages = self.wait(&senders)?;
        if let Some(difference) = self.calls.difference(senders.iter().map(|(rank, _)| *rank)) {
            return Err(ExchangeFailure::Disagreement(difference));
        }
        // Rounds that all ranks have finished will not be read again.
        let finished_by_all = messages.iter().map(|message| message.finished).min().unwrap_or(0);
        let to_remove = {
            let mut counts = self.counts();
            counts.finished = round + 1;
            let first = counts.removed;
            counts.removed = first.max(finished_by_all);
            first..finished_by_all
        };
        for round in to_remove {
            let _ = fs::remove_file(self.round_file(round, self.rank));
        }
        let by_rank: BTreeMap<usize, &RankMessage> =
            senders.iter().map(|(rank, _)| *rank).zip(&messages).collect();
        Ok((0..self.size)
            .filter_map(|rank| by_rank.get(&self.stand_ins.of(rank)).copied().cloned())
            .collect())
    }

    /// Announces this rank's process ID, in the first round.
    pub(super) fn announce(&self) -> Result<u64, ExchangeFailure> {
        self.contribute(&BufferContents::known(self.process.to_le_bytes().to_vec()))
    }

    pub(super) fn finish_init(&self, round: u64) -> Result<(), ExchangeFailure> {
        let process = |message: &RankMessage| {
            message.contents.bytes().try_into().map_or(0, |bytes| u32::from_le_bytes(bytes) as i32)
        };
        let processes = self.collect(round)?.iter().map(process).collect();
        let _ = self.processes.set(processes);
        Ok(())
    }

    /// Sends a message to a rank, possibly this one.
    pub(super) fn send(&self, to: usize, contents: &BufferContents) -> Result<(), ExchangeFailure> {
        if !self.is_present(to) {
            self.counts().mirrored.insert(contents.bytes().len(), contents.clone());
            return Ok(());
        }
        let number = next(&mut self.counts().sent, to);
        self.write(&self.message_file(self.rank, to, number), &RankMessage::encode(0, contents))
    }

    /// Number of the next message to receive from a rank.
    pub(super) fn expect(&self, from: usize) -> u64 {
        next(&mut self.counts().received, from)
    }

    /// Receives a message of `bytes` bytes.
    pub(super) fn receive(
        &self,
        from: usize,
        number: u64,
        bytes: usize,
    ) -> Result<RankMessage, ExchangeFailure> {
        if !self.is_present(from) {
            // Ranks that are alike send alike: what this rank has sent is what it would get.
            let contents = self.counts().mirrored.get(&bytes).cloned().unwrap_or_default();
            return Ok(RankMessage { contents, finished: 0 });
        }
        let path = self.message_file(from, self.rank, number);
        let message = self.wait(&[(from, path.clone())])?.pop().ok_or(ExchangeFailure::Aborted)?;
        let _ = fs::remove_file(path);
        Ok(message)
    }

    /// Waits until all these messages have arrived.
    fn wait(&self, senders: &[(usize, PathBuf)]) -> Result<Vec<RankMessage>, ExchangeFailure> {
        let mut messages: Vec<Option<RankMessage>> = vec![None; senders.len()];
        let mut last_progress = Instant::now();
        let mut last_check = Instant::now();
        let mut pause = MIN_POLL_INTERVAL;
        let agreement = Agreement::new();
        loop {
            if self.read_arrived(senders, &mut messages)? {
                (last_progress, pause) = (Instant::now(), MIN_POLL_INTERVAL);
                agreement.stop_waiting();
            }
            let missing: Vec<usize> = senders
                .iter()
                .zip(&messages)
                .filter(|(_, got)| got.is_none())
                .map(|((rank, _), _)| *rank)
                .collect();
            if missing.is_empty() {
                return Ok(messages.into_iter().flatten().collect());
            }
            if self.aborted.load(Relaxed) {
                return Err(ExchangeFailure::Aborted);
            }
            if last_progress.elapsed() > MESSAGE_TIMEOUT {
                return Err(ExchangeFailure::TimedOut(missing));
            }
            if last_check.elapsed() > LIVENESS_CHECK_INTERVAL {
                last_check = Instant::now();
                let exited: Vec<usize> =
                    missing.iter().copied().filter(|&rank| self.has_exited(rank)).collect();
                // A rank may have sent its message just before it left.
                if !exited.is_empty() && !self.read_arrived(senders, &mut messages)? {
                    return Err(ExchangeFailure::Exited(exited));
                }
                if let Some(difference) = self.calls.difference(missing.iter().copied()) {
                    return Err(ExchangeFailure::Disagreement(difference));
                }
                let waits_for = || format!("{}, for ranks {missing:?} of its group", self.calls.last());
                if let Some(all) = agreement.deadlock(last_progress.elapsed(), waits_for) {
                    return Err(ExchangeFailure::Disagreement(all));
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Reads the messages that have arrived; returns whether there were any.
    fn read_arrived(
        &self,
        senders: &[(usize, PathBuf)],
        messages: &mut [Option<RankMessage>],
    ) -> Result<bool, ExchangeFailure> {
        let mut any = false;
        for ((_, path), message) in senders.iter().zip(messages).filter(|(_, message)| message.is_none()) {
            match fs::read(path) {
                Ok(text) => {
                    *message = RankMessage::decode(&text);
                    any = true;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(ExchangeFailure::Io(error)),
            }
        }
        Ok(any)
    }

    /// Whether a rank has left or its process has ended.
    fn has_exited(&self, rank: usize) -> bool {
        let process = self.processes.get().and_then(|all| all.get(rank)).copied().unwrap_or(0);
        let dead = process > 0
            && unsafe { libc::kill(process, 0) } != 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        dead || self.exit_file(rank).exists()
    }

    /// Makes waiting calls give up.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Relaxed);
    }

    /// Leaves; the last rank removes the directory.
    pub(super) fn leave(&self) {
        if std::process::id() != self.process {
            return;
        }
        let _ = fs::write(self.exit_file(self.rank), []);
        if self.stand_ins.present(self.size).all(|rank| self.has_exited(rank)) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Increments a count and returns its previous value.
fn next(counts: &mut [u64], at: usize) -> u64 {
    match counts.get_mut(at) {
        Some(count) => {
            *count += 1;
            *count - 1
        }
        None => 0,
    }
}
