//! Figures of one launch of an engine, as its log states them. Nothing is derived here.

use super::{Engine, ServingFailure, Stage};
use crate::messages::TextOrigin;
use std::collections::BTreeMap;

/// The process of an engine that printed a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WorkerName {
    /// Its lines have no prefix that names it.
    Unnamed,
    Rank(u32),
    /// Known by its process ID only.
    Process(u64),
}

impl WorkerName {
    pub(super) fn of(origin: TextOrigin) -> WorkerName {
        let process = || origin.pid.map_or(WorkerName::Unnamed, WorkerName::Process);
        origin.rank.map_or_else(process, WorkerName::Rank)
    }

    pub(super) fn rank(self) -> Option<u32> {
        if let WorkerName::Rank(rank) = self { Some(rank) } else { None }
    }
}

/// Memory of one worker in bytes; some of it can be negative in a log.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct WorkerFigures {
    /// The GPU's memory.
    pub(super) total: Option<i64>,
    /// Free when the engine began to measure: for vLLM at startup, for SGLang before it loads the weights.
    pub(super) free: Option<i64>,
    /// What vLLM may use: `gpu_memory_utilization` times the GPU's memory.
    pub(super) budget: Option<i64>,
    pub(super) weights: Option<i64>,
    /// Weights and non-PyTorch memory together.
    pub(super) consumed: Option<i64>,
    pub(super) activations: Option<i64>,
    /// Weights and activations together.
    pub(super) peak: Option<i64>,
    pub(super) non_pytorch: Option<i64>,
    /// Non-PyTorch memory of the whole GPU, with that of other processes.
    pub(super) non_pytorch_device: Option<i64>,
    /// In use on the whole GPU once the weights are loaded.
    pub(super) in_use_loaded: Option<i64>,
    pub(super) kv_cache: Option<i64>,
    pub(super) graphs: Option<i64>,
    pub(super) graphs_estimated: Option<i64>,
    /// What SGLang's processes took to set up communication.
    pub(super) setup: Option<i64>,
    /// Free after the weights were loaded, after the KV cache was allocated, and at last.
    pub(super) left_loaded: Option<i64>,
    pub(super) left_pool: Option<i64>,
    pub(super) left: Option<i64>,
}

impl WorkerFigures {
    /// Its figures, and for those that it lacks another worker's.
    pub(super) fn or(self, other: WorkerFigures) -> WorkerFigures {
        WorkerFigures {
            total: self.total.or(other.total),
            free: self.free.or(other.free),
            budget: self.budget.or(other.budget),
            weights: self.weights.or(other.weights),
            consumed: self.consumed.or(other.consumed),
            activations: self.activations.or(other.activations),
            peak: self.peak.or(other.peak),
            non_pytorch: self.non_pytorch.or(other.non_pytorch),
            non_pytorch_device: self.non_pytorch_device.or(other.non_pytorch_device),
            in_use_loaded: self.in_use_loaded.or(other.in_use_loaded),
            kv_cache: self.kv_cache.or(other.kv_cache),
            graphs: self.graphs.or(other.graphs),
            graphs_estimated: self.graphs_estimated.or(other.graphs_estimated),
            setup: self.setup.or(other.setup),
            left_loaded: self.left_loaded.or(other.left_loaded),
            left_pool: self.left_pool.or(other.left_pool),
            left: self.left.or(other.left),
        }
    }
}

