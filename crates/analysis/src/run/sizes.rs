//! Block sizes, by which parameters, gradients and optimizer state are recognized in a plain snapshot.

use crate::run::device::Device;
use crate::trace::backward::BackwardEnd;
use crate::trace::steps::{Confidence, Steps};
use recording::Label;
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Allocation, History};

/// Sizes of parameters, gradients and optimizer state.
#[derive(Default)]
pub(crate) struct BlockSizes {
    /// Blocks that are allocated before the first step and kept.
    lasting: FxHashSet<u64>,
    /// Blocks that outlive the `backward()` they were made in and have a lasting block's size, and how many
    /// of them one step makes.
    pub(crate) gradients: FxHashMap<u64, u64>,
    /// What the optimizer keeps.
    pub(crate) states: FxHashSet<u64>,
}

/// Steps at the beginning and at the end that are examined: all steps make the same gradients, except for
/// parameters that are trained later or no longer.
const FIRST_STEPS: usize = 16;
const LAST_STEPS: usize = 4;

/// The blocks of these steps, and of what comes before them.
fn telling<'a>(history: &'a History, steps: &Steps) -> impl Iterator<Item = &'a Allocation> {
    let count = steps.count();
    let (first, last) = if count > FIRST_STEPS + LAST_STEPS {
        let bound = |step: usize| history.first_allocated_from(steps.bounds[step]);
        (bound(FIRST_STEPS), bound(count - LAST_STEPS))
    } else {
        (history.allocations.len(), history.allocations.len())
    };
    history.allocations[..first].iter().chain(&history.allocations[last..])
}

impl BlockSizes {
    pub(crate) fn new(device: &Device<'_>, setup_ends: usize) -> BlockSizes {
        let Device { history, roles, steps, .. } = device;
        let mut sizes = BlockSizes::default();
        let is_setup = |allocation: &Allocation| {
            allocation.alloc_event().is_none_or(|alloc_event| alloc_event < setup_ends)
        };
        for allocation in history.allocations.iter().take_while(|allocation| is_setup(allocation)) {
            if outlives_first_step(device, allocation) {
                sizes.lasting.insert(allocation.requested.0);
            }
        }
        let mut backward = device.backward.follow();
        let (mut step, mut in_step) = (0, FxHashMap::<u64, u64>::default());
        for allocation in telling(history, steps) {
            let role = roles.of(allocation.stack);
            if role.without_python {
                let end = allocation.alloc_event().and_then(|alloc_event| backward.end_of(alloc_event));
                if !outlives_backward(device, allocation, end)
                    || !sizes.lasting.contains(&allocation.requested.0)
                {
                    continue;
                }
                let begun = steps.bounds.partition_point(|&bound| Some(bound) <= allocation.alloc_event());
                if begun != step {
                    step = begun;
                    in_step.clear();
                }
                let count = in_step.entry(allocation.requested.0).or_default();
                *count += 1;
                let most = sizes.gradients.entry(allocation.requested.0).or_default();
                *most = (*most).max(*count);
            } else if role.optimizer && allocation.free_event().is_none() {
                sizes.states.insert(allocation.requested.0);
            }
        }
        sizes
    }

    /// Takes over the sizes of labelled tensors: they are certain. Says whether there are any.
    pub(crate) fn learn(&mut self, device: &Device<'_>) -> bool {
        let mut is_labelled = false;
        for (row, label) in device.labels.iter() {
            if !is_labelled {
                *self = BlockSizes::default();
                is_labelled = true;
            }
            let size = device.history.allocations[row].requested.0;
            match label {
                Label::Parameter => *self.gradients.entry(size).or_default() += 1,
                Label::Gradient => drop(self.gradients.entry(size).or_insert(1)),
                Label::Optimizer => drop(self.states.insert(size)),
                Label::Buffer | Label::Input => {}
            }
        }
        is_labelled
    }

    pub(crate) fn confidence(&self, steps: &Steps) -> (Confidence, &'static str) {
        match (self.gradients.is_empty(), self.states.is_empty()) {
            (false, false) => (
                Confidence::High,
                "parameters, gradients and optimizer state pair up by size and by where they were allocated",
            ),
            (false, true) => {
                (Confidence::Medium, "parameters pair up with gradients by size; no optimizer state was seen")
            }
            (true, _) if steps.count() > 0 => (
                Confidence::Medium,
                "no gradients were seen: parameters are what was allocated before the first step and kept",
            ),
            (true, _) => (Confidence::Low, "no steps were found, so lasting and temporary memory look alike"),
        }
    }
}

/// Whether a block made before the first step is still there when it ends.
pub(crate) fn outlives_first_step(device: &Device<'_>, allocation: &Allocation) -> bool {
    let end = device.steps.bounds.get(1).copied().unwrap_or(device.history.len());
    allocation.free_event().is_none_or(|freed| freed >= end)
}

/// Whether a block is still there when the run of `backward()` that made it has ended: the program frees it,
/// not the engine.
pub(crate) fn outlives_backward(
    device: &Device<'_>,
    allocation: &Allocation,
    end: Option<BackwardEnd>,
) -> bool {
    let stack_of = |event: usize| device.snapshot.events.stack(device.history.rows.start + event);
    let (Some(end), Some(freed)) = (end, allocation.free_event()) else { return end.is_some() };
    freed >= end.over || (freed > end.last && !device.roles.of(stack_of(freed)).without_python)
}
