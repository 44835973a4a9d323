//! `cudnn.benchmark=True`: PyTorch builds plans for all configurations, runs each with its workspace and
//! keeps the fastest.
//!
//! The emulator cannot know which one would be fastest on a card, so it delays every plan except the most
//! likely one. The heuristics' first choice is cuDNN's own guess: its workspace was that of the engine chosen
//! by an H200 in 2,896 of 3,654 trials (1,218 convolutions of public models). With four exceptions it is
//! 2,973 (`bench/results/2026-11-19-autotuning.md`):
//!
//! - For results and gradients of inputs, the first three are about as fast, and the one with the smallest
//!   workspace is the better guess: right in 1,019 instead of 993 of 1,218 trials, and in 1,105 instead of
//!   1,081. For gradients of filters it is not.
//! - A Fourier engine was chosen in none of 624 trials to which one applies, in four of which it was listed
//!   first.
//! - For filters of more than 11 positions on a side, it was chosen in 9 of 11 forward passes for which it
//!   was timed.
//! - 1×1 convolutions whose images cuBLASLt reads value by value ([`matrix_product::is_slow`]).
//!
//! The allocations of all plans are real.

use super::emulated_engine::EmulatedEngine;
use super::graph::{Convolution, Pass};
use super::{Descriptor, fourier, listed, matrix_product};
use crate::notes;
use std::cell::RefCell;
use std::time::Duration;

/// PyTorch times only the first runs of a plan.
const TIMED_RUNS: u32 = 3;

/// Additional time that each candidate takes compared to the previous one: more than the clock's noise.
const DELAY_PER_CANDIDATE: Duration = Duration::from_micros(30);

/// Candidates that are about as fast, except for gradients of filters.
const EQUALLY_FAST: usize = 3;

struct TimedPlan {
    plan: usize,
    speed: Speed,
    workspace: i64,
    runs: u32,
}

/// What is known of an engine's speed beyond its place in the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speed {
    /// Faster than those before it.
    High,
    Usual,
    /// Never the fastest.
    Low,
}

/// Plans built since heuristics last returned configurations.
#[derive(Default)]
struct Candidates {
    plans: Vec<TimedPlan>,
    is_for_filters: bool,
}

impl Candidates {
    /// Index of the plan that is assumed to be the fastest.
    fn fastest(&self) -> Option<usize> {
        if let Some(index) = self.plans.iter().position(|candidate| candidate.speed == Speed::High) {
            return Some(index);
        }
        let plans = self.plans.iter().enumerate().filter(|(_, candidate)| candidate.speed == Speed::Usual);
        let equally_fast = if self.is_for_filters { 1 } else { EQUALLY_FAST };
        plans.take(equally_fast).min_by_key(|(_, candidate)| candidate.workspace).map(|(index, _)| index)
    }

    fn index(&self, plan: Descriptor) -> Option<usize> {
        self.plans.iter().position(|candidate| candidate.plan == plan as usize)
    }

    /// Additional time for a run of a plan.
    fn delay(&mut self, plan: Descriptor) -> Option<Duration> {
        let index = self.index(plan)?;
        if self.plans.len() == 1 || self.fastest() == Some(index) || self.plans[index].runs >= TIMED_RUNS {
            return None;
        }
        self.plans[index].runs += 1;
        Some(DELAY_PER_CANDIDATE * (index as u32 + 1))
    }
}

/// Gives the candidates of this thread to `work`: PyTorch builds and times plans in one thread. At the end of
/// a thread there are none any more.
fn with_candidates<T>(work: impl FnOnce(&mut Candidates) -> T) -> Option<T> {
    thread_local! {
        static CANDIDATES: RefCell<Candidates> = RefCell::default();
    }
    CANDIDATES.try_with(|candidates| work(&mut candidates.borrow_mut())).ok()
}

/// Starts a new list of candidates: heuristics returned configurations.
pub(super) fn start_candidates() {
    with_candidates(|candidates| candidates.plans.clear());
}

