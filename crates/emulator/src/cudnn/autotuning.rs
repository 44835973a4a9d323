//! `cudnn.benchmark=True`: PyTorch builds plans for all configurations, runs each with its workspace and
//! keeps the fastest.
//!
//! The emulator cannot know which one would be fastest on a card. It uses the order of the heuristics, which
//! is cuDNN's own guess: the later a plan was built, the longer it takes. Only Fourier engines take longest
//! at any place: an H200 chose one in none of 624 trials whose lists had one, four times in the first place.
//! The allocations of all plans are real.

use super::emulated_engine::EmulatedEngine;
use super::{Descriptor, fourier};
use crate::notes;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// PyTorch times only the first runs of a plan.
const TIMED_RUNS: u32 = 3;

/// Additional time that each candidate takes compared to the previous one: more than the clock's noise.
const DELAY_PER_CANDIDATE: Duration = Duration::from_micros(30);

/// Place of candidates that are never the fastest: PyTorch times ten of them.
const LAST_PLACE: u32 = 10;

#[derive(Default)]
struct Candidates {
    /// Number of plans built since heuristics last returned configurations.
    made: u32,
    /// Position of each plan except the first, and how often it ran.
    later: HashMap<usize, (u32, u32)>,
}

fn candidates() -> MutexGuard<'static, Candidates> {
    static CANDIDATES: LazyLock<Mutex<Candidates>> = LazyLock::new(Default::default);
    CANDIDATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a new list of candidates: heuristics returned configurations.
pub(super) fn start_candidates() {
    candidates().made = 0;
}

/// Adds a plan built from one of the configurations.
pub(super) fn plan(descriptor: Descriptor, engine: Option<EmulatedEngine>) {
    let mut candidates = candidates();
    let is_slow = engine.is_some_and(|engine| fourier::ENGINES.contains(&engine.engine));
    let place = if is_slow { LAST_PLACE } else { candidates.made };
    candidates.made += 1;
    if place > 0 {
        candidates.later.insert(descriptor as usize, (place, 0));
    }
}

pub(super) fn forget(descriptor: Descriptor) {
    candidates().later.remove(&(descriptor as usize));
}

/// Delays a run of a plan by its position.
pub(super) fn run(descriptor: Descriptor) {
    let place = match candidates().later.get_mut(&(descriptor as usize)) {
        Some((place, runs)) if *runs < TIMED_RUNS => {
            *runs += 1;
            *place
        }
        _ => return,
    };
    notes::modeled("cuDNN autotuning: the heuristics' first choice is assumed to be the fastest");
    std::thread::sleep(DELAY_PER_CANDIDATE * place);
}
