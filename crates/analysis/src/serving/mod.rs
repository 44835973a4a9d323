//! Logs of vLLM and SGLang: where the memory of a GPU goes, and how to change the setting that divides
//! it.
//!
//! Both engines load the weights, measure, and give what is left to the KV cache. How much that is depends on
//! one setting, and its value can be too low (nothing is left for the KV cache) or too high (nothing is left
//! for what comes later). The log has the figures to tell which.
//!
//! | module | from → to |
//! |---|---|
//! | `lines` | the table of lines that have figures |
//! | `figures` | lines → [`EngineLaunch`](figures::EngineLaunch): what the log states |
//! | `reader` | a log → its messages and the last launch in it |
//! | `plan` | figures → memory by use, and the largest safe value of the setting |
//! | `vllm`, `sglang` | how each engine divides the memory |
//! | `advice` | plan and failure → what to change, in words |

mod advice;
mod figures;
mod lines;
mod plan;
mod reader;
mod sglang;
mod vllm;

pub use advice::{ServingVerdict, Turn};
pub use plan::{ServingPart, ServingShare};
pub use reader::LogReader;

use crate::messages::{Backend, Message, MessageKind};
use figures::EngineLaunch;
use plan::MemoryPlan;
use snapshot::Bytes;

/// An engine that serves language models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl Engine {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
        }
    }

    /// Name as its authors write it.
    pub fn title(self) -> &'static str {
        match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
        }
    }

    /// Name of the setting that divides the memory.
    pub fn setting(self) -> &'static str {
        match self {
            Engine::Vllm => "gpu_memory_utilization",
            Engine::Sglang => "mem_fraction_static",
        }
    }
}

/// How far an engine has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Starting,
    /// The weights are loaded.
    Loaded,
    /// The size of the KV cache is known; SGLang has allocated it.
    Profiled,
    Capturing,
    /// CUDA graphs are captured.
    Captured,
    /// It waits for requests.
    Ready,
}

/// What went wrong while an engine started or served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServingFailure {
    /// Less memory was free at startup than the setting asks for.
    StartupMemory,
    /// Nothing was left for the KV cache.
    NoKvCache,
    /// The KV cache is smaller than one request of the longest length.
    ModelLength,
    /// More memory was free after profiling than before.
    ProfilingChanged,
    /// Out of memory while the weights were loaded.
    WeightsOom,
    /// Out of memory in vLLM's profiling run.
    ProfilingOom,
    /// Out of memory while the KV cache was allocated.
    KvCacheOom,
    /// Out of memory while CUDA graphs were captured.
    GraphsOom,
    /// Out of memory in the last step before requests are served.
    WarmUpOom,
    /// Out of memory while requests were served.
    ServingOom,
    /// The KV cache had no room for a request that was already running.
    PoolExhausted,
    /// Requests were retracted because the KV cache was full. Only a warning.
    Retracted,
}

impl ServingFailure {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ServingFailure::StartupMemory => "startup_memory",
            ServingFailure::NoKvCache => "no_kv_cache",
            ServingFailure::ModelLength => "model_length",
            ServingFailure::ProfilingChanged => "profiling_changed",
            ServingFailure::WeightsOom => "weights_oom",
            ServingFailure::ProfilingOom => "profiling_oom",
            ServingFailure::KvCacheOom => "kv_cache_oom",
            ServingFailure::GraphsOom => "graphs_oom",
            ServingFailure::WarmUpOom => "warm_up_oom",
            ServingFailure::ServingOom => "serving_oom",
            ServingFailure::PoolExhausted => "pool_exhausted",
            ServingFailure::Retracted => "retracted",
        }
    }

    /// Out of memory at a stage of an engine.
    fn oom_at(stage: Stage, engine: Engine) -> ServingFailure {
        match (stage, engine) {
            (Stage::Starting, _) => ServingFailure::WeightsOom,
            (Stage::Loaded, Engine::Vllm) => ServingFailure::ProfilingOom,
            (Stage::Loaded, Engine::Sglang) | (Stage::Profiled, Engine::Vllm) => ServingFailure::KvCacheOom,
            (Stage::Profiled, Engine::Sglang) | (Stage::Capturing, _) => ServingFailure::GraphsOom,
            (Stage::Captured, _) => ServingFailure::WarmUpOom,
            (Stage::Ready, _) => ServingFailure::ServingOom,
        }
    }
}

