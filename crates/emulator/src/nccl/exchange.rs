//! How the ranks of a communicator, each a process of its own, hand each other small messages: as files in a directory
//! that all of them can name.
//!
//! A message is written aside and renamed, so that it is there as a whole or not at all. Nobody waits in order to send.
//! Somebody who waits for a message gives up when its sender has left or died, or after [`PATIENCE`].

use super::contents::{Contents, number};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long ranks wait for others that are alive, while nothing arrives.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often somebody who waits looks again, at first and later, and how often for the health of the others.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
const HEALTH_CHECK: Duration = Duration::from_millis(200);

/// What one rank gives to others.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) contents: Contents,
    /// How many turns its sender had finished.
    finished: u64,
}

impl Message {
    fn encode(finished: u64, contents: &Contents) -> Vec<u8> {
        let mut text = finished.to_le_bytes().to_vec();
        contents.encode(&mut text);
        text
    }

    fn decode(mut text: &[u8]) -> Option<Message> {
        let finished = number(&mut text)?;
        Some(Message { contents: Contents::decode(text)?, finished })
    }
}

/// Why a message did not come.
#[derive(Debug)]
pub(super) enum Failure {
    Aborted,
    /// Nothing came for [`PATIENCE`] from these ranks.
    Late(Vec<usize>),
    /// These ranks left or died.
    Gone(Vec<usize>),
    Disk(io::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Failure::Aborted => write!(to, "the communicator was aborted"),
            Failure::Late(ranks) => {
                write!(to, "ranks {ranks:?} did not come within {} s", PATIENCE.as_secs())
            }
            Failure::Gone(ranks) => write!(to, "ranks {ranks:?} are not running any more"),
            Failure::Disk(error) => write!(to, "{error}"),
        }
    }
}

/// One rank's place in the directory.
pub(super) struct Exchange {
    directory: PathBuf,
    rank: usize,
    size: usize,
    /// The process that came here; its forks have no part in it.
    process: u32,
    counts: Mutex<Counts>,
    /// The ranks' processes, once everybody has come.
    processes: OnceLock<Vec<i32>>,
    aborted: AtomicBool,
}

#[derive(Default)]
struct Counts {
    turns: u64,
    finished: u64,
    /// Turns whose messages were removed.
    removed: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
}

