//! Finds the cheapest change that makes a program fit on a GPU.
//!
//! Every proposal was run: [`fit()`] switches memory-saving techniques on from outside (`launch`), alone and
//! combined, until the program fits on the emulated GPU, and [`ProgramChange`] writes what was switched on as
//! a change to the program's source.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod blocks;
mod change;
mod search;
mod technique;

pub use change::{FileDiff, ProgramChange};
pub use search::{Fit, FitOptions, Insufficient, Proposal, fit};
pub use technique::{ResultChange, TimeCost};
