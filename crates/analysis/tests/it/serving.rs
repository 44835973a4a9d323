//! Logs of vLLM and SGLang. The lines have the formats of the engines' sources; their figures are made up.

use analysis::serving::{Engine, LogReader, ServingFailure, ServingReport, Turn};
use proptest::prelude::*;
use snapshot::Bytes;

fn report_with_gpu(log: &str, gpu_memory: Option<Bytes>) -> Option<ServingReport> {
    let mut reader = LogReader::default();
    reader.read(log.as_bytes());
    reader.finish(gpu_memory).2
}

#[track_caller]
fn report(log: &str) -> ServingReport {
    let report = report_with_gpu(log, None).expect("a log of an engine");
    assert_adds_up(&report);
    report
}

#[track_caller]
fn assert_adds_up(report: &ServingReport) {
    let sum: Bytes = report.parts.iter().map(|share| share.bytes).sum();
    if let Some(whole) = report.whole {
        assert_eq!(sum, whole + report.excess, "{report:#?}");
    }
    assert!(report.parts.iter().all(|share| share.bytes > Bytes::ZERO));
    let verdict = &report.verdict;
    if let (Some(to), Some(value)) = (verdict.to, report.value) {
        assert!(to > 0.0 && to <= 1.0, "{report:#?}");
        match verdict.turn {
            Turn::Raise => assert!(to > value, "{report:#?}"),
            Turn::Lower => assert!(to < value, "{report:#?}"),
            Turn::Keep => panic!("a value that is to be kept is not set: {report:#?}"),
        }
    }
    assert!(!verdict.summary.is_empty() && !verdict.fix.is_empty());
}

/// The parts in GiB, by name.
fn parts(report: &ServingReport) -> Vec<(&'static str, f64)> {
    let gib = |bytes: Bytes| (bytes.0 as f64 / (1u64 << 30) as f64 * 100.0).round() / 100.0;
    report.parts.iter().map(|share| (share.part.name(), gib(share.bytes))).collect()
}

#[track_caller]
fn check(log: &str, failure: Option<ServingFailure>, turn: Turn, to: Option<f64>, fix: &str) {
    let report = report(log);
    let verdict = &report.verdict;
    assert_eq!((verdict.failure, verdict.turn, verdict.to), (failure, turn, to), "{report:#?}");
    assert!(verdict.fix.contains(fix), "{report:#?}");
}

fn fixture(name: &str) -> String {
    let path = format!("{}/../../fixtures/serving/{name}.log", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the fixture is there")
}

/// OOM message of PyTorch with this request and this much free memory, on a GPU of 23.65 GiB.
fn oom(requested: &str, free: &str) -> String {
    format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total \
        capacity \
         of 23.65 GiB of which {free} is free. Including non-PyTorch memory, this process has 23.20 GiB \
         memory in \
         use. Of the allocated memory 22.10 GiB is allocated by PyTorch, and 90.00 MiB is reserved by \
         PyTorch but \
         unallocated."
    )
}

const V0: &str = "\
INFO 12-20 20:25:20 api_server.py:712] vLLM API server version 0.6.6
INFO 12-20 20:25:46 worker.py:241] Memory profiling takes 19.77 seconds
INFO 12-20 20:25:46 worker.py:241] the current vLLM instance can use total_gpu_memory (23.50GiB) x \
gpu_memory_utilization (0.90) = 21.15GiB
INFO 12-20 20:25:46 worker.py:241] model weights take 14.96GiB; non_torch_memory takes 0.12GiB; PyTorch \
activation \
peak memory takes 1.20GiB; the rest of the memory reserved for KV Cache is 4.87GiB.
INFO 12-20 20:25:46 executor_base.py:115] Maximum concurrency for 8192 tokens per request: 4.86x
INFO 12-20 20:26:10 model_runner.py:1535] Graph capturing finished in 14 secs, took 0.33 GiB
";

