//! Forward passes that keep graphs although no `backward()` uses them: an evaluation with grad mode on.

use super::line::NamedSite;
use crate::run::model::RunModel;
use crate::trace::modules::{ModuleId, Phase};
use rustc_hash::FxHashMap;
use snapshot::{Allocation, Bytes, FrameId, StackId};

/// Share of what one forward pass allocates that has to be live, and in how many blocks: without a graph,
/// most of it is freed on the way.
const MIN_LIVE_SHARE: f64 = 0.6;
const MIN_LIVE_BLOCKS: u64 = 4;
/// Share of what is live that has to come from other modules and stacks than the largest part: without a
/// graph, the results of one module are all that stays.
const MIN_SHARE_OF_OTHERS: f64 = 0.1;
/// Share of the bytes that a `backward()` may have met: the last output stays in its variable.
const MAX_MET_SHARE: f64 = 0.1;

/// A line that runs a model with grad mode on and without `backward()`.
pub(super) struct EvaluationWithGraph {
    pub(super) line: NamedSite,
    /// What the graphs hold.
    pub(super) bytes: Bytes,
}

impl EvaluationWithGraph {
    /// The advice, and what else would help.
    pub(super) fn fix(&self, otherwise: &str) -> String {
        format!(
            "run {} in `with torch.inference_mode():`: no `backward()` uses the graphs, which hold {}. \
             Otherwise: {otherwise}",
            self.line.or("the evaluation"),
            self.bytes
        )
    }
}

/// What one line that calls a model has allocated.
#[derive(Default)]
struct Caller {
    live: Bytes,
    live_blocks: u64,
    /// What each module has made with each stack of what is live.
    live_parts: FxHashMap<(StackId, ModuleId), Bytes>,
    /// Allocated since the last `backward()`.
    recent: Bytes,
    all: Bytes,
    /// Was live when a `backward()` began.
    met: Bytes,
    /// Blocks that each module has made with each stack since the last `backward()`. A second one shows that
    /// a forward pass has ended without `backward()`.
    blocks: FxHashMap<(StackId, ModuleId), u32>,
}

/// The evaluation whose graphs hold at least `fewest` bytes at a position, if there is one. Known where a
/// recorder followed the modules and the program trains elsewhere.
pub(super) fn measure(model: &RunModel<'_>, position: usize, fewest: Bytes) -> Option<EvaluationWithGraph> {
    let device = model.device;
    let history = &device.history;
    let mut backward = device.backward.follow();
    let last_backward = history.allocations[..history.first_allocated_from(position)]
        .iter()
        .filter(|allocation| device.scope_of(allocation).phase == Some(Phase::Backward))
        .filter_map(Allocation::alloc_event)
        .max()?;
    let mut line_of: FxHashMap<StackId, Option<FrameId>> = FxHashMap::default();
    let mut callers: FxHashMap<FrameId, Caller> = FxHashMap::default();
    for allocation in &history.allocations[..history.first_allocated_from(position)] {
        let scope = device.scope_of(allocation);
        let (Some(Phase::Forward), Some(module), Some(alloc_event)) =
            (scope.phase, scope.module, allocation.alloc_event())
        else {
            continue;
        };
        let line =
            line_of.entry(allocation.stack).or_insert_with(|| device.caller_of_model(allocation.stack));
        let Some(line) = *line else { continue };
        let caller = callers.entry(line).or_default();
        caller.all += allocation.size;
        if alloc_event > last_backward {
            caller.recent += allocation.size;
            *caller.blocks.entry((allocation.stack, module)).or_default() += 1;
            if allocation.is_allocated_at(position) {
                caller.live += allocation.size;
                caller.live_blocks += 1;
                *caller.live_parts.entry((allocation.stack, module)).or_default() += allocation.size;
            }
        }
        let freed = allocation.free_event();
        if backward.next_after(alloc_event).is_some_and(|begins| freed.is_none_or(|freed| freed > begins)) {
            caller.met += allocation.size;
        }
    }
    let (line, caller) = callers.into_iter().max_by_key(|(line, caller)| (caller.live, *line))?;
    let share = |part: Bytes, whole: Bytes| part.0 as f64 / whole.0.max(1) as f64;
    let largest = caller.live_parts.values().copied().max().unwrap_or_default();
    let mut passes: Vec<u32> = caller.blocks.into_values().collect();
    passes.sort_unstable();
    let of_one_pass = Bytes(caller.recent.0 / u64::from(*passes.get(passes.len() / 2)?));
    let is_evaluation = caller.live >= fewest
        && caller.live_blocks >= MIN_LIVE_BLOCKS
        && share(caller.live - largest, caller.live) >= MIN_SHARE_OF_OTHERS
        && share(caller.live, of_one_pass) >= MIN_LIVE_SHARE
        && share(caller.met, caller.all) <= MAX_MET_SHARE
        && passes.last().is_some_and(|&most| most > 1);
    is_evaluation.then(|| EvaluationWithGraph { line: NamedSite::new(model, Some(line)), bytes: caller.live })
}
