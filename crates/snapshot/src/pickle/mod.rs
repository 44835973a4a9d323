//! Pickle reader that can only build plain data.
//!
//! The machine has every opcode of protocols 0 to 5 that plain data needs. The others (import a name,
//! call it, ask for a persistent object) end the reading with an error that gives the name and its
//! position. Dictionaries that are events, blocks, segments or frames become rows of the tables as soon
//! as they are complete, so no tree of values is ever built. For the dictionary shape that makes up
//! nearly all of a real file, `events` does this without the machine.

mod chunks;
mod decoder;
mod describe;
mod events;
mod lower;
mod machine;
mod nodes;
mod number;
mod scan;
mod stack_cache;
mod template;
mod value;

use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::window::{MAX_CHUNK, StreamWindow};
use chunks::ParallelDecoding;
use machine::Machine;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Reads a snapshot from a pickle stream. `expected` is its length in bytes, if known: a long stream is
/// read ahead by another thread, and a very long one is decoded by several.
pub(crate) fn read(stream: impl Read + Send, expected: Option<u64>) -> Result<Snapshot, Error> {
    let Some(length) = expected.filter(|&length| length > READ_AHEAD_MIN_BYTES) else {
        return Machine::new(StreamWindow::new(stream)).snapshot();
    };
    let reader = ActiveReader::new();
    let threads = if length >= PARALLEL_MIN_BYTES { reader.threads() } else { 1 };
    let chunk = match threads {
        1 => MAX_CHUNK,
        _ => (threads * THREAD_CHUNK_BYTES).min((length / BUFFER_SHARE) as usize),
    };
    thread::scope(|scope| {
        let mut machine = Machine::new(StreamWindow::ahead(stream, chunk, scope));
        machine.parallel = (threads > 1).then(|| ParallelDecoding::new(threads, MIN_THREAD_CHUNK_BYTES));
        machine.expect(length);
        machine.snapshot()
    })
}

/// Stream length in bytes from which a thread reads ahead.
const READ_AHEAD_MIN_BYTES: u64 = 1 << 20;
/// Stream length in bytes from which several threads decode. Shorter ones take less than a tenth of a second.
const PARALLEL_MIN_BYTES: u64 = 128 << 20;
/// Fewer threads than this lose more time putting chunks together than they save.
const MIN_THREADS: usize = 6;
/// More threads than this would wait for the one that puts the chunks together.
const MAX_THREADS: usize = 16;
/// Bytes per thread that are read and decoded at a time.
const THREAD_CHUNK_BYTES: usize = 512 << 10;
/// Bytes that are worth a thread.
const MIN_THREAD_CHUNK_BYTES: usize = 64 << 10;
/// Part of a stream that one of the three buffers may take.
const BUFFER_SHARE: u64 = 32;

/// Number of long streams that are being read: they share the cores.
static ACTIVE_READERS: AtomicUsize = AtomicUsize::new(0);

/// A long stream that is being read.
struct ActiveReader {
    /// Number of streams that are being read, this one included.
    active: usize,
}

impl ActiveReader {
    fn new() -> ActiveReader {
        ActiveReader { active: ACTIVE_READERS.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Returns the number of threads that decode the stream.
    fn threads(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from) / self.active;
        if cores < MIN_THREADS { 1 } else { cores.min(MAX_THREADS) }
    }
}

impl Drop for ActiveReader {
    fn drop(&mut self) {
        ACTIVE_READERS.fetch_sub(1, Ordering::Relaxed);
    }
}
