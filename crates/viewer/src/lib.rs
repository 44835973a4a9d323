//! The page of `oomph view`: pictures of a run's memory, computed at the resolution of a screen whatever the number of events.
//!
//! The page asks, this crate answers: over a loopback server ([`Viewer::serve`]), or out of one HTML file that holds the
//! answers to what it will ask ([`Viewer::export`]). What other commands say comes from them, through [`Commands`].

#![forbid(unsafe_code)]

mod alive;
mod answers;
mod changes;
mod columns;
mod details;
mod export;
mod flame;
mod groups;
mod layout;
mod map;
mod overview;
mod query;
mod runs;
mod server;
mod space;
mod table;
#[cfg(test)]
mod tests;
mod tile;
mod timeline;
mod view;

pub use export::Exported;
pub use runs::Input;
pub use server::Server;

use analysis::{Device, Finding, Outline};
use serde_json::Value;
use snapshot::Snapshot;
use std::sync::RwLock;

/// What other commands know and the page shows.
pub trait Commands: Sync {
    /// Findings as `oomph report --json` has them, and what the report says of what it did not find.
    fn findings(&self, outline: &Outline<'_>, findings: &[Finding]) -> (Vec<Value>, String);
    /// The run under other settings or on another card.
    fn what_if(&self, device: &Device<'_>, question: &WhatIf) -> Result<Replayed, Problem>;
    /// Who holds what in an input, if its recording has that: the tree of `oomph holders`.
    fn holders(&self, input: &Input, devices: &[Device<'_>]) -> Option<Value>;
}

/// What a user asks to be replayed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WhatIf {
    /// Settings as in PYTORCH_CUDA_ALLOC_CONF; `None` for the recorded ones.
    pub conf: Option<String>,
    /// Memory of the card; `None` for what the recorded run could have.
    pub gpu: Option<u64>,
    /// Share of the card that the process may have.
    pub fraction: Option<f64>,
}

/// A replayed run.
pub struct Replayed {
    /// What `oomph simulate --json` prints.
    pub answer: Value,
    /// What is said beside it.
    pub notes: Vec<String>,
    /// The run itself.
    pub snapshot: Snapshot,
}

/// Why there is no answer, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    fn new(what: impl Into<String>) -> Problem {
        Problem { what: what.into(), hint: None }
    }
}

/// How several inputs belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The ranks of one job.
    Ranks,
    /// Runs to hold against each other.
    Compared,
}

/// Everything that is shown.
pub struct Viewer<'a> {
    commands: &'a dyn Commands,
    relation: Relation,
    /// The inputs, then the what-ifs.
    runs: RwLock<runs::Runs>,
    cache: answers::Cache,
}

impl<'a> Viewer<'a> {
    /// Prepares the inputs.
    pub fn new(inputs: Vec<Input>, relation: Relation, commands: &'a dyn Commands) -> Viewer<'a> {
        let runs = RwLock::new(runs::Runs::new(inputs));
        Viewer { commands, relation, runs, cache: answers::Cache::default() }
    }
}