#[test]
fn the_first_engine_of_vllm_prints_every_figure() {
    let report = report(V0);
    assert_eq!(
        (report.engine, report.version.as_deref(), report.value),
        (Engine::Vllm, Some("0.6.6"), Some(0.9))
    );
    assert_eq!(
        parts(&report),
        [
            ("weights", 14.96),
            ("KV cache", 4.87),
            ("activations (peak)", 1.2),
            ("non-PyTorch memory", 0.12),
            ("CUDA graphs", 0.33),
            ("left, or in use before", 2.02),
        ]
    );
    // (23.5 - 1 assumed - 0.33 graphs - 0.5 margin) / 23.5 = 0.922
    assert_eq!((report.verdict.turn, report.verdict.to), (Turn::Raise, Some(0.92)));
    assert_eq!(report.concurrency, Some(4.86));
}

#[test]
fn a_release_that_counts_other_processes_as_its_own() {
    let log = |value: &str, initial: &str, non_torch: &str, kv_cache: &str, failure: &str| {
        report(&format!(
            "vllm-1  | INFO 11-18 18:07:33 model_runner.py:1077] Loading model weights took 2.0000 GB\n\
             vllm-1  | INFO 11-18 18:07:40 worker.py:232] Memory profiling results: total_gpu_memory=22.00GiB \
             initial_memory_usage={initial}GiB peak_torch_memory=3.50GiB memory_usage_post_profile=5.00Gib \
             non_torch_memory={non_torch}GiB kv_cache_size={kv_cache}GiB gpu_memory_utilization={value}\n{failure}"
        ))
    };
    let healthy = log("0.80", "2.60", "0.70", "13.40", "");
    assert_eq!(
        parts(&healthy),
        [
            ("weights", 2.0),
            ("KV cache", 13.4),
            ("activations (peak)", 1.5),
            ("non-PyTorch memory", 0.1),
            ("in use before it started", 0.6),
            ("left", 4.4),
        ]
    );
    // (22 - 1.1 assumed for graphs - 0.5 margin) / 22 = 0.927; what others use is in the setting already.
    assert_eq!((healthy.verdict.turn, healthy.verdict.to), (Turn::Raise, Some(0.92)));

    let error =
        "ERROR 11-18 18:07:40 engine.py:366] No available memory for the cache blocks. Try increasing it";
    let crowded = log("0.30", "20.50", "18.60", "-15.50", error);
    assert_eq!(
        (crowded.verdict.failure, crowded.verdict.turn),
        (Some(ServingFailure::NoKvCache), Turn::Keep)
    );
    assert!(crowded.verdict.summary.contains("what else uses the GPU need 22.10 GiB"), "{crowded:#?}");
    assert!(crowded.verdict.alternatives[0].contains("18.50 GiB was in use before"), "{crowded:#?}");
}

#[test]
fn graphs_in_the_budget_are_not_counted_twice() {
    let report = report(&fixture("vllm-healthy"));
    assert_eq!(
        (report.version.as_deref(), report.value, report.is_default),
        (Some("0.27.1"), Some(0.92), false)
    );
    assert_eq!(
        parts(&report),
        [
            ("weights", 61.14),
            ("KV cache", 61.92),
            ("activations (peak)", 3.3),
            ("non-PyTorch memory", 1.36),
            ("CUDA graphs", 1.15),
            ("in use before it started", 0.68),
            ("left", 10.25),
        ]
    );
    // (139.8 - 0.68 before - 0.25 graphs beyond the estimate - 2.796 margin) / 139.8 = 0.973
    assert_eq!((report.verdict.turn, report.verdict.to), (Turn::Raise, Some(0.97)));
    assert!(
        report.verdict.fix.contains("6.99 GiB more for the KV cache (28,630 tokens)"),
        "{}",
        report.verdict.fix
    );
}

