//! `cudnn.benchmark=True`: PyTorch makes plans of all configurations, runs each with its workspace and keeps the fastest.
//!
//! Which one a card would find fastest cannot be known here. We let the order of the heuristics decide, which is cuDNN's
//! own guess: a plan takes the longer the later it came. What all of them allocate is real.

use super::Descriptor;
use crate::notes;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A plan is timed in its first runs only.
const TIMED_RUNS: u32 = 3;

/// How much longer each candidate takes than the one before it: more than the clock's noise.
const STEP: Duration = Duration::from_micros(30);

#[derive(Default)]
struct Candidates {
    /// How many plans were made since heuristics last gave configurations.
    made: u32,
    /// The place among them of each plan that is not the first, and how often it ran.
    later: HashMap<usize, (u32, u32)>,
}

fn candidates() -> MutexGuard<'static, Candidates> {
    static CANDIDATES: LazyLock<Mutex<Candidates>> = LazyLock::new(Default::default);
    CANDIDATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Heuristics gave configurations.
pub(super) fn candidates_follow() {
    candidates().made = 0;
}

/// A plan was made of one of them.
pub(super) fn plan(descriptor: Descriptor) {
    let mut candidates = candidates();
    let place = candidates.made;
    candidates.made += 1;
    if place > 0 {
        candidates.later.insert(descriptor as usize, (place, 0));
    }
}

pub(super) fn forget(descriptor: Descriptor) {
    candidates().later.remove(&(descriptor as usize));
}

/// A plan runs.
pub(super) fn run(descriptor: Descriptor) {
    let place = match candidates().later.get_mut(&(descriptor as usize)) {
        Some((place, runs)) if *runs < TIMED_RUNS => {
            *runs += 1;
            *place
        }
        _ => return,
    };
    notes::modelled("cuDNN autotuning: the heuristics' first choice is taken for the fastest");
    std::thread::sleep(STEP * place);
}
