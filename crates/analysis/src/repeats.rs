//! What steps of a steady loop tell about each other.
//!
//! To know whose part of a backward pass allocates costs the recorder a call for every module. Once steps make the same
//! requests again and again it notes only the backward passes of a few; the others just like those get their modules here.

use crate::modules::{Modules, Phase};
use crate::order::Order;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;
use std::ops::Range;

/// Backward passes without modules that are like one with them.
#[derive(Default)]
pub(crate) struct Repeats {
    /// The events that allocate, in order; empty where nothing repeats.
    births: Vec<u32>,
    /// Ascending.
    repeats: Vec<Repeat>,
}

/// Places in [`Repeats::births`].
struct Repeat {
    allocations: Range<usize>,
    /// The first allocation of the backward pass that they are like.
    like: usize,
}

impl Repeats {
    pub(crate) fn new(order: &Order<'_>, modules: &Modules) -> Repeats {
        if modules.is_empty() || !modules.any_phase() {
            return Repeats::default();
        }
        let births: Vec<u32> = order.allocations(0..order.len()).map(|(event, _)| event as u32).collect();
        let size = |birth: usize| order.size(births[birth] as usize);
        let mut known: FxHashMap<u64, Range<usize>> = FxHashMap::default();
        let mut nameless: Vec<(u64, Range<usize>)> = Vec::new();
        for run in backward_passes(order, modules, &births) {
            let mut hasher = FxHasher::default();
            run.allocations.clone().for_each(|birth| hasher.write_u64(size(birth).0));
            let requests = hasher.finish();
            if run.has_modules {
                known.entry(requests).or_insert(run.allocations);
            } else {
                nameless.push((requests, run.allocations));
            }
        }
        let repeats: Vec<Repeat> = nameless
            .into_iter()
            .filter_map(|(requests, allocations)| {
                let other = known.get(&requests)?;
                let is_alike = other.len() == allocations.len()
                    && other.clone().zip(allocations.clone()).all(|(a, b)| size(a) == size(b));
                is_alike.then_some(Repeat { allocations, like: other.start })
            })
            .collect();
        if repeats.is_empty() { Repeats::default() } else { Repeats { births, repeats } }
    }

    /// The event that says where the program was at this one.
    pub(crate) fn like(&self, event: usize) -> Option<usize> {
        let birth = self.births.binary_search(&u32::try_from(event).ok()?).ok()?;
        let place = self.repeats.partition_point(|repeat| repeat.allocations.end <= birth);
        let repeat = self.repeats.get(place).filter(|repeat| repeat.allocations.start <= birth)?;
        Some(self.births[repeat.like + (birth - repeat.allocations.start)] as usize)
    }
}

/// Allocations inside `backward()`, one after the other.
struct Run {
    allocations: Range<usize>,
    has_modules: bool,
}

fn backward_passes(order: &Order<'_>, modules: &Modules, births: &[u32]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (birth, &event) in births.iter().enumerate() {
        let place = modules.of_context(order.context(event as usize));
        if place.phase != Some(Phase::Backward) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.allocations.end == birth => {
                run.allocations.end += 1;
                run.has_modules |= place.module.is_some();
            }
            _ => runs.push(Run { allocations: birth..birth + 1, has_modules: place.module.is_some() }),
        }
    }
    runs
}