#[test]
fn nothing_is_left_for_the_kv_cache() {
    let log = fixture("vllm-no-kv-cache");
    let with_gpu = report_with_gpu(&log, Some(Bytes(81_086 << 20))).expect("a report");
    assert_adds_up(&with_gpu);
    // Line 11 is the source code in the traceback.
    assert_eq!(with_gpu.verdict.line, Some(12));
    // The second rank has less to spare. The release's default is 0.9.
    assert_eq!((with_gpu.rank, with_gpu.value, with_gpu.is_default), (Some(1), Some(0.9), true));
    // (79.19 - 1 assumed - 2 assumed for graphs - 1.58 margin) / 79.19 = 0.942
    assert_eq!((with_gpu.verdict.turn, with_gpu.verdict.to), (Turn::Raise, Some(0.94)));
    assert!(with_gpu.verdict.fix.ends_with("leaves 1.53 GiB for the KV cache"), "{}", with_gpu.verdict.fix);
    check(
        &log,
        Some(ServingFailure::NoKvCache),
        Turn::Raise,
        None,
        "by at least 1.64 GiB of the GPU's memory",
    );
    // The same model on a GPU that is too small for it.
    let log = log.replace("-1.64", "-9.64");
    let small = report_with_gpu(&log, Some(Bytes(70 << 30))).expect("a report");
    assert_eq!((small.verdict.turn, small.verdict.to), (Turn::Keep, None));
    assert!(small.verdict.fix.contains("no value of gpu_memory_utilization is enough"));
}

#[test]
fn less_is_free_at_startup_than_asked_for() {
    let log = "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired \
    GPU memory \
               utilization (0.95, 45.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by \
               other \
               processes.";
    // (47.38 - 15.94 in use before - 2 assumed for graphs - 0.95 margin) / 47.38 = 0.601
    check(log, Some(ServingFailure::StartupMemory), Turn::Lower, Some(0.6), "from 0.95 to 0.60");
    let reasons = report(log).verdict.reasons.concat();
    assert!(reasons.contains("15.94 GiB was in use before"), "{reasons}");
}

const V1: &str = "\
INFO [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='m', enforce_eager=False
(APIServer pid=1) INFO non-default args: {'max_model_len': 32768, 'gpu_memory_utilization': 0.9}
(EngineCore_DP0 pid=9) DEBUG [gpu_worker.py:284] Initial free memory: 23.30 GiB; Requested memory: 0.90 \
(util), 21.29 GiB
(EngineCore_DP0 pid=9) INFO [gpu_model_runner.py:2392] Model loading took 15.2700 GiB and 9.402113 seconds
";

#[test]
fn the_longest_request_does_not_fit() {
    let needs = |needed: &str| {
        format!(
            "{V1}(EngineCore_DP0 pid=9) INFO [gpu_worker.py:298] Available KV cache memory: 3.00 GiB\n\
             ValueError: To serve at least one request with the models's max seq len (32768), ({needed} \
             GiB KV cache \
             is needed, which is larger than the available KV cache memory (3.00 GiB). Based on the \
             available memory, \
             the estimated maximum model length is 24576. Try increasing `gpu_memory_utilization`"
        )
    };
    let failure = Some(ServingFailure::ModelLength);
    // (23.66 - 0.36 before - 1.18 assumed for graphs - 0.5 margin) / 23.66 = 0.913
    check(&needs("3.20"), failure, Turn::Raise, Some(0.91), "leaves 3.24 GiB for the KV cache");
    let reasons = report(&needs("3.20")).verdict.reasons.concat();
    assert!(reasons.contains("at least 0.909 is needed for 32,768 tokens"), "{reasons}");
    // 32,768 tokens * 3.24 GiB / 4 GiB, in blocks of 16.
    check(&needs("4.00"), failure, Turn::Raise, Some(0.91), "lower max_model_len to 26,5");
    let old = "The model's max seq len (4096) is larger than the maximum number of tokens that can be \
    stored in KV \
               cache (3664). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`";
    check(old, failure, Turn::Raise, None, "lower max_model_len to 3,664, or raise gpu_memory_utilization");
}

