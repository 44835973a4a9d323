//! Lines of vLLM's and SGLang's logs that have something to say about memory: one table.

use super::{Engine, ServingFailure, Stage};
use crate::messages::pattern;
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// What a line shows besides its figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineEvent {
    /// The engine begins.
    Launch,
    /// A setting, which other programs print as well.
    Setting,
    /// Only figures.
    Figures,
    /// The engine is done with something.
    Reached(Stage),
    /// The engine gives up, or has no room for a request.
    Failed(ServingFailure),
}

/// A line of a log.
pub(super) struct LineRow {
    pub(super) engine: Engine,
    /// Regular expression for the line without white space. `NUM` stands for a number, `FRACTION` for one
    /// from 0 to 1, `VERSION` for a release; a group has the name of the figure that it captures
    /// (`figures.rs`). At one place in a text the first pattern of the table counts. Each begins with letters
    /// that lines of every request do not have, since the search stops there.
    pub(super) pattern: &'static str,
    pub(super) event: LineEvent,
}

const fn vllm(event: LineEvent, pattern: &'static str) -> LineRow {
    LineRow { engine: Engine::Vllm, pattern, event }
}

const fn sglang(event: LineEvent, pattern: &'static str) -> LineRow {
    LineRow { engine: Engine::Sglang, pattern, event }
}

use LineEvent::{Failed, Figures, Launch, Reached, Setting};

