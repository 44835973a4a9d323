//! A job of many ranks, predicted as a whole: which of its ranks run, and for which others they stand in.
//!
//! A first run of rank 0 alone shows how the program lays out its ranks: its process groups and device meshes
//! ([`layout`]). Ranks with the same position but in a data-parallel dimension do the same, so one of them is
//! enough. The Python part starts only the chosen ranks, and answers for the others.

mod balance;
mod command;
mod layout;

pub use balance::{RankNeed, StageMove};
pub use layout::{JobLayout, RankDimension};

pub(crate) use balance::{RankUsage, need};
pub(crate) use layout::JobNotes;

use crate::{AMPLE_MEMORY_BYTES, CompletedRun, EmulatedGpu, Job, OutputFolder, ProgramOutput, RunFolder};
use analysis::words::grouped;
use command::LaunchForm;
use failure::Failure;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// Most ranks of a job.
pub const MAX_RANKS: u32 = 65_536;

/// Which ranks of a job run as processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RankChoice {
    /// One for each position in the layout that differs from the others.
    Derived,
    /// These; rank 0 is one of them, because programs send what it decides to the other ranks.
    Listed(Vec<u32>),
    /// All of them.
    All,
}

impl RankChoice {
    /// Parses `0,7` or `all`.
    pub fn parse(text: &str) -> Result<RankChoice, String> {
        if text == "all" {
            return Ok(RankChoice::All);
        }
        let ranks: Result<Vec<u32>, _> = text.split(',').map(|rank| rank.trim().parse::<u32>()).collect();
        let mut ranks = ranks.map_err(|_| "expected numbers such as 3,7, or `all`".to_owned())?;
        ranks.push(0);
        ranks.sort_unstable();
        ranks.dedup();
        Ok(RankChoice::Listed(ranks))
    }
}

/// How the ranks of a job are run.
#[derive(Clone, Debug)]
pub struct RankPlan {
    /// Machines; `None` for as many as the launcher says.
    pub nodes: Option<u32>,
    /// Ranks that run.
    pub choice: RankChoice,
    /// Dimensions of the device mesh to try instead of the program's.
    pub mesh: Option<BTreeMap<String, u32>>,
    /// Layout of the job, once it is known.
    pub layout: Option<JobLayout>,
    /// Whose environment variables tell a process its rank.
    pub(crate) style: &'static str,
    /// The command as the user wrote it, which a program that starts its ranks itself is run by.
    pub(crate) program: Vec<OsString>,
}

/// The plan as the Python part reads it: the fields of `JobPlan`.
#[derive(Serialize)]
pub(crate) struct PlanSettings<'a> {
    folder: Box<serde_json::value::RawValue>,
    gpus: u32,
    nodes: Option<u32>,
    ranks: Option<&'a [u32]>,
    style: &'static str,
    mesh: Option<&'a BTreeMap<String, u32>>,
}

impl RankPlan {
    pub(crate) fn settings(&self, gpus: u32, folder: Box<serde_json::value::RawValue>) -> PlanSettings<'_> {
        let ranks = match &self.choice {
            RankChoice::Derived => Some(&[0][..]),
            RankChoice::Listed(ranks) => Some(&ranks[..]),
            RankChoice::All => None,
        };
        let RankPlan { nodes, mesh, style, .. } = self;
        PlanSettings { folder, gpus, nodes: *nodes, ranks, style, mesh: mesh.as_ref() }
    }
}

impl Job {
    /// Returns the job with its ranks planned, if its command starts several, or if `nodes` or `choice` say
    /// so.
    /// `python` runs the launcher where the command has none.
    pub fn with_ranks(mut self, nodes: Option<u32>, choice: Option<RankChoice>, python: &Path) -> Job {
        let form = LaunchForm::of(&self.command);
        let gpus = self.emulated.as_ref().map_or(1, |emulated| emulated.devices);
        let starts_ranks = form.is_launcher() && gpus > 1;
        if nodes.is_none() && choice.is_none() && !starts_ranks {
            return self;
        }
        let launched = form.command(&self.command, nodes, gpus, python);
        let program = std::mem::replace(&mut self.command, launched);
        let choice = choice.unwrap_or(RankChoice::Derived);
        self.ranks = Some(RankPlan { nodes, choice, mesh: None, layout: None, style: form.style(), program });
        self
    }
}