#[test]
fn an_out_of_memory_message_is_judged_by_the_stage_of_the_engine() {
    let loaded = V1;
    // A suggestion of vLLM is not a setting.
    let hint =
        "To run the model in eager mode, set 'enforce_eager=True' or use '--enforce-eager' in the CLI.";
    let profiled = format!("{loaded}INFO [gpu_worker.py:298] Available KV cache memory: 4.62 GiB\n{hint}\n");
    let captured = format!(
        "{profiled}Capturing CUDA graph shapes: 100%\nGraph capturing finished in 3 secs, took 0.50 GiB\n"
    );
    let ready = format!("{captured}init engine (profile, create kv cache, warmup model) took 31.2 seconds\n");
    let starting = "INFO [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='m'\n";
    let fails = |log: &str| format!("{log}{}\n", oom("1.00 GiB", "512.00 MiB"));
    use ServingFailure::{KvCacheOom, ProfilingOom, ServingOom, WarmUpOom, WeightsOom};
    check(&fails(starting), Some(WeightsOom), Turn::Keep, None, "no value of gpu_memory_utilization helps");
    check(&fails(loaded), Some(ProfilingOom), Turn::Keep, None, "Lower max_num_batched_tokens");
    // 0.9 - (0.5 missing + 1.18 for graphs + 0.5 margin) / 23.65 = 0.808
    check(&fails(&profiled), Some(KvCacheOom), Turn::Lower, Some(0.8), "from 0.90 to 0.80");
    // 0.9 - (0.5 missing + 0.5 margin) / 23.65 = 0.858
    check(&fails(&captured), Some(WarmUpOom), Turn::Lower, Some(0.85), "from 4.62 GiB to 3.44 GiB");
    check(&fails(&ready), Some(ServingOom), Turn::Lower, Some(0.85), "from 0.90 to 0.85");
    let warm_up = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy \
    requests. Please \
                   try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.";
    check(&format!("{captured}{warm_up}"), Some(WarmUpOom), Turn::Lower, Some(0.82), "lower");
}

#[test]
fn graphs_that_are_not_captured_yet_need_room_as_well() {
    let report = report(&fixture("vllm-graphs"));
    // 0.97 - (0.21 missing + 1.18 - 0.26 for graphs + 0.5 margin) / 23.65 = 0.901
    assert_eq!((report.verdict.failure, report.verdict.to), (Some(ServingFailure::GraphsOom), Some(0.9)));
    assert_eq!(report.whole, Some(Bytes((23.65 * (1u64 << 30) as f64).round() as u64)));
    assert!(report.verdict.reasons.iter().all(|reason| !reason.contains("max_model_len")));
}

#[test]
fn a_process_that_releases_memory_is_not_the_settings_fault() {
    let new = "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free \
    memory 90.17 GiB. \
               This happens when other processes sharing the same container release GPU memory";
    let old = "AssertionError: Error in memory profiling. Initial free memory 7652507648, current free \
    memory 7665090560.";
    let failure = Some(ServingFailure::ProfilingChanged);
    check(new, failure, Turn::Keep, None, "start it again");
    assert!(report(new).verdict.summary.contains("released 7.23 GiB or more"));
    assert!(report(old).verdict.summary.contains("released 12.00 MiB or more"));
}