/// What a log says about the memory of an engine, for the worker with the least of it to spare.
#[derive(Clone, PartialEq, Debug)]
pub struct ServingReport {
    /// The engine.
    pub engine: Engine,
    /// Its release, where the log says so.
    pub version: Option<String>,
    /// Value of the setting that divides the memory.
    pub value: Option<f64>,
    /// Whether that value is the default of the release, since the log does not have it.
    pub is_default: bool,
    /// Number of workers with figures of their own.
    pub workers: usize,
    /// Rank of the worker that the figures are about, where its lines name it.
    pub rank: Option<u32>,
    /// Memory by use, none of it empty. The sum is `whole` and `excess`.
    pub parts: Vec<ServingShare>,
    /// The GPU's memory, or what of it was free before the engine began; `None` if the log does not say.
    pub whole: Option<Bytes>,
    /// Whether `whole` is the GPU's memory.
    pub is_whole_gpu: bool,
    /// What the parts need beyond the whole.
    pub excess: Bytes,
    /// Tokens that fit in the KV cache.
    pub kv_tokens: Option<u64>,
    /// Longest request, in tokens.
    pub max_model_len: Option<u64>,
    /// Requests of the longest length that fit in the KV cache at the same time.
    pub concurrency: Option<f64>,
    /// What failed, and what to change.
    pub verdict: ServingVerdict,
    /// Lines of the out-of-memory messages that the verdict is about.
    oom_lines: Vec<u64>,
}

impl ServingReport {
    /// What the last launch in a log shows; `None` where no engine says anything about memory.
    fn new(launch: &EngineLaunch, messages: &[Message], gpu_memory: Option<Bytes>) -> Option<ServingReport> {
        let engine = launch.engine?;
        let oom = messages.iter().find(|message| is_device_oom(message, launch.line));
        let failure = failure(launch, engine, oom);
        let (rank, mut figures) = launch.tightest();
        let total = oom.and_then(|oom| oom.numbers.total).or(gpu_memory);
        figures.total = figures.total.or_else(|| signed(total));
        let has_figures = figures.weights.or(figures.kv_cache).or(figures.left_loaded).is_some();
        if failure.is_none() && !has_figures {
            return None;
        }
        let plan = match engine {
            Engine::Vllm => vllm::plan(launch, figures),
            Engine::Sglang => sglang::plan(launch, figures),
        };
        let verdict = advice::verdict(launch, &plan, failure, oom);
        let MemoryPlan { value, is_default, parts, whole, is_whole_gpu, excess, .. } = plan;
        Some(ServingReport {
            engine,
            version: launch.version.clone(),
            value,
            is_default,
            workers: launch.workers.len(),
            rank,
            parts,
            whole,
            is_whole_gpu,
            excess,
            kv_tokens: launch.kv_tokens,
            max_model_len: launch.max_model_len,
            concurrency: launch.concurrency,
            oom_lines: oom.map(|oom| oom.lines.clone()).unwrap_or_default(),
            verdict,
        })
    }

    /// Whether the verdict says what to do about a message.
    pub fn answers(&self, message: &Message) -> bool {
        is_of_an_engine(message.kind)
            || self.verdict.line.is_some_and(|line| message.lines.contains(&line))
            || message.lines.iter().any(|line| self.oom_lines.contains(line))
    }
}

/// What failed, and on which line: what the engine says itself, or else an out-of-memory message, which means
/// something else at each stage.
fn failure(launch: &EngineLaunch, engine: Engine, oom: Option<&Message>) -> Option<(u64, ServingFailure)> {
    let is_error = |failure: &(u64, ServingFailure)| failure.1 != ServingFailure::Retracted;
    let of_oom = || {
        let line = oom?.lines.iter().copied().find(|&line| line >= launch.line)?;
        Some((line, ServingFailure::oom_at(launch.stage_at(line), engine)))
    };
    launch.failure.filter(is_error).or_else(of_oom).or(launch.failure)
}

/// Whether a message of the last launch says that a GPU is out of memory.
fn is_device_oom(message: &Message, launch_line: u64) -> bool {
    let is_device = matches!(message.backend, Backend::Cuda | Backend::Hip | Backend::Xpu | Backend::Npu);
    is_device && !is_of_an_engine(message.kind) && message.lines.iter().any(|&line| line >= launch_line)
}

/// Whether an engine prints such messages itself.
fn is_of_an_engine(kind: MessageKind) -> bool {
    use MessageKind::{Sglang, VllmCache, VllmLength, VllmStartup};
    matches!(kind, VllmStartup | VllmCache | VllmLength | Sglang)
}

fn signed(bytes: Option<Bytes>) -> Option<i64> {
    bytes.and_then(|bytes| i64::try_from(bytes.0).ok())
}
