//! Memory of one worker by use, and what it says about the setting that divides it.

use snapshot::Bytes;

/// What an engine uses memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServingPart {
    /// Weights of the model.
    Weights,
    /// The KV cache.
    KvCache,
    /// Activations, at their peak while the engine measured.
    Activations,
    /// Non-PyTorch memory of the worker: NCCL, cuBLAS, attention kernels.
    NonPytorch,
    /// Activations and non-PyTorch memory, where the log has only their sum.
    ActivationsAndNonPytorch,
    /// CUDA graphs.
    Graphs,
    /// Process groups and their CUDA context.
    Setup,
    /// Memory in use before the engine began to measure.
    Before,
    /// Allocated next to the KV cache, for purposes that the log does not name.
    Unaccounted,
    /// What is left.
    Left,
    /// What is left, or was in use before the engine began: the log does not say which.
    LeftOrBefore,
}

impl ServingPart {
    /// Name in the table of `oomph explain`.
    pub fn name(self) -> &'static str {
        match self {
            ServingPart::Weights => "weights",
            ServingPart::KvCache => "KV cache",
            ServingPart::Activations => "activations (peak)",
            ServingPart::NonPytorch => "non-PyTorch memory",
            ServingPart::ActivationsAndNonPytorch => "activations, non-PyTorch memory",
            ServingPart::Graphs => "CUDA graphs",
            ServingPart::Setup => "process groups",
            ServingPart::Before => "in use before it started",
            ServingPart::Unaccounted => "unaccounted",
            ServingPart::Left => "left",
            ServingPart::LeftOrBefore => "left, or in use before",
        }
    }
}

/// A part of a worker's memory, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServingShare {
    /// What it is used for.
    pub part: ServingPart,
    /// Size in bytes.
    pub bytes: Bytes,
}

/// Memory that has to stay outside of the setting.
pub(super) struct Reserve {
    pub(super) what: &'static str,
    pub(super) bytes: i64,
}

/// Memory of a worker, and how the KV cache depends on the setting: with a value of 1 the engine would divide
/// `base` bytes, and each change of the value changes the KV cache by as much.
pub(super) struct MemoryPlan {
    pub(super) value: Option<f64>,
    pub(super) is_default: bool,
    pub(super) parts: Vec<ServingShare>,
    pub(super) whole: Option<Bytes>,
    pub(super) is_whole_gpu: bool,
    pub(super) excess: Bytes,
    pub(super) base: Option<i64>,
    /// The KV cache at `value`; negative by as much as is missing.
    pub(super) kv_cache: Option<i64>,
    /// A value of the setting, and the KV cache at it.
    pub(super) anchor: Option<(f64, i64)>,
    pub(super) reserves: Vec<Reserve>,
    /// What to keep free besides a request that failed: at startup, and while requests are served.
    pub(super) startup_margin: i64,
    pub(super) serving_margin: i64,
    /// What all CUDA graphs take, as far as is known before they are captured.
    pub(super) expected_graphs: i64,
    /// Why nothing is left for the KV cache, with the figures of the log.
    pub(super) shortage: Option<String>,
}

impl MemoryPlan {
    /// Size of the KV cache at another value of the setting.
    pub(super) fn kv_cache_at(&self, value: f64) -> Option<i64> {
        let (known, kv_cache) = self.anchor?;
        Some(kv_cache + ((value - known) * self.base? as f64).round() as i64)
    }

    /// The largest value at which what is reserved stays free.
    pub(super) fn largest_safe(&self) -> Option<f64> {
        let base = self.base.filter(|&base| base > 0)?;
        let reserved: i64 = self.reserves.iter().map(|reserve| reserve.bytes).sum();
        Some((base - reserved) as f64 / base as f64).filter(|&value| value > 0.0)
    }

    /// Size of a part.
    pub(super) fn part(&self, part: ServingPart) -> Option<Bytes> {
        self.parts.iter().find(|share| share.part == part).map(|share| share.bytes)
    }
}

/// Parts that add up: those that are not empty, and the rest of the whole. Returns them with what they need
/// beyond it.
pub(super) fn adding_up(
    parts: &[(ServingPart, Option<i64>)],
    whole: Option<i64>,
    rest: ServingPart,
) -> (Vec<ServingShare>, Bytes) {
    let known = parts.iter().filter_map(|&(part, bytes)| Some((part, size(bytes?))));
    let mut shares: Vec<ServingShare> = known.map(|(part, bytes)| ServingShare { part, bytes }).collect();
    let sum: Bytes = shares.iter().map(|share| share.bytes).sum();
    let whole = whole.map(size);
    if let Some(whole) = whole {
        shares.push(ServingShare { part: rest, bytes: whole - sum });
    }
    shares.retain(|share| share.bytes > Bytes::ZERO);
    (shares, whole.map_or(Bytes::ZERO, |whole| sum - whole))
}

/// An amount that may have come out negative.
pub(super) fn size(bytes: i64) -> Bytes {
    Bytes(bytes.max(0).unsigned_abs())
}

const GIB: i64 = 1 << 30;

/// What to keep free on a GPU: 2% of it and at least half a GiB. vLLM keeps 150 MiB when it suggests a size
/// for the KV cache, but its estimates have been off by more than 1 GiB.
pub(super) fn margin(base: i64) -> i64 {
    (base / 50).max(GIB / 2)
}

/// Memory for CUDA graphs that were not measured: both engines need 0.3 to 2 GiB for most models.
pub(super) fn assumed_graphs(base: i64) -> i64 {
    (2 * GIB).min(base / 20)
}

/// Memory of a CUDA context and the libraries of a process, where the log does not have it.
pub(super) fn assumed_context(base: i64) -> i64 {
    GIB.min(base / 20)
}