#[test]
fn sglangs_fraction_is_of_what_was_free_before_the_weights() {
    let report = report(&fixture("sglang-no-kv-cache"));
    assert_eq!((report.engine, report.value, report.is_whole_gpu), (Engine::Sglang, Some(0.7), false));
    assert_eq!(parts(&report), [("weights", 32.2), ("left", 11.6)]);
    // 1 - (2 assumed for graphs + 4.38 for activations) / 43.8 = 0.854
    assert_eq!((report.verdict.turn, report.verdict.to), (Turn::Raise, Some(0.85)));
    assert!(report.verdict.fix.ends_with("leaves 5.03 GiB for the KV cache"), "{}", report.verdict.fix);
    let unknown = fixture("sglang-no-kv-cache").replace("mem_fraction_static=", "");
    check(
        &unknown,
        Some(ServingFailure::NoKvCache),
        Turn::Raise,
        Some(0.85),
        "raise mem_fraction_static to 0.85",
    );
    let new = "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. Raise";
    let log = fixture("sglang-no-kv-cache").replace("Not enough memory. Please", new);
    check(
        &log,
        Some(ServingFailure::NoKvCache),
        Turn::Raise,
        Some(0.85),
        "raise mem_fraction_static from 0.70",
    );
}

#[test]
fn sglang_has_room_to_spare() {
    let report = report(&fixture("sglang-healthy"));
    assert_eq!(
        parts(&report),
        [
            ("weights", 15.17),
            ("KV cache", 48.88),
            ("CUDA graphs", 1.62),
            ("unaccounted", 0.14),
            ("left", 12.31),
        ]
    );
    // 1 - (14.06 kept - 12.31 left + 5 for activations) / 78.12 = 0.914
    assert_eq!((report.verdict.turn, report.verdict.to), (Turn::Raise, Some(0.91)));
    assert_eq!((report.kv_tokens, report.max_model_len), (Some(400_516), Some(32_768)));
}

#[test]
fn a_full_kv_cache_of_sglang_is_not_a_full_gpu() {
    let healthy = fixture("sglang-healthy");
    let retract = "[2025-08-11 18:00:00] KV cache pool is full. Retract requests. #retracted_reqs: 1, \
                   #new_tokens_gained: 512, #new_token_ratio: 0.9998 -> 1.0000\n";
    let log = format!("{healthy}{retract}{retract}");
    check(
        &log,
        Some(ServingFailure::Retracted),
        Turn::Raise,
        Some(0.91),
        "raise mem_fraction_static from 0.82",
    );
    assert!(report(&log).verdict.summary.contains("full 2 times"));
    let prefill = "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate \
    9000 tokens.\n\
                   Available tokens: 120";
    let log = format!("{log}{prefill}");
    check(
        &log,
        Some(ServingFailure::PoolExhausted),
        Turn::Raise,
        Some(0.91),
        "raise mem_fraction_static from 0.82",
    );
    assert!(report(&log).verdict.summary.contains("9,000 more tokens"));
}

#[test]
fn sglang_captures_graphs_without_room_for_them() {
    let (before, _) = fixture("sglang-healthy")
        .split_once("[2025-08-11 17:16:58]")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("a line");
    let log = format!(
        "{before}[2025-08-11 17:16:40] Exception: Capture cuda graph failed: {}\nPossible solutions:\n\
         1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
        oom("448.00 MiB", "200.00 MiB")
    );
    // 0.82 - (0.24 missing + 2 for graphs + 5 for activations) / 78.12 = 0.727
    check(&log, Some(ServingFailure::GraphsOom), Turn::Lower, Some(0.72), "from 0.82 to 0.72");
}

#[test]
fn only_the_last_launch_counts() {
    let failed = fixture("vllm-no-kv-cache");
    let log = format!("{failed}{failed}{}", fixture("vllm-healthy"));
    check(&log, None, Turn::Raise, Some(0.97), "could be raised");
    let log = format!("{}{failed}", fixture("sglang-healthy"));
    assert_eq!(report(&log).engine, Engine::Vllm);
}

#[test]
fn logs_are_read_however_they_are_torn() {
    let plain = report(V0);
    let torn: [String; 4] = [
        V0.lines().map(|line| format!("vllm-1  | \x1b[32m{line}\x1b[0m\n")).collect(),
        V0.lines().map(|line| format!("2025-11-12T11:25:13.4961658Z {line}\n")).collect(),
        V0.lines().map(|line| format!("(VllmWorkerProcess pid=521) {line}\n")).collect(),
        V0.chars()
            .collect::<Vec<_>>()
            .chunks(118)
            .map(|line| line.iter().collect::<String>() + "\n")
            .collect(),
    ];
    for log in torn {
        let torn = report(&log);
        assert_eq!((&torn.parts, torn.verdict.to), (&plain.parts, plain.verdict.to), "{log}");
    }
}

