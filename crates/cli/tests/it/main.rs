//! The program as users call it. One binary: each would link all of it.

mod answers;
mod bundle;
mod check;
mod common;
mod compare;
mod docs_blocks;
mod errors;
mod explain;
mod export;
mod findings;
mod holders;
mod hostile_names;
mod lint;
mod programs;
mod recordings;
mod report;
mod simulate;
