//! The JSON of `oomph explain --json`: public and versioned. Fields may be added, none renamed. Numbers
//! that the message does not give are absent.

use analysis::messages::{Message, NextCommand, Numbers, OtherProcess, TracebackSite};
use analysis::serving::{ServingReport, ServingShare};
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::Bytes;
use std::collections::BTreeMap;

/// The out-of-memory messages of a log.
#[derive(Serialize, JsonSchema)]
pub struct ExplainDocument {
    /// Version of the format.
    version: u32,
    /// Messages, in the order of the log; empty if there are none.
    messages: Vec<MessageReport>,
    /// Number of further messages, of which there were too many to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<u64>,
    /// What the log of vLLM or SGLang says about its memory; absent in other logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    serving: Option<EngineReport>,
}

/// Memory of an engine that serves language models, in its last launch in the log.
#[derive(Serialize, JsonSchema)]
struct EngineReport {
    /// `vllm` or `sglang`.
    engine: &'static str,
    /// Its release; `null` if the log does not say.
    version: Option<String>,
    /// Setting that divides the memory: `gpu_memory_utilization` or `mem_fraction_static`.
    setting: &'static str,
    /// Value of the setting; `null` if it is not known.
    value: Option<f64>,
    /// Whether the value is the release's default, since the log does not have it.
    is_default: bool,
    /// Number of workers with figures in the log.
    workers: usize,
    /// Rank with the least memory to spare, which the figures are about; `null` if its lines do not name it.
    rank: Option<u32>,
    /// Memory by use. The sum is `whole` and `excess`, or all that is known where `whole` is `null`.
    parts: Vec<PartReport>,
    /// Bytes of the GPU, or bytes of it that were free before the engine began; `null` if the log does not
    /// say.
    whole: Option<u64>,
    /// Whether `whole` is the GPU's memory.
    is_whole_gpu: bool,
    /// Bytes that the parts need beyond `whole`.
    excess: u64,
    /// Tokens that fit in the KV cache.
    kv_tokens: Option<u64>,
    /// Tokens of the longest request.
    max_model_len: Option<u64>,
    /// Requests of the longest length that fit in the KV cache at the same time.
    concurrency: Option<f64>,
    /// What failed: `startup_memory`, `no_kv_cache`, `model_length`, `profiling_changed`, `weights_oom`,
    /// `profiling_oom`, `kv_cache_oom`, `graphs_oom`, `warm_up_oom`, `serving_oom`, `pool_exhausted` or
    /// `retracted`; `null` if nothing did.
    failure: Option<&'static str>,
    /// Line of the failure, from 1.
    line: Option<u64>,
    /// Which way to turn the setting: `raise`, `lower` or `keep`.
    turn: &'static str,
    /// Value to set; `null` where no value helps or the log lacks the figures for one.
    to: Option<f64>,
    /// What happened, in one sentence.
    summary: String,
    /// What to change.
    fix: String,
    /// Where the value comes from, as sentences.
    reasons: Vec<String>,
    /// What else helps.
    alternatives: Vec<String>,
}

/// One out-of-memory message.
#[derive(Serialize, JsonSchema)]
struct MessageReport {
    /// Program that prints such messages, and from which release on, such as `torch-2.1`.
    generation: &'static str,
    /// What ran out of memory: `cuda`, `hip`, `xpu`, `mps`, `npu`, `host` or `other`.
    backend: &'static str,
    /// `capacity`, `fragmentation`, `other_process`, `limit`, `host_memory`, `not_pytorch` or `unknown`.
    cause: &'static str,
    /// What happened and why, in one sentence.
    summary: String,
    /// What else the numbers show, as sentences.
    details: Vec<String>,
    /// What the message does not show, as sentences.
    unknowns: Vec<String>,
    /// What to change.
    fix: String,
    /// Numbers of the message.
    numbers: NumbersReport,
    /// Line of the log on which it first begins, from 1.
    line: u64,
    /// Lines of the log on which it begins, at most 100.
    lines: Vec<u64>,
    /// How often it was printed.
    count: u64,
    /// Command to run next; `null` if there is none.
    next: Option<String>,
    /// Commands to run next, the first one first.
    commands: Vec<CommandReport>,
    /// Device ordinal.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u32>,
    /// Rank that printed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    /// Second cause that the numbers show.
    #[serde(skip_serializing_if = "Option::is_none")]
    also: Option<&'static str>,
    /// Parts of the device's memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartReport>,
    /// Innermost line of the user's code in the traceback above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<TracebackLine>,
}

/// A command to run next.
#[derive(Serialize, JsonSchema)]
struct CommandReport {
    /// Command line.
    command: String,
    /// What it shows.
    why: &'static str,
}

/// A part of the device's memory.
#[derive(Serialize, JsonSchema)]
struct PartReport {
    /// What uses it.
    name: &'static str,
    /// Number of bytes.
    bytes: u64,
}

/// A line of a traceback.
#[derive(Serialize, JsonSchema)]
struct TracebackLine {
    /// Path of the file, or the name of a notebook's cell.
    file: String,
    /// Line number, from 1.
    line: u64,
    /// Name of the function, `<module>` outside of one.
    function: String,
    /// Text of the line; `null` if the traceback does not have it.
    code: Option<String>,
}

