//! How vLLM divides the memory of a GPU: `gpu_memory_utilization` covers everything of the instance. The KV
//! cache gets what is left of it after the weights, the peak of the activations and non-PyTorch memory, and
//! from release 0.20 on after an estimate for CUDA graphs, which before came on top.

use super::figures::{EngineLaunch, WorkerFigures};
use super::plan::{
    MemoryPlan, Reserve, ServingPart, adding_up, assumed_context, assumed_graphs, margin, size,
};
use crate::messages::written;

pub(super) fn plan(launch: &EngineLaunch, figures: WorkerFigures) -> MemoryPlan {
    let value = launch.utilization.or_else(|| default_value(launch.version.as_deref()?));
    let total = figures.total.or_else(|| Some((figures.budget? as f64 / launch.utilization?).round() as i64));
    let budget = figures.budget.or_else(|| Some((total? as f64 * value?).round() as i64));
    let graphs_in_budget =
        if launch.has_graphs_in_budget { figures.graphs_estimated.unwrap_or(0) } else { 0 };
    // Where weights and non-PyTorch memory are one figure, the activations include the estimate for graphs.
    let activations = match figures.consumed {
        Some(_) => figures.activations.map(|activations| activations - graphs_in_budget),
        None => figures.activations.or_else(|| Some(figures.peak? - figures.weights?)),
    };
    let before = before(figures, total);
    let non_pytorch = figures
        .non_pytorch
        .or_else(|| Some(figures.consumed? - figures.weights?))
        .or_else(|| Some(figures.non_pytorch_device? - before?));
    let others = || Some(figures.weights? + activations? + non_pytorch? + graphs_in_budget);
    let kv_cache = launch.kv_available.or(figures.kv_cache).or_else(|| Some(budget? - others()?));
    // What is left of the budget is what the log does not split.
    let unsplit = if activations.is_none() && non_pytorch.is_none() {
        budget
            .zip(kv_cache)
            .zip(figures.weights)
            .map(|((budget, kv_cache), weights)| budget - kv_cache - weights - graphs_in_budget)
    } else {
        None
    };
    let graphs = figures.graphs.or(Some(graphs_in_budget));
    let rest = if before.is_some() { ServingPart::Left } else { ServingPart::LeftOrBefore };
    let (parts, excess) = adding_up(
        &[
            (ServingPart::Weights, figures.weights),
            (ServingPart::KvCache, kv_cache),
            (ServingPart::Activations, activations),
            (ServingPart::NonPytorch, non_pytorch),
            (ServingPart::ActivationsAndNonPytorch, unsplit),
            (ServingPart::Graphs, graphs),
            (ServingPart::Before, before),
        ],
        total,
        rest,
    );
    MemoryPlan {
        value,
        is_default: launch.utilization.is_none() && value.is_some(),
        parts,
        whole: total.map(size),
        is_whole_gpu: true,
        excess,
        base: total.filter(|_| !launch.has_kv_by_hand),
        kv_cache,
        anchor: value.zip(kv_cache),
        reserves: total.map_or_else(Vec::new, |total| reserves(launch, figures, total, graphs_in_budget)),
        startup_margin: total.map_or(0, margin),
        serving_margin: total.map_or(0, margin),
        expected_graphs: figures.graphs_estimated.or_else(|| total.map(assumed_graphs)).unwrap_or(0),
        shortage: budget.zip(kv_cache).map(|(budget, kv_cache)| {
            let rest =
                if figures.non_pytorch_device.is_some() { "what else uses the GPU" } else { "libraries" };
            format!(
                "weights, activations and {rest} need {}, and vLLM may use {}",
                written(size(budget - kv_cache)),
                written(size(budget))
            )
        }),
    }
}

/// Memory in use before vLLM began to measure.
fn before(figures: WorkerFigures, total: Option<i64>) -> Option<i64> {
    let measured = total.zip(figures.free).map(|(total, free)| total - free);
    measured.or_else(|| Some(figures.in_use_loaded? - figures.weights?))
}

/// What vLLM's share of the GPU cannot be: what others use, what it allocates on top, and a margin.
fn reserves(
    launch: &EngineLaunch,
    figures: WorkerFigures,
    total: i64,
    graphs_in_budget: i64,
) -> Vec<Reserve> {
    let before = match figures.free {
        // These releases count what others use as their own share.
        _ if figures.non_pytorch_device.is_some() => Reserve { what: "", bytes: 0 },
        Some(free) => Reserve { what: "in use before it started", bytes: total - free },
        None => Reserve { what: "assumed to be in use before it started", bytes: assumed_context(total) },
    };
    let graphs = if launch.is_eager || (launch.has_graphs_in_budget && figures.graphs.is_none()) {
        Reserve { what: "", bytes: 0 }
    } else if let Some(graphs) = figures.graphs.or(figures.graphs_estimated) {
        Reserve { what: "for CUDA graphs", bytes: graphs - graphs_in_budget }
    } else {
        Reserve { what: "assumed for CUDA graphs", bytes: assumed_graphs(total) }
    };
    let margin = Reserve { what: "as a margin", bytes: margin(total) };
    [before, graphs, margin].into_iter().filter(|reserve| reserve.bytes > 0).collect()
}

/// Default of `gpu_memory_utilization` in a release.
fn default_value(version: &str) -> Option<f64> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let release = (numbers.next()??, numbers.next()??);
    Some(if release >= (0, 20) { 0.92 } else { 0.9 })
}
