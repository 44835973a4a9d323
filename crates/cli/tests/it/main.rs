//! The program as users call it. One binary: each would link all of it.

mod check;
mod common;
mod compare;
mod errors;
mod explain;
mod export;
mod findings;
mod holders;
mod hostile_names;
mod lint;
mod programs;
mod readme;
mod recordings;
mod report;
mod simulate;
