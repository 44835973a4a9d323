//! Reads pickles with a machine that cannot do anything but build plain data.
//!
//! The machine has every opcode of protocols 0 to 5 that plain data needs. The others (import a name, call it,
//! ask for a persistent object) end the reading with the name and its position. Dictionaries that are events,
//! blocks, segments or frames become rows of the tables as soon as they are complete, so no tree of values
//! is ever built; `events` does this without going through the machine at all for the dictionary shape that
//! makes up nearly all of a real file.

mod decoder;
mod describe;
mod events;
mod lower;
mod machine;
mod nodes;
mod number;
mod scan;
mod spellings;
mod template;
mod value;

use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::window::Window;
use machine::Machine;
use std::io::Read;

/// Reads a snapshot from a pickle stream. `expected` is its length where that is known: a long one is read
/// ahead by a thread of its own.
pub(crate) fn read(stream: impl Read + Send, expected: Option<u64>) -> Result<Snapshot, Error> {
    match expected {
        Some(length) if length > WORTH_A_THREAD => std::thread::scope(|scope| {
            let mut machine = Machine::new(Window::ahead(stream, scope));
            machine.expect(length);
            machine.snapshot()
        }),
        _ => Machine::new(Window::new(stream)).snapshot(),
    }
}

const WORTH_A_THREAD: u64 = 1 << 20;