fn speed(convolution: &Convolution, engine: EmulatedEngine) -> Speed {
    if fourier::ENGINES.contains(&engine.engine) {
        let is_wide = convolution.w.size(2) > listed::MAX_NARROW_FILTER;
        return if is_wide && convolution.pass == Pass::Forward { Speed::High } else { Speed::Low };
    }
    let is_slow = matrix_product::ENGINES.contains(&engine.engine) && matrix_product::is_slow(convolution);
    if is_slow { Speed::Low } else { Speed::Usual }
}

/// Adds a plan built from one of the configurations.
pub(super) fn plan(
    descriptor: Descriptor,
    convolution: Option<&Convolution>,
    engine: Option<EmulatedEngine>,
) {
    let speed =
        convolution.zip(engine).map_or(Speed::Usual, |(convolution, engine)| speed(convolution, engine));
    let pass = convolution.map(|convolution| convolution.pass);
    with_candidates(|candidates| {
        candidates.is_for_filters = pass == Some(Pass::BackwardFilter);
        candidates.plans.push(TimedPlan { plan: descriptor as usize, speed, workspace: 0, runs: 0 });
    });
}

/// Notes the workspace of a plan, which is queried before it runs.
pub(super) fn set_workspace(descriptor: Descriptor, workspace: i64) {
    with_candidates(|candidates| {
        if let Some(index) = candidates.index(descriptor) {
            candidates.plans[index].workspace = workspace;
        }
    });
}

pub(super) fn forget(descriptor: Descriptor) {
    with_candidates(|candidates| {
        candidates.plans.retain(|candidate| candidate.plan != descriptor as usize);
    });
}

/// Delays a run of a plan that is not the fastest.
pub(super) fn run(descriptor: Descriptor) {
    if let Some(delay) = with_candidates(|candidates| candidates.delay(descriptor)).flatten() {
        notes::modeled("cuDNN autotuning: which engine is the fastest");
        std::thread::sleep(delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Speed::{High, Low, Usual};

    fn candidates(is_for_filters: bool, plans: &[(Speed, i64)]) -> Candidates {
        let plans = plans.iter().enumerate().map(|(plan, (speed, workspace))| TimedPlan {
            plan,
            speed: *speed,
            workspace: *workspace,
            runs: 0,
        });
        Candidates { plans: plans.collect(), is_for_filters }
    }

    #[test]
    fn for_gradients_of_filters_the_first_is_the_fastest_unless_speeds_are_known() {
        assert_eq!(candidates(true, &[(Usual, 8), (Usual, 4)]).fastest(), Some(0));
        assert_eq!(candidates(true, &[(Low, 8), (Usual, 4), (Usual, 2)]).fastest(), Some(1));
        assert_eq!(candidates(true, &[(Usual, 8), (Usual, 4), (High, 9)]).fastest(), Some(2));
        assert_eq!(candidates(true, &[(Low, 8)]).fastest(), None);
    }

    #[test]
    fn except_for_gradients_of_filters_it_is_the_smallest_of_three() {
        let plans = [(Low, 0), (Usual, 8), (Usual, 4), (Usual, 4), (Usual, 2)];
        assert_eq!(candidates(false, &plans).fastest(), Some(2));
    }

    #[test]
    fn the_others_are_delayed_while_they_are_timed() {
        let mut of = candidates(true, &[(Usual, 8), (Usual, 4)]);
        let delays: Vec<_> = (0..4).map(|_| of.delay(1 as Descriptor)).collect();
        assert_eq!(delays, [Some(2 * DELAY_PER_CANDIDATE); 3].into_iter().chain([None]).collect::<Vec<_>>());
        assert_eq!(of.delay(0 as Descriptor), None);
        assert_eq!(candidates(true, &[(Low, 8)]).delay(0 as Descriptor), None);
    }
}
