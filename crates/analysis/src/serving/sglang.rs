//! How SGLang divides the memory of a GPU: `mem_fraction_static` covers the weights and the KV cache, as a
//! fraction of what was free before the weights were loaded. Activations and CUDA graphs use the rest.

use super::figures::{EngineLaunch, WorkerFigures};
use super::plan::{MemoryPlan, Reserve, ServingPart, adding_up, assumed_graphs, margin, size};
use crate::messages::written;

pub(super) fn plan(launch: &EngineLaunch, figures: WorkerFigures) -> MemoryPlan {
    let base = figures.free;
    let loaded = figures.left_loaded.or_else(|| Some(base? - figures.weights?));
    let kept = base.zip(launch.fraction).map(|(base, fraction)| (base as f64 * (1.0 - fraction)) as i64);
    let kv_cache = figures.kv_cache.or_else(|| Some(loaded? - kept?));
    let left = figures.left.or(figures.left_pool);
    let total = figures.total.filter(|&total| base.is_none_or(|base| total >= base));
    let setup = figures.setup.unwrap_or(0);
    let whole = total.or_else(|| Some(base? + setup));
    let known = [
        (ServingPart::Weights, figures.weights.or_else(|| Some(base? - loaded?))),
        (ServingPart::KvCache, kv_cache),
        (ServingPart::Graphs, figures.graphs),
        (ServingPart::Setup, figures.setup),
        (ServingPart::Before, total.zip(base).map(|(total, base)| total - base - setup)),
        (ServingPart::Left, left),
    ];
    let rest = if left.is_some() { ServingPart::Unaccounted } else { ServingPart::Left };
    let (mut parts, excess) = adding_up(&known, whole, rest);
    // The rest is more telling than where in the table the free memory is.
    parts.sort_by_key(|share| share.part == ServingPart::Left);
    MemoryPlan {
        value: launch.fraction,
        is_default: false,
        parts,
        whole: whole.map(size),
        is_whole_gpu: total.is_some(),
        excess,
        base,
        kv_cache,
        // Without the value it is known what the KV cache would be if nothing was kept.
        anchor: launch.fraction.zip(kv_cache).or_else(|| Some((1.0, loaded?))),
        reserves: base.map_or_else(Vec::new, |base| reserves(launch, figures, base, kept)),
        startup_margin: base.map_or(0, for_activations),
        serving_margin: base.map_or(0, margin),
        expected_graphs: base.map_or(0, assumed_graphs),
        shortage: loaded.zip(kept).map(|(loaded, kept)| {
            format!(
                "{} is free after the weights were loaded, and {} is kept for activations and CUDA graphs",
                written(size(loaded)),
                written(size(kept))
            )
        }),
    }
}

/// Memory for activations: what SGLang's guide calls sufficient for large GPUs, and a tenth of small ones.
fn for_activations(base: i64) -> i64 {
    (5 << 30).min(base / 10)
}

/// What the weights and the KV cache must leave: what SGLang allocates after them, and activations.
fn reserves(launch: &EngineLaunch, figures: WorkerFigures, base: i64, kept: Option<i64>) -> Vec<Reserve> {
    let later = match (kept.zip(figures.left), figures.graphs) {
        (Some((kept, left)), _) => Reserve { what: "for CUDA graphs and buffers", bytes: kept - left },
        (None, Some(graphs)) => Reserve { what: "for CUDA graphs", bytes: graphs },
        (None, None) if launch.is_eager => Reserve { what: "", bytes: 0 },
        (None, None) => Reserve { what: "assumed for CUDA graphs", bytes: assumed_graphs(base) },
    };
    let activations = Reserve { what: "for activations", bytes: for_activations(base) };
    [later, activations].into_iter().filter(|reserve| reserve.bytes > 0).collect()
}
