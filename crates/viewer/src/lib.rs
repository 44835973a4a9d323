//! The page of `oomph view`: pictures of a run's memory at the resolution of a screen, whatever the number of
//! events.
//!
//! The page asks questions and this crate answers them: over a loopback server ([`Viewer::serve`]), or from
//! one HTML file that has the answers inside ([`Viewer::export`]). `questions.rs` lists the questions,
//! `answers/` and `picture/` compute the answers from the indexes of `run/`. Documents of other commands come
//! through [`Commands`].
//!
//! ```
//! use analysis::{Device, Finding, RunModel};
//! use recording::Recording;
//! use viewer::documents::{TypedJson, FindingDocument, HolderTree};
//! use viewer::{Commands, RunInput, Problem, Relation, Replayed, Viewer, WhatIf};
//!
//! /// A page without the documents of other commands.
//! struct NoCommands;
//!
//! impl Commands for NoCommands {
//!     fn findings(&self, _: &RunModel<'_>, _: &[Finding]) -> (Vec<TypedJson<FindingDocument>>, String) {
//!         (Vec::new(), "findings are not computed".to_owned())
//!     }
//!     fn what_if(&self, _: &Device<'_>, _: &WhatIf) -> Result<Replayed, Problem> {
//!         Err(Problem { what: "replays are not computed".to_owned(), hint: None })
//!     }
//!     fn holders(&self, _: &RunInput, _: &[Device<'_>]) -> Option<TypedJson<HolderTree>> {
//!         None
//!     }
//! }
//!
//! let name = "../../fixtures/zoo/leak_infer_outputs.pickle.xz";
//! let snapshot = snapshot::open(name.as_ref()).unwrap();
//! let input = RunInput { name: name.to_owned(), snapshot, recording: Recording::default() };
//! let viewer = Viewer::new(vec![input], Relation::Ranks, &NoCommands);
//! let server = viewer::Server::bind(0, serve::Token::new("secret")).unwrap();
//! assert!(server.url().ends_with("/secret/"));
//! // `viewer.serve(&server)` now answers until the process ends.
//! # let _ = viewer;
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod answers;
pub mod documents;
mod export;
mod picture;
mod query;
mod question;
mod questions;
mod run;
mod server;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod typescript;

pub use export::Exported;
pub use run::inputs::InputReader;
pub use run::runs::RunInput;
pub use server::Server;

use analysis::{Device, Finding, RunModel};
use documents::{FindingDocument, HolderTree, ReplayReport, TypedJson};
use snapshot::Snapshot;
use std::sync::{OnceLock, RwLock};

/// Documents of other commands that the page shows.
pub trait Commands: Sync {
    /// Returns the findings as `oomph report --json` prints them, and the report's line about what it did not
    /// find.
    fn findings(
        &self,
        model: &RunModel<'_>,
        findings: &[Finding],
    ) -> (Vec<TypedJson<FindingDocument>>, String);
    /// Replays a device with other settings or on another GPU.
    fn what_if(&self, device: &Device<'_>, question: &WhatIf) -> Result<Replayed, Problem>;
    /// Returns the tree of `oomph holders`, if the recording has heap files.
    fn holders(&self, input: &RunInput, devices: &[Device<'_>]) -> Option<TypedJson<HolderTree>>;
}

/// What to change in a replay.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WhatIf {
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`; the recorded ones if `None`.
    pub conf: Option<String>,
    /// Memory of the GPU in bytes; that of the recorded run if `None`.
    pub gpu: Option<u64>,
    /// Share of the GPU's memory that the process may use.
    pub fraction: Option<f64>,
}

/// A replayed run.
pub struct Replayed {
    /// What `oomph simulate --json` prints.
    pub report: TypedJson<ReplayReport>,
    /// Remarks of the command.
    pub notes: Vec<String>,
    /// The snapshot that the replayed run would have left, with its settings.
    pub snapshot: Snapshot,
}

/// Why there is no answer.
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
    /// Runs to compare.
    Compared,
}

/// The inputs of a page, and the answers to its questions.
pub struct Viewer<'a> {
    commands: &'a dyn Commands,
    relation: Relation,
    /// Number of the input that is shown first.
    first: usize,
    inputs: run::inputs::PageInputs<'a>,
    what_ifs: RwLock<run::runs::WhatIfs>,
    tiles: picture::cache::TileCache,
    /// How the highest rank differs, once all are read.
    skew: OnceLock<Option<answers::ranks::RankSkew>>,
}

impl<'a> Viewer<'a> {
    /// Shows inputs that were read already.
    pub fn new(inputs: Vec<RunInput>, relation: Relation, commands: &'a dyn Commands) -> Viewer<'a> {
        Viewer::with(run::inputs::PageInputs::in_memory(inputs), relation, commands)
    }

    /// Shows the ranks of a job, each of which is read when someone looks at it. `first` was read already: it
    /// is what the page shows first.
    pub fn of_ranks(
        names: Vec<String>,
        first: (usize, RunInput),
        reader: InputReader<'a>,
        commands: &'a dyn Commands,
    ) -> Viewer<'a> {
        let inputs = run::inputs::PageInputs::on_demand(names, reader);
        let (number, first) = first;
        inputs.put(number, first);
        Viewer { first: number, ..Viewer::with(inputs, Relation::Ranks, commands) }
    }

    fn with(
        inputs: run::inputs::PageInputs<'a>,
        relation: Relation,
        commands: &'a dyn Commands,
    ) -> Viewer<'a> {
        let what_ifs = RwLock::new(run::runs::WhatIfs::after(inputs.names().len()));
        let tiles = picture::cache::TileCache::default();
        Viewer { commands, relation, first: 0, inputs, what_ifs, tiles, skew: OnceLock::new() }
    }

    /// Builds the indexes that every picture of the first run needs.
    pub(crate) fn prepare(&self) {
        let Ok(first) = self.inputs.get(self.first) else { return };
        if let Some(view) = first.views().next() {
            view.curve();
            view.groups(run::groups::GroupBy::Site);
            view.index();
            view.space();
        }
    }
}

/// Problem of a question about a run that is not, or no longer, there.
pub(crate) fn no_such_run() -> Problem {
    Problem {
        what: "There is no such run.".to_owned(),
        hint: Some("Only the last few what-ifs are kept; replay it again.".to_owned()),
    }
}
