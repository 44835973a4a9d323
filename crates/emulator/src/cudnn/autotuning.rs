//! `cudnn.benchmark=True`: PyTorch builds plans for all configurations, runs each with its workspace and
//! keeps the fastest.
//!
//! The emulator cannot know which one would be fastest on a card, and has a guess take less time than the
//! others. The heuristics' first choice is cuDNN's own guess: its workspace was that of the engine chosen by
//! an H200 in 1,248 of 1,521 trials. With two exceptions it is 1,268
//! (`bench/results/2026-11-19-predict.md`):
//!
//! - A Fourier engine was chosen in none of 624 trials to which one applies, in four of which it was listed
//!   first.
//! - For gradients of inputs, the first three are about as fast, and the one with the smallest workspace is
//!   the better guess: right in 467 instead of 448 of 507 trials.
//!
//! The allocations of all plans are real.

use super::emulated_engine::EmulatedEngine;
use super::graph::Pass;
use super::{Descriptor, fourier};
use crate::notes;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// PyTorch times only the first runs of a plan.
const TIMED_RUNS: u32 = 3;

/// Additional time that each candidate takes compared to the previous one: more than the clock's noise.
const DELAY_PER_CANDIDATE: Duration = Duration::from_micros(30);

/// Candidates that are about as fast, for gradients of inputs.
const EQUALLY_FAST: usize = 3;

struct Candidate {
    plan: usize,
    is_by_fourier: bool,
    workspace: i64,
    runs: u32,
}

/// Plans built since heuristics last returned configurations.
#[derive(Default)]
struct Candidates {
    plans: Vec<Candidate>,
    is_for_inputs: bool,
}

impl Candidates {
    /// Index of the plan that is assumed to be the fastest.
    fn fastest(&self) -> Option<usize> {
        let plans = self.plans.iter().enumerate().filter(|(_, candidate)| !candidate.is_by_fourier);
        let equally_fast = if self.is_for_inputs { EQUALLY_FAST } else { 1 };
        plans.take(equally_fast).min_by_key(|(_, candidate)| candidate.workspace).map(|(index, _)| index)
    }

    fn place(&self, plan: Descriptor) -> Option<usize> {
        self.plans.iter().position(|candidate| candidate.plan == plan as usize)
    }
}

fn candidates() -> MutexGuard<'static, Candidates> {
    static CANDIDATES: LazyLock<Mutex<Candidates>> = LazyLock::new(Default::default);
    CANDIDATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a new list of candidates: heuristics returned configurations.
pub(super) fn start_candidates() {
    candidates().plans.clear();
}

/// Adds a plan built from one of the configurations.
pub(super) fn plan(descriptor: Descriptor, pass: Option<Pass>, engine: Option<EmulatedEngine>) {
    let mut candidates = candidates();
    let is_by_fourier = engine.is_some_and(|engine| fourier::ENGINES.contains(&engine.engine));
    candidates.is_for_inputs = pass == Some(Pass::BackwardData);
    candidates.plans.push(Candidate { plan: descriptor as usize, is_by_fourier, workspace: 0, runs: 0 });
}

/// Notes the workspace of a plan, which is queried before it runs.
pub(super) fn needs(descriptor: Descriptor, workspace: i64) {
    let mut candidates = candidates();
    if let Some(place) = candidates.place(descriptor) {
        candidates.plans[place].workspace = workspace;
    }
}

pub(super) fn forget(descriptor: Descriptor) {
    candidates().plans.retain(|candidate| candidate.plan != descriptor as usize);
}

/// Delays a run of a plan that is not the fastest.
pub(super) fn run(descriptor: Descriptor) {
    let place = {
        let mut candidates = candidates();
        let Some(place) = candidates.place(descriptor) else { return };
        if candidates.plans.len() == 1 || candidates.fastest() == Some(place) {
            return;
        }
        let candidate = &mut candidates.plans[place];
        candidate.runs += 1;
        if candidate.runs > TIMED_RUNS {
            return;
        }
        place
    };
    notes::modeled("cuDNN autotuning: which engine is the fastest");
    std::thread::sleep(DELAY_PER_CANDIDATE * (place as u32 + 1));
}