#[test]
fn other_logs_are_not_of_an_engine() {
    for log in [
        "",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6\nstep 1 loss 2.0",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "pip install vllm && vllm serve m --gpu-memory-utilization 0.9",
    ] {
        assert_eq!(report_with_gpu(log, None), None, "{log}");
    }
}

/// Lines of words from logs, numbers and letters.
fn strange_text() -> impl Strategy<Value = String> {
    const WORDS: [&str; 11] = [
        "Load weight end",
        "KV cache size:",
        "utilization=",
        "GiB",
        "NaN",
        "inf",
        "Available KV cache memory: ",
        "Model loading took ",
        " GiB",
        "mem usage=",
        "é",
    ];
    let word = prop_oneof![
        8 => prop::sample::select(&WORDS).prop_map(str::to_owned),
        1 => prop::sample::select("(){}=,.:-".chars().collect::<Vec<_>>()).prop_map(String::from),
        1 => prop::collection::vec(prop::char::range('0', '9'), 1..=25).prop_map(String::from_iter),
        1 => prop::char::range('a', 'z').prop_map(String::from),
    ];
    let line = prop::collection::vec(word, 1..=6).prop_map(|words| format!("{}\n", words.concat()));
    prop::collection::vec(line, 0..=20).prop_map(|lines| lines.concat())
}

proptest! {
    /// Whatever the figures are, the parts add up and the advice points the way that it says.
    #[test]
    fn the_parts_of_any_log_add_up(
        total in 1.0..300.0f64,
        value in 0.05..1.0f64,
        shares in prop::array::uniform6(-0.2..1.2f64),
        ending in 0..6usize,
        is_sglang: bool,
    ) {
        let [weights, activations, other, kv_cache, graphs, free] = shares.map(|share| share * total);
        let log = if is_sglang {
            format!(
                "server_args=ServerArgs(mem_fraction_static={value:.3})\nLoad weight begin. avail \
                mem={free:.2} GB\n\
                 Load weight end. avail mem={other:.2} GB, mem usage={weights:.2} GB.\n\
                 KV Cache is allocated. #tokens: 1000, KV size: {kv_cache:.2} GB\n\
                 Memory pool end. avail mem={activations:.2} GB\n"
            )
        } else {
            format!(
                "Free memory on device ({free:.2}/{total:.2} GiB) on startup. Desired GPU memory \
                utilization is \
                 ({value:.3}, {:.2} GiB). Actual usage is {weights:.2} GiB for weight, {activations:.2} \
                 GiB for peak \
                 activation, {other:.2} GiB for non-torch memory, and {graphs:.2} GiB for CUDAGraph memory.\n\
                 Available KV cache memory: {kv_cache:.2} GiB\n",
                total * value
            )
        };
        let ending = [
            "",
            "No available memory for the cache blocks",
            "Not enough memory. Please try to increase --mem-fraction-static",
            "max seq len (4096), (1.20 GiB KV cache is needed, which is larger than the available KV cache \
            memory (0.4 GiB).",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
            capacity of \
             23.65 GiB of which 1.00 GiB is free.",
            "KV cache pool is full. Retract requests.",
        ][ending];
        if let Some(report) = report_with_gpu(&format!("{log}{ending}"), None) {
            assert_adds_up(&report);
        }
    }

    /// Text that only looks like a log never fails, and gives no figure that cannot be.
    #[test]
    fn no_text_is_too_strange(
        text in strange_text(),
    ) {
        if let Some(report) = report_with_gpu(&text, Some(Bytes(u64::MAX))) {
            assert_adds_up(&report);
        }
    }
}