/// One launch of an engine.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct EngineLaunch {
    pub(super) engine: Option<Engine>,
    pub(super) version: Option<String>,
    /// Line on which it begins, from 1.
    pub(super) line: u64,
    /// Value of vLLM's `gpu_memory_utilization`.
    pub(super) utilization: Option<f64>,
    /// Value of SGLang's `mem_fraction_static`.
    pub(super) fraction: Option<f64>,
    /// Value of `mem_fraction_static` above which the KV cache has any memory, where SGLang names it.
    pub(super) fraction_minimum: Option<f64>,
    /// Whether CUDA graphs are turned off.
    pub(super) is_eager: bool,
    /// Whether vLLM has subtracted its estimate for CUDA graphs from the KV cache.
    pub(super) has_graphs_in_budget: bool,
    /// Whether the size of the KV cache was set by hand, so that `gpu_memory_utilization` has no effect.
    pub(super) has_kv_by_hand: bool,
    pub(super) workers: BTreeMap<WorkerName, WorkerFigures>,
    pub(super) kv_tokens: Option<u64>,
    pub(super) max_model_len: Option<u64>,
    /// Requests of `max_model_len` tokens that fit in the KV cache.
    pub(super) concurrency: Option<f64>,
    /// KV cache that one request of `max_model_len` tokens needs, and what there is for it, in bytes.
    pub(super) needed: Option<i64>,
    pub(super) kv_available: Option<i64>,
    /// The largest `max_model_len` that fits, as the engine estimates it.
    pub(super) fitting_len: Option<u64>,
    /// Tokens that had no room in SGLang's KV cache.
    pub(super) requested_tokens: Option<u64>,
    /// Free memory before and after vLLM's profiling, in bytes.
    pub(super) free_before: Option<i64>,
    pub(super) free_after: Option<i64>,
    /// When it reached each stage: line and stage, in order.
    pub(super) stages: Vec<(u64, Stage)>,
    /// What failed first, and on which line. Errors replace warnings.
    pub(super) failure: Option<(u64, ServingFailure)>,
    /// How often requests were retracted.
    pub(super) retractions: u64,
}

/// Workers whose figures are kept: no engine has more, but a log can name any number.
const MAX_WORKERS: usize = 4096;

impl EngineLaunch {
    /// Stores a figure under the name that it has in the table of lines; returns whether the name is known.
    pub(super) fn set(&mut self, worker: WorkerName, name: &str, text: &str) -> bool {
        let size = || gibibytes(text);
        let tokens = || text.replace(',', "").parse::<u64>().ok().filter(|&tokens| tokens < MAX_TOKENS);
        let bytes =
            || text.parse::<i64>().ok().filter(|bytes| bytes.unsigned_abs() < MAX_BYTES.unsigned_abs());
        match name {
            "version" => self.version = Some(text.to_owned()),
            "utilization" => self.utilization = fraction(text).or(self.utilization),
            "utilization_rounded" => self.utilization = self.utilization.or_else(|| fraction(text)),
            "fraction" => self.fraction = fraction(text).or(self.fraction),
            "fraction_minimum" => self.fraction_minimum = fraction(text),
            "eager" => self.is_eager = true,
            "graphs_in_budget" => self.has_graphs_in_budget = true,
            "kv_by_hand" => self.has_kv_by_hand = true,
            "kv_tokens" => self.kv_tokens = tokens(),
            "max_model_len" => self.max_model_len = tokens(),
            "fitting_len" => self.fitting_len = tokens(),
            "requested_tokens" => self.requested_tokens = tokens(),
            "concurrency" => self.concurrency = text.parse().ok().filter(|&times: &f64| times > 0.0),
            "needed_gib" => self.needed = size(),
            "kv_available_gib" => self.kv_available = size(),
            "initial_gib" => self.free_before = size(),
            "current_gib" => self.free_after = size(),
            "initial_bytes" => self.free_before = bytes(),
            "current_bytes" => self.free_after = bytes(),
            _ => return self.set_worker(worker, name, size()),
        }
        true
    }