/// Numbers of a message. Those that it does not contain are absent.
#[derive(Serialize, JsonSchema)]
struct NumbersReport {
    /// Bytes of the request that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<u64>,
    /// Total bytes of the device or machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Free bytes of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    free: Option<u64>,
    /// Bytes of PyTorch's tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated: Option<u64>,
    /// Bytes that PyTorch's allocator holds, with and without tensors in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<u64>,
    /// Bytes that PyTorch's allocator holds without tensors in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_unallocated: Option<u64>,
    /// Unused bytes in private pools of CUDA graphs, which PyTorch adds to `allocated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    private_pools: Option<u64>,
    /// Bytes that the process was allowed to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// Bytes of the device that this process has, as the driver counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    this_process: Option<u64>,
    /// Bytes that MPS counts in addition to its own allocations.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_allocations: Option<u64>,
    /// Resident bytes of a process that was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resident: Option<u64>,
    /// Bytes of shared memory of a process that was killed, which `resident` does not contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<u64>,
    /// Bytes in use of `total` or `limit`, counted by another program than PyTorch.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<u64>,
    /// Other processes that the message lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<OtherProcessReport>,
    /// Numbers that are not sizes of memory, by name.
    #[serde(flatten)]
    #[schemars(with = "BTreeMap<String, u64>")]
    more: BTreeMap<&'static str, u64>,
}

/// A process that a message lists.
#[derive(Serialize, JsonSchema)]
struct OtherProcessReport {
    /// Process ID.
    pid: u64,
    /// Bytes of the device that it has; absent if the driver did not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl ExplainDocument {
    /// Explains the messages of a log; `more` is the number of further ones.
    pub fn new(messages: &[Message], more: u64, serving: Option<&ServingReport>) -> ExplainDocument {
        ExplainDocument {
            version: 1,
            messages: messages.iter().map(message).collect(),
            more: (more > 0).then_some(more),
            serving: serving.map(engine),
        }
    }
}

fn engine(report: &ServingReport) -> EngineReport {
    let part = |share: &ServingShare| PartReport { name: share.part.name(), bytes: share.bytes.0 };
    let verdict = &report.verdict;
    EngineReport {
        engine: report.engine.name(),
        version: report.version.clone(),
        setting: report.engine.setting(),
        value: report.value,
        is_default: report.is_default,
        workers: report.workers,
        rank: report.rank,
        parts: report.parts.iter().map(part).collect(),
        whole: report.whole.map(|whole| whole.0),
        is_whole_gpu: report.is_whole_gpu,
        excess: report.excess.0,
        kv_tokens: report.kv_tokens,
        max_model_len: report.max_model_len,
        concurrency: report.concurrency,
        failure: verdict.failure.map(|failure| failure.name()),
        line: verdict.line,
        turn: verdict.turn.name(),
        to: verdict.to,
        summary: verdict.summary.clone(),
        fix: verdict.fix.clone(),
        reasons: verdict.reasons.clone(),
        alternatives: verdict.alternatives.clone(),
    }
}

fn message(message: &Message) -> MessageReport {
    let verdict = message.explain();
    let command = |step: &NextCommand| CommandReport { command: step.command.clone(), why: step.why };
    let parts = message.parts();
    MessageReport {
        generation: message.kind.name(),
        backend: message.backend.name(),
        cause: verdict.cause.name(),
        numbers: numbers(&message.numbers),
        line: message.line(),
        lines: message.lines.clone(),
        count: message.count,
        next: verdict.steps.first().map(|step| step.command.clone()),
        commands: verdict.steps.iter().map(command).collect(),
        device: message.device,
        rank: message.rank,
        also: verdict.also.map(|cause| cause.name()),
        parts: parts
            .iter()
            .map(|share| PartReport { name: share.part.name(), bytes: share.bytes.0 })
            .collect(),
        site: message.site.clone().map(|TracebackSite { file, line, function, code }| TracebackLine {
            file,
            line,
            function,
            code,
        }),
        summary: verdict.summary,
        details: verdict.details,
        unknowns: verdict.unknowns,
        fix: verdict.fix,
    }
}

fn numbers(numbers: &Numbers) -> NumbersReport {
    let known = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
    let process = |other: &OtherProcess| OtherProcessReport { pid: other.pid, bytes: known(other.bytes) };
    NumbersReport {
        requested: known(numbers.requested),
        total: known(numbers.total),
        free: known(numbers.free),
        allocated: known(numbers.allocated),
        reserved: known(numbers.reserved),
        reserved_unallocated: known(numbers.reserved_unallocated),
        private_pools: known(numbers.private_pools),
        limit: known(numbers.limit),
        this_process: known(numbers.this_process),
        other_allocations: known(numbers.other_allocations),
        resident: known(numbers.resident),
        shared: known(numbers.shared),
        used: known(numbers.used),
        others: numbers.others.iter().map(process).collect(),
        more: numbers.more.iter().copied().collect(),
    }
}
