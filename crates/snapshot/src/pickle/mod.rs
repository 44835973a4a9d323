//! Reads pickles with a machine that cannot do anything but build plain data.
//!
//! The machine has every opcode of protocols 0 to 5 that plain data needs. The others (import a name, call it,
//! ask for a persistent object) end the reading with the name and its position. Dictionaries that are events,
//! blocks, segments or frames become rows of the tables as soon as they are complete, so no tree of values
//! is ever built; `event` does this without going through the machine at all for the dictionary shape that
//! makes up nearly all of a real file.

mod event;
mod lower;
mod machine;
mod nodes;
mod number;
mod scan;
mod value;

use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::window::Window;
use std::io::Read;

/// Reads a snapshot from a pickle stream.
pub(crate) fn read(stream: impl Read) -> Result<Snapshot, Error> {
    machine::Machine::new(Window::new(stream)).snapshot()
}