    fn set_worker(&mut self, worker: WorkerName, name: &str, size: Option<i64>) -> bool {
        if self.workers.len() >= MAX_WORKERS && !self.workers.contains_key(&worker) {
            return true;
        }
        let figures = self.workers.entry(worker).or_default();
        let (slot, is_added) = match name {
            "total_gib" => (&mut figures.total, false),
            "free_gib" => (&mut figures.free, false),
            // A draft model is loaded after the model itself.
            "free_first_gib" => {
                figures.free = figures.free.or(size);
                return true;
            }
            "budget_gib" => (&mut figures.budget, false),
            "weights_gib" => (&mut figures.weights, false),
            "weights_more_gib" => (&mut figures.weights, true),
            "consumed_gib" => (&mut figures.consumed, false),
            "activations_gib" => (&mut figures.activations, false),
            "peak_gib" => (&mut figures.peak, false),
            "non_pytorch_gib" => (&mut figures.non_pytorch, false),
            "non_pytorch_device_gib" => (&mut figures.non_pytorch_device, false),
            "in_use_loaded_gib" => (&mut figures.in_use_loaded, false),
            "kv_gib" => (&mut figures.kv_cache, false),
            "kv_keys_gib" | "kv_values_gib" | "kv_more_gib" => (&mut figures.kv_cache, true),
            "graphs_gib" => (&mut figures.graphs, false),
            "graphs_more_gib" => (&mut figures.graphs, true),
            "graphs_estimated_gib" => (&mut figures.graphs_estimated, false),
            "setup_gib" => (&mut figures.setup, true),
            "left_loaded_gib" => (&mut figures.left_loaded, false),
            "left_pool_gib" => (&mut figures.left_pool, false),
            "left_gib" => (&mut figures.left, false),
            _ => return false,
        };
        let before = if is_added { slot.unwrap_or(0) } else { 0 };
        *slot = size.map(|size| (before + size).min(MAX_BYTES)).or(*slot);
        true
    }

    /// The stage that it had reached on a line.
    pub(super) fn stage_at(&self, line: u64) -> Stage {
        let reached = self.stages.iter().take_while(|(reached, _)| *reached <= line);
        reached.last().map_or(Stage::Starting, |&(_, stage)| stage)
    }

    /// The stage that it has reached.
    pub(super) fn stage(&self) -> Stage {
        self.stage_at(u64::MAX)
    }

    /// Figures of the worker with the least memory to spare, with those of others where it lacks some.
    pub(super) fn tightest(&self) -> (Option<u32>, WorkerFigures) {
        let spare = |figures: &WorkerFigures| {
            let least = |size: Option<i64>| size.unwrap_or(i64::MAX);
            let most = |size: Option<i64>| size.map_or(i64::MAX, |size| -size);
            (least(figures.kv_cache), least(figures.left_loaded), least(figures.free), most(figures.weights))
        };
        let tightest = self.workers.iter().min_by_key(|(_, figures)| spare(figures));
        let Some((name, figures)) = tightest else { return (None, WorkerFigures::default()) };
        (name.rank(), self.workers.values().fold(*figures, |figures, other| figures.or(*other)))
    }
}

/// More tokens than any KV cache has.
const MAX_TOKENS: u64 = 1 << 50;
/// More GiB than any GPU has.
const MAX_GIB: f64 = (1u64 << 20) as f64;

/// The same in bytes. Sums of a few such amounts are far from overflowing.
const MAX_BYTES: i64 = 1 << 50;

/// Reads an amount in GiB, which SGLang calls GB.
fn gibibytes(text: &str) -> Option<i64> {
    let gib = text.parse::<f64>().ok().filter(|gib| gib.abs() < MAX_GIB)?;
    Some((gib * (1u64 << 30) as f64).round() as i64)
}

/// Reads a fraction of the GPU's memory.
fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|&value: &f64| value > 0.0 && value <= 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::lines::LINES;

    #[test]
    fn every_group_of_a_pattern_is_the_name_of_a_figure() {
        for row in LINES {
            let names = row.pattern.split("(?<").skip(1).filter_map(|part| part.split('>').next());
            for name in names {
                assert!(EngineLaunch::default().set(WorkerName::Unnamed, name, "1"), "`{name}`");
            }
        }
        assert!(!EngineLaunch::default().set(WorkerName::Unnamed, "something", "1"));
    }

    #[test]
    fn impossible_figures_are_left_out() {
        for text in ["NaN", "inf", "99999999999999999999", "-1e300", ""] {
            assert_eq!(gibibytes(text), None, "{text}");
        }
        for text in ["0", "1.2", "-0.5", "NaN"] {
            assert_eq!(fraction(text), None, "{text}");
        }
        assert_eq!(gibibytes("-1.5"), Some(-3 << 29));
    }
}