impl Exchange {
    pub(super) fn new(directory: PathBuf, rank: usize, size: usize) -> io::Result<Exchange> {
        fs::create_dir_all(&directory)?;
        let counts = Counts { sent: vec![0; size], received: vec![0; size], ..Counts::default() };
        Ok(Exchange {
            directory,
            rank,
            size,
            process: std::process::id(),
            counts: Mutex::new(counts),
            processes: OnceLock::new(),
            aborted: AtomicBool::new(false),
        })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn_file(&self, turn: u64, rank: usize) -> PathBuf {
        self.directory.join(format!("turn-{turn}-rank-{rank}"))
    }

    fn letter_file(&self, from: usize, to: usize, number: u64) -> PathBuf {
        self.directory.join(format!("from-{from}-to-{to}-{number}"))
    }

    fn gone_file(&self, rank: usize) -> PathBuf {
        self.directory.join(format!("gone-{rank}"))
    }

    fn write(&self, path: &Path, text: &[u8]) -> Result<(), Failure> {
        let aside = path.with_extension("writing");
        fs::write(&aside, text).and_then(|()| fs::rename(&aside, path)).map_err(Failure::Disk)
    }

    /// Gives this rank's part in the next turn, in which all ranks take part; which turn it is.
    pub(super) fn take_part(&self, contents: &Contents) -> Result<u64, Failure> {
        let (turn, finished) = {
            let mut counts = self.counts();
            counts.turns += 1;
            (counts.turns - 1, counts.finished)
        };
        self.write(&self.turn_file(turn, self.rank), &Message::encode(finished, contents))?;
        Ok(turn)
    }

    /// Everybody's part in a turn, by rank.
    pub(super) fn collect(&self, turn: u64) -> Result<Vec<Message>, Failure> {
        let senders: Vec<(usize, PathBuf)> =
            (0..self.size).map(|rank| (rank, self.turn_file(turn, rank))).collect();
        let messages = self.wait(&senders)?;
        // What everybody has finished with is nobody's to read any more.
        let finished_by_all = messages.iter().map(|message| message.finished).min().unwrap_or(0);
        let to_remove = {
            let mut counts = self.counts();
            counts.finished = turn + 1;
            let first = counts.removed;
            counts.removed = first.max(finished_by_all);
            first..finished_by_all
        };
        for turn in to_remove {
            let _ = fs::remove_file(self.turn_file(turn, self.rank));
        }
        Ok(messages)
    }

    /// The first turn: everybody says which process it is.
    pub(super) fn introduce(&self) -> Result<u64, Failure> {
        self.take_part(&Contents::known(self.process.to_le_bytes().to_vec()))
    }

    pub(super) fn meet(&self, turn: u64) -> Result<(), Failure> {
        let process = |message: &Message| {
            message.contents.bytes().try_into().map_or(0, |bytes| u32::from_le_bytes(bytes) as i32)
        };
        let processes = self.collect(turn)?.iter().map(process).collect();
        let _ = self.processes.set(processes);
        Ok(())
    }

    /// A message from one rank to another, which may be the same.
    pub(super) fn send(&self, to: usize, contents: &Contents) -> Result<(), Failure> {
        let number = next(&mut self.counts().sent, to);
        self.write(&self.letter_file(self.rank, to, number), &Message::encode(0, contents))
    }

    /// Which message a rank receives next from another.
    pub(super) fn expect(&self, from: usize) -> u64 {
        next(&mut self.counts().received, from)
    }

    pub(super) fn receive(&self, from: usize, number: u64) -> Result<Message, Failure> {
        let path = self.letter_file(from, self.rank, number);
        let message = self.wait(&[(from, path.clone())])?.pop().ok_or(Failure::Aborted)?;
        let _ = fs::remove_file(path);
        Ok(message)
    }

    /// Waits until all these messages are there.
    fn wait(&self, senders: &[(usize, PathBuf)]) -> Result<Vec<Message>, Failure> {
        let mut messages: Vec<Option<Message>> = vec![None; senders.len()];
        let mut last_progress = Instant::now();
        let mut last_check = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            if self.look(senders, &mut messages)? {
                (last_progress, pause) = (Instant::now(), FIRST_PAUSE);
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
                return Err(Failure::Aborted);
            }
            if last_progress.elapsed() > PATIENCE {
                return Err(Failure::Late(missing));
            }
            if last_check.elapsed() > HEALTH_CHECK {
                last_check = Instant::now();
                let gone: Vec<usize> = missing.iter().copied().filter(|&rank| self.is_gone(rank)).collect();
                // A rank may have sent its message just before it left.
                if !gone.is_empty() && !self.look(senders, &mut messages)? {
                    return Err(Failure::Gone(gone));
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Reads the messages that have come; whether any had.
    fn look(&self, senders: &[(usize, PathBuf)], messages: &mut [Option<Message>]) -> Result<bool, Failure> {
        let mut any = false;
        for ((_, path), message) in senders.iter().zip(messages).filter(|(_, message)| message.is_none()) {
            match fs::read(path) {
                Ok(text) => {
                    *message = Message::decode(&text);
                    any = true;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::Disk(error)),
            }
        }
        Ok(any)
    }

    /// Whether a rank has left or its process has ended.
    fn is_gone(&self, rank: usize) -> bool {
        let process = self.processes.get().and_then(|all| all.get(rank)).copied().unwrap_or(0);
        let dead = process > 0
            && unsafe { libc::kill(process, 0) } != 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        dead || self.gone_file(rank).exists()
    }

    /// Lets those who wait here give up.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Relaxed);
    }

    /// Leaves; the last one removes the directory.
    pub(super) fn leave(&self) {
        if std::process::id() != self.process {
            return;
        }
        let _ = fs::write(self.gone_file(self.rank), []);
        if (0..self.size).all(|rank| self.is_gone(rank)) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Counts up and gives the number before.
fn next(counts: &mut [u64], at: usize) -> u64 {
    match counts.get_mut(at) {
        Some(count) => {
            *count += 1;
            *count - 1
        }
        None => 0,
    }
}