/// Finds out which ranks of a job to run, unless the user has said so. Other jobs stay as they are.
pub(crate) fn planned(job: &Job) -> anyhow::Result<Job> {
    let Some(plan) = job.ranks.as_ref().filter(|plan| plan.choice == RankChoice::Derived) else {
        return Ok(job.clone());
    };
    (job.progress.say)("running rank 0 alone to see how the job lays out its ranks");
    let emulated = job
        .emulated
        .as_ref()
        .map(|emulated| EmulatedGpu { capacity: Some(AMPLE_MEMORY_BYTES), ..emulated.clone() });
    let alone =
        Job { emulated, steps: Some(1), time_limit: None, output: ProgramOutput::Captured, ..job.clone() };
    let done = crate::run_to_end(&alone, &RunFolder::new(OutputFolder::Temporary)?)?;
    if let Some(spawned) = spawning(job, &done) {
        return planned(&spawned);
    }
    let layout = observed_layout(plan, &done)?;
    let ranks = layout.representatives();
    let (running, world) = (grouped(ranks.len() as u64), grouped(layout.world().into()));
    (job.progress.say)(&format!("running {running} of {world} ranks"));
    let plan = RankPlan { choice: RankChoice::Listed(ranks), layout: Some(layout), ..plan.clone() };
    Ok(Job { ranks: Some(plan), ..job.clone() })
}

/// Style of a program that starts its ranks itself.
const SPAWNED: &str = "spawn";

/// Returns the job to run instead if its program was started as one of the ranks, but starts them itself.
pub(crate) fn spawning(job: &Job, done: &CompletedRun) -> Option<Job> {
    let plan = job.ranks.as_ref().filter(|plan| done.notes.job.spawns && plan.style != SPAWNED)?;
    let plan = RankPlan { style: SPAWNED, ..plan.clone() };
    Some(Job { command: plan.program.clone(), ranks: Some(plan), ..job.clone() })
}

/// Returns the layout of a job by what its processes have said.
pub(crate) fn observed_layout(plan: &RankPlan, done: &CompletedRun) -> anyhow::Result<JobLayout> {
    let notes = &done.notes.job;
    if let Some(failure) = done.notes.failures.first().filter(|_| done.ranks.is_empty()) {
        return Err(Failure::new("the job could not be started", Some(failure.clone()), None).into());
    }
    if let Some(mesh) = &plan.mesh
        && mesh.values().map(|&size| u64::from(size)).product::<u64>() != u64::from(notes.nodes * notes.gpus)
    {
        return Err(Failure::new(
            "the layout does not have as many positions as there are ranks",
            Some(format!("the job has {} ranks", grouped((notes.nodes * notes.gpus).into()))),
            Some("choose sizes whose product is that number"),
        )
        .into());
    }
    if let (Some(mesh), None) = (&plan.mesh, &notes.layout) {
        return Err(mesh_not_made(mesh, notes, done).into());
    }
    JobLayout::new(notes).ok_or_else(|| not_a_job(done).into())
}

fn mesh_not_made(mesh: &BTreeMap<String, u32>, notes: &JobNotes, done: &CompletedRun) -> Failure {
    let names: Vec<&str> = mesh.keys().map(String::as_str).collect();
    let cause = match notes.other_meshes.first() {
        Some(other) => format!("the program's mesh has the dimensions {other}"),
        None => {
            let no_mesh = || "the program made no mesh with `init_device_mesh`".to_owned();
            done.last_message.clone().unwrap_or_else(no_mesh)
        }
    };
    Failure::new(
        format!("no device mesh with the dimensions {} was made", names.join(", ")),
        Some(cause),
        Some("use the names in the program's `mesh_dim_names`"),
    )
}

fn not_a_job(done: &CompletedRun) -> Failure {
    Failure::new(
        "the ranks of the job were not found",
        done.last_message.clone().or_else(|| Some("no launcher started them".to_owned())),
        Some(
            "use `torchrun`, `accelerate launch`, `deepspeed`, `mpirun`, `srun`, or a script that reads RANK \
             and WORLD_SIZE",
        ),
    )
}