pub(super) const LINES: &[LineRow] = &[
    // vLLM 0.2 to now.
    vllm(Launch, r"Initializinga(?:nLLM|V[01]LLM)engine(?:\(v(?<version>VERSION)[^)]{0,60}\))?withconfig"),
    vllm(Launch, r"vLLMAPIserverversion(?<version>VERSION)"),
    // Both values of this line are settings; only the first one is in use.
    vllm(
        Figures,
        concat!(
            r"(?<graphs_in_budget>CUDAgraphmemoryprofilingisenabled)[!-~]{0,120}?Thecurrent",
            r"--gpu-memory-utilization=(?<utilization>FRACTION)isequivalentto",
            r"--gpu-memory-utilization=FRACTIONwithout"
        ),
    ),
    vllm(Setting, r#"gpu_memory_utilization["']?[=:](?<utilization>FRACTION)"#),
    vllm(Setting, r"--gpu-memory-utilization=?(?<utilization>FRACTION)"),
    // Not `set 'enforce_eager=True'`, which vLLM suggests before it captures graphs.
    vllm(Setting, r#"enforce_eager["']?[=:](?<eager>True)[,)}]"#),
    vllm(Reached(Stage::Loaded), r"Modelloadingtook(?<weights_gib>NUM)Gi?B"),
    vllm(Reached(Stage::Loaded), r"Loadingmodelweightstook(?<weights_gib>NUM)Gi?B"),
    // 0.6.5 to 0.10, engine V0.
    vllm(
        Figures,
        concat!(
            r"canusetotal_gpu_memory\((?<total_gib>NUM)GiB\)xgpu_memory_utilization",
            r"\((?<utilization_rounded>NUM)\)=(?<budget_gib>NUM)GiB"
        ),
    ),
    vllm(
        Reached(Stage::Profiled),
        concat!(
            r"modelweightstake(?<weights_gib>NUM)GiB;non_torch_memorytakes(?<non_pytorch_gib>NUM)GiB;",
            r"PyTorchactivationpeakmemorytakes(?<activations_gib>NUM)GiB;",
            r"therestofthememoryreservedforKVCacheis(?<kv_gib>NUM)GiB"
        ),
    ),
    // 0.6.3 to 0.6.5.
    vllm(
        Reached(Stage::Profiled),
        concat!(
            r"Memoryprofilingresults:(?:duration=NUMseconds,)?total_gpu_memory=(?<total_gib>NUM)GiB,?",
            r"initial_memory_usage=(?<in_use_loaded_gib>NUM)GiB,?peak_torch_memory=(?<peak_gib>NUM)GiB,?",
            r"memory_usage_post_profile=NUMGi[bB],?non_torch_memory=(?<non_pytorch_device_gib>NUM)GiB,?",
            r"kv_cache_size=(?<kv_gib>NUM)GiB,?gpu_memory_utilization=(?<utilization_rounded>FRACTION)"
        ),
    ),
    // V1: what is logged at DEBUG, then at INFO.
    vllm(
        Figures,
        concat!(
            r"Initialfreememory:(?<free_gib>NUM)GiB;Requestedmemory:",
            r"(?<utilization_rounded>NUM)\(util\),(?<budget_gib>NUM)GiB"
        ),
    ),
    vllm(
        Figures,
        concat!(
            r"TotalnonKVcachememory:NUMGiB;torchpeakmemoryincrease:(?<activations_gib>NUM)GiB;",
            r"non-torchforwardincreasememory:(?<non_pytorch_gib>NUM)GiB;weightsmemory:(?<weights_gib>NUM)GiB"
        ),
    ),
    vllm(Reached(Stage::Profiled), r"AvailableKVcachememory:(?<kv_gib>NUM)GiB"),
    vllm(
        Reached(Stage::Profiled),
        concat!(
            r"Initialfreememory(?<free_gib>NUM)GiB,reserved(?<kv_gib>NUM)GiBmemoryforKVCacheas",
            r"(?<kv_by_hand>specified)"
        ),
    ),
    vllm(Figures, r"EstimatedCUDAgraphmemory:(?<graphs_estimated_gib>NUM)GiBtotal"),
    vllm(Figures, r"GPUKVcachesize:(?<kv_tokens>[\d,]+)tokens"),
    vllm(Figures, r"Maximumconcurrencyfor(?<max_model_len>[\d,]+)tokensperrequest:(?<concurrency>NUM)x"),
    vllm(Reached(Stage::Capturing), r"Capturing(?:CUDAgraph|cudagraphs|themodelforCUDAgraphs)"),
    vllm(Reached(Stage::Captured), r"Graphcapturingfinishedin\d+secs(?:,took(?<graphs_gib>NUM)GiB)?"),
    vllm(Figures, r"CUDAgraphpoolmemory:(?<graphs_gib>NUM)GiB\(actual\)"),
    vllm(
        Reached(Stage::Captured),
        concat!(
            r"Freememoryondevice(?:cuda:\d+)?\((?<free_gib>NUM)/(?<total_gib>NUM)GiB\)onstartup\.",
            r"DesiredGPUmemoryutilizationis\((?<utilization>FRACTION),(?<budget_gib>NUM)GiB\)\.",
            r"Actualusage(?:is|:)(?:(?<weights_gib>NUM)GiBforweights?|",
            r"(?<consumed_gib>NUM)GiBforconsumedmemory\(weights\+non-torch\)),",
            r"(?<activations_gib>NUM)GiBforpeakactivation,",
            r"(?:(?<non_pytorch_gib>NUM)GiBfornon-torchmemory,)?(?:and)?",
            r"(?<graphs_gib>NUM)GiBfor(?:CUDAGraph|NPUgraph)memory"
        ),
    ),
    vllm(Figures, r"Currentkvcachememoryinuseis(?<kv_gib>NUM)GiB"),
    vllm(Reached(Stage::Ready), r"initengine\(profile,createkvcache,warmupmodel\)took"),
    vllm(
        Failed(ServingFailure::StartupMemory),
        concat!(
            r"Freememoryondevice(?:cuda:\d+)?\((?<free_gib>NUM)/(?<total_gib>NUM)GiB\)onstartup",
            r"islessthandesiredGPUmemoryutilization",
            r"(?:\((?<utilization>FRACTION),(?<budget_gib>NUM)GiB\))?"
        ),
    ),
    vllm(Failed(ServingFailure::NoKvCache), r"Noavailablememoryforthecacheblocks"),
    vllm(Failed(ServingFailure::NoKvCache), r"Cannotauto-fitmax_model_len:notenoughGPUmemory"),
    vllm(
        Failed(ServingFailure::ModelLength),
        concat!(
            r"axseqlen\((?<max_model_len>\d+)\)islargerthanthemaximumnumberoftokensthatcanbe",
            r"storedinKVcache\((?<kv_tokens>\d+)\)"
        ),
    ),
    vllm(
        Failed(ServingFailure::ModelLength),
        concat!(
            r"axseqlen\((?<max_model_len>\d+)\),?\(?(?<needed_gib>NUM)GiBKVcacheisneeded,",
            r"whichislargerthantheavailableKVcachememory\((?<kv_available_gib>NUM)GiB\)",
            r"(?:\.Basedontheavailablememory,theestimatedmaximummodellengthis(?<fitting_len>\d+)\.)?"
        ),
    ),
    vllm(
        Failed(ServingFailure::ProfilingChanged),
        concat!(
            r"Errorinmemoryprofiling\.Initialfreememory(?<initial_gib>NUM)GiB,",
            r"currentfreememory(?<current_gib>NUM)GiB"
        ),
    ),
    vllm(
        Failed(ServingFailure::ProfilingChanged),
        concat!(
            r"Errorinmemoryprofiling\.Initialfreememory(?<initial_bytes>\d+),",
            r"currentfreememory(?<current_bytes>\d+)"
        ),
    ),
    vllm(Failed(ServingFailure::ProfilingChanged), r"Errorinmemoryprofiling\."),
    vllm(Failed(ServingFailure::WarmUpOom), r"outofmemoryoccurredwhenwarmingup"),
    // SGLang.
    sglang(Launch, r"server_args=ServerArgs\("),
    sglang(Setting, r#"mem_fraction_static["']?[=:](?<fraction>FRACTION)"#),
    sglang(Setting, r"--mem-fraction-static=?(?<fraction>FRACTION)"),
    sglang(Setting, r"disable_cuda_graph=(?<eager>True)"),
    sglang(Figures, r"Inittorchdistributedends\.(?:elapsed=NUMs,)?memusage=(?<setup_gib>NUM)GB"),
    sglang(Figures, r"Loadweightbegin\.availmem=(?<free_first_gib>NUM)GB"),
    sglang(
        Reached(Stage::Loaded),
        concat!(
            r"Loadweightend\.[!-~]{0,240}?availmem=(?<left_loaded_gib>NUM)GB",
            r"(?:,memusage=(?<weights_more_gib>NUM)GB)?"
        ),
    ),
    sglang(
        Figures,
        concat!(
            r"KVCacheisallocated\.(?:dtype:[\w.]{0,40},)?tokens:(?<kv_tokens>\d+),",
            r"Ksize:(?<kv_keys_gib>NUM)GB,Vsize:(?<kv_values_gib>NUM)GB"
        ),
    ),
    sglang(
        Figures,
        r"KVCacheisallocated\.(?:dtype:[\w.]{0,40},)?tokens:(?<kv_tokens>\d+),KVsize:(?<kv_more_gib>NUM)GB",
    ),
    sglang(
        Reached(Stage::Ready),
        concat!(
            r"Post-captureKVsizing:KVcacheallocated\.dtype:[\w.]{0,40},tokens:(?<kv_tokens>\d+),",
            r"KVsize:(?<kv_gib>NUM)GB,availmem=(?<left_gib>NUM)GB"
        ),
    ),
    sglang(Reached(Stage::Profiled), r"Memorypoolend\.availmem=(?<left_pool_gib>NUM)GB"),
    sglang(Reached(Stage::Capturing), r"Capture[a-z]{0,20}(?:cuda|CUDA)graphbegin"),
    sglang(
        Reached(Stage::Captured),
        concat!(
            r"Capture[a-z]{0,20}(?:cuda|CUDA)graphend\.[!-~]{0,60}?memusage=(?<graphs_more_gib>NUM)GB",
            r"[.,]availmem=(?<left_gib>NUM)GB"
        ),
    ),
    sglang(
        Reached(Stage::Captured),
        concat!(
            r"Capture[a-z]{0,20}(?:cuda|CUDA)graphend\.[!-~]{0,60}?availmem=(?<left_gib>NUM)GB\.",
            r"memusage=(?<graphs_more_gib>NUM)GB"
        ),
    ),
    sglang(
        Reached(Stage::Ready),
        concat!(
            r"max_total_num_tokens=(?<kv_tokens>\d+),[!-~]{0,160}?context_len=(?<max_model_len>\d+)",
            r"(?:,available_gpu_mem=(?<left_gib>NUM)GB)?"
        ),
    ),
    sglang(Reached(Stage::Ready), r"Theserverisfiredupandreadytoroll"),
    sglang(
        Failed(ServingFailure::NoKvCache),
        concat!(
            r"Notenoughmemory\.?Pleasetrytoincrease--mem-fraction-static",
            r"(?:\.?Currentvalue:[a-z_.]{0,20}mem_fraction_static=(?<fraction>FRACTION))?"
        ),
    ),
    sglang(
        Failed(ServingFailure::NoKvCache),
        concat!(
            r"LoadedweightsleavenoGPUmemoryfortheKVcacheunder--mem-fraction-static=(?<fraction>FRACTION)",
            r"(?:\.Raise(?:--mem-fraction-staticabove|ittoatleast)(?<fraction_minimum>FRACTION))?"
        ),
    ),
    sglang(
        Failed(ServingFailure::PoolExhausted),
        r"ofmemory\.Trytoloweryourbatchsize\.Trytoallocate(?<requested_tokens>\d+)tokens",
    ),
    sglang(Failed(ServingFailure::Retracted), r"KVcachepoolisfull\.Retractrequests"),
    sglang(Failed(ServingFailure::Retracted), r"outofmemoryhappened"),
    sglang(
        Failed(ServingFailure::GraphsOom),
        r"Capturecudagraphfailed:(?:CUDAoutofmemory|CUDAerror:outofmemory)",
    ),
];

/// A line that was recognized.
pub(super) struct FoundLine<'a> {
    pub(super) row: &'static LineRow,
    /// Figures by name, as the line writes them.
    pub(super) figures: Vec<(&'static str, &'a str)>,
    pub(super) at: usize,
    pub(super) end: usize,
}

/// Finds the next line from a position on.
pub(super) fn next_line(text: &str, from: usize) -> Option<FoundLine<'_>> {
    let whole = ANY.find_at(text, from)?;
    let (row, words) = PATTERNS.iter().find(|(_, words)| words.is_match(&text[whole.start()..]))?;
    let found = words.captures(&text[whole.start()..])?;
    let figures = words.capture_names().flatten().filter_map(|name| {
        let text = found.name(name)?.as_str();
        Some((name, text))
    });
    let figures = figures.collect();
    Some(FoundLine { row, figures, at: whole.start(), end: whole.start() + length(&found) })
}

fn length(found: &Captures<'_>) -> usize {
    found.get(0).map_or(1, |whole| whole.len().max(1))
}

/// A pattern of the table with its placeholders filled in.
fn filled(words: &str) -> String {
    words
        .replace("NUM", r"-?\d+(?:\.\d+)?")
        .replace("FRACTION", r"(?:0?\.\d{1,18}|1(?:\.0{1,4})?)")
        .replace("VERSION", r"\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)*")
}

static ANY: LazyLock<Regex> = LazyLock::new(|| {
    let unnamed = pattern(r"\(\?<\w+>");
    let plain = |row: &LineRow| format!("(?:{})", unnamed.replace_all(&filled(row.pattern), "(?:"));
    pattern(&LINES.iter().map(plain).collect::<Vec<_>>().join("|"))
});

static PATTERNS: LazyLock<Vec<(&LineRow, Regex)>> = LazyLock::new(|| {
    LINES.iter().map(|row| (row, pattern(&format!("^(?:{})", filled(row.pattern))))).collect()
});
