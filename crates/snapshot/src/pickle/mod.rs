//! Pickle reader that can only build plain data.
//!
//! The machine has every opcode of protocols 0 to 5 that plain data needs. The others (import a name,
//! call it, ask for a persistent object) end the reading with an error that gives the name and its
//! position. Dictionaries that are events, blocks, segments or frames become rows of the tables as soon
//! as they are complete, so no tree of values is ever built. For the dictionary shape that makes up
//! nearly all of a real file, `events` does this without the machine.

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
use crate::window::StreamWindow;
use machine::Machine;
use std::io::Read;

/// Reads a snapshot from a pickle stream. `expected` is its length in bytes, if known: a long stream is
/// read ahead by another thread.
pub(crate) fn read(stream: impl Read + Send, expected: Option<u64>) -> Result<Snapshot, Error> {
    match expected {
        Some(length) if length > READ_AHEAD_MIN_BYTES => std::thread::scope(|scope| {
            let mut machine = Machine::new(StreamWindow::ahead(stream, scope));
            machine.expect(length);
            machine.snapshot()
        }),
        _ => Machine::new(StreamWindow::new(stream)).snapshot(),
    }
}

/// Stream length in bytes from which a thread reads ahead.
const READ_AHEAD_MIN_BYTES: u64 = 1 << 20;
