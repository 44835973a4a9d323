//! The allocator model, against recordings and on its own. One binary: each would link all of it.

mod common;
mod hostile;
mod settings;
mod verify;
mod whatif;
