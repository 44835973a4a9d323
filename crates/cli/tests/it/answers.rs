//! Programs that were once answered wrongly, recorded on a GPU: what `oomph report` says about them must be true.

use crate::common::{json, root, text};
use std::path::PathBuf;

/// What is true of a program.
struct Expected {
    program: &'static str,
    /// Kind of the first finding, and the mark of its line in the program.
    first: Option<(&'static str, &'static str)>,
    /// Bytes per step, where the first finding has them.
    bytes_per_step: Option<u64>,
    /// What the first finding says, in any of its sentences.
    says: &'static [&'static str],
    /// What the report must not say.
    never_says: &'static [&'static str],
    /// Kinds of findings that the report must not have at all.
    absent: &'static [&'static str],
}

/// Nothing is expected.
const NOTHING: Expected =
    Expected { program: "", first: None, bytes_per_step: None, says: &[], never_says: &[], absent: &[] };
const MIB: u64 = 1 << 20;

const EXPECTED: &[Expected] = &[
    Expected {
        program: "backward_of_the_right_function",
        absent: &["leak", "spike", "rising_peak"],
        ..NOTHING
    },
    Expected {
        program: "churn_empty_cache",
        first: Some(("churn", "churn")),
        says: &["`empty_cache()` at churn_empty_cache.py:11", "remove `empty_cache()`"],
        never_says: &["unknown"],
        absent: &["leak"],
        ..NOTHING
    },
    Expected {
        program: "clean_short_pretraining",
        first: Some(("fragmentation", "")),
        says: &["It costs nothing here"],
        absent: &["leak", "retained_growth", "spike", "rising_peak"],
        ..NOTHING
    },
    Expected {
        program: "kept_dataset_cache",
        first: Some(("retained_growth", "kept")),
        says: &["it no longer grows", "images.on_gpu", "nothing, if this is a cache"],
        absent: &["leak"],
        ..NOTHING
    },
    Expected {
        program: "leak_closed_chats",
        first: Some(("leak", "leak")),
        // Keys and values of four layers are views of one projection: 256 tokens, 3 × 512 wide.
        bytes_per_step: Some(4 * 256 * 3 * 512 * 4),
        says: &["Held by `__main__.histories`, a dict with 40 references"],
        never_says: &["grad mode is on"],
        ..NOTHING
    },
    Expected {
        program: "leak_gallery_of_requests",
        first: Some(("leak", "leak")),
        bytes_per_step: Some(MIB),
        says: &["12.0 MiB every 12 steps", "Held by `Pipeline.gallery`"],
        ..NOTHING
    },
    Expected {
        program: "leak_inner_loop",
        first: Some(("leak", "leak")),
        says: &["`backward(create_graph=True)` makes", "torch.autograd.grad"],
        absent: &["spike", "rising_peak"],
        ..NOTHING
    },
    Expected {
        program: "leak_lightning_module",
        first: Some(("leak", "leak")),
        bytes_per_step: Some(128 * 3000 * 4),
        says: &["Held by `Tagger.collected`", "still growing"],
        never_says: &["_data_connector", "no longer grows"],
        absent: &["retained_growth"],
    },
    Expected {
        program: "leak_prefetch_queue",
        first: Some(("leak", "leak")),
        says: &["Held by `__main__.ready.queue`, a deque"],
        absent: &["spike", "rising_peak"],
        ..NOTHING
    },
    Expected {
        program: "leak_running_metric",
        first: Some(("leak", "leak")),
        bytes_per_step: Some(8192),
        says: &["fills up after more than a million steps"],
        absent: &["retained_growth", "rising_peak"],
        ..NOTHING
    },
    Expected {
        program: "leak_two_hundred_outputs",
        first: Some(("leak", "leak")),
        bytes_per_step: Some(64 * 1024 * 4),
        says: &["Held by `__main__.outputs`, a list with 200 references"],
        ..NOTHING
    },
    Expected {
        program: "oom_first_update",
        first: Some(("oom", "oom")),
        says: &["is still to come", "the model itself is too large here", "need 5.00 GiB", "ZeRO"],
        never_says: &["reduce the batch size"],
        ..NOTHING
    },
    Expected {
        program: "oom_retry_in_except",
        first: Some(("oom", "oom")),
        says: &["OutOfMemoryError.__traceback__", "an exception keeps its traceback"],
        never_says: &["reduce the batch size"],
        absent: &["leak"],
        ..NOTHING
    },
    Expected {
        program: "spike_evaluation_scores",
        first: Some(("spike", "site")),
        says: &[
            "`Trainer.evaluate` of transformers",
            "eval_accumulation_steps",
            "preprocess_logits_for_metrics",
        ],
        absent: &["leak", "rising_peak"],
        ..NOTHING
    },
    Expected {
        program: "trend_longer_sequences",
        first: Some(("rising_peak", "")),
        says: &["each step needs 25.9 MiB more than the one before", "limit the length of the inputs"],
        absent: &["leak", "retained_growth"],
        ..NOTHING
    },
];

fn folder() -> PathBuf {
    root().join("fixtures/answers")
}

/// Number of the line of a program that has a mark.
fn marked(program: &str, mark: &str) -> u64 {
    let source = std::fs::read_to_string(folder().join(format!("programs/{program}.py"))).expect("a program");
    let at = source.lines().position(|line| line.ends_with(&format!("# @{mark}"))).expect("a mark");
    at as u64 + 1
}

/// What is wrong with the report on a program.
fn complaints(expected: &Expected) -> Vec<String> {
    let recording = folder().join(expected.program);
    let recording = recording.to_str().expect("a path");
    let report = json(&["report", "--json", recording]);
    let said = text(&["report", recording]).split_whitespace().collect::<Vec<_>>().join(" ");
    let findings = report["inputs"][0]["devices"][0]["findings"].as_array().expect("findings");
    let mut wrong = Vec::new();
    match (expected.first, findings.first()) {
        (None, None) => {}
        (Some((kind, mark)), Some(first)) => {
            if first["kind"] != kind {
                wrong.push(format!("expected {kind} first, found {}", first["kind"]));
            }
            let line = first["site"]["line"].as_u64().unwrap_or(0);
            if !mark.is_empty() && line != marked(expected.program, mark) {
                wrong.push(format!("expected line {}, found {line}", marked(expected.program, mark)));
            }
            if let Some(bytes) = expected.bytes_per_step {
                let found = first["bytes_per_step"].as_u64().unwrap_or(0);
                // Blocks are rounded, and not split where little is left.
                if found.abs_diff(bytes) * 20 > bytes {
                    wrong.push(format!("expected {bytes} bytes per step, found {found}"));
                }
            }
        }
        (_, found) => wrong.push(format!("found {:?}", found.map(|first| &first["kind"]))),
    }
    wrong.extend(
        expected
            .says
            .iter()
            .filter(|&&words| !said.contains(words))
            .map(|words| format!("not said: {words}")),
    );
    wrong.extend(
        expected
            .never_says
            .iter()
            .filter(|&&words| said.contains(words))
            .map(|words| format!("said: {words}")),
    );
    let is_absent = |kind: &&str| findings.iter().all(|finding| finding["kind"] != *kind);
    wrong.extend(expected.absent.iter().filter(|kind| !is_absent(kind)).map(|kind| format!("found {kind}")));
    wrong.iter().map(|wrong| format!("{}: {wrong}", expected.program)).collect()
}

#[test]
fn what_a_report_says_about_these_programs_is_true() {
    let wrong: Vec<String> = EXPECTED.iter().flat_map(complaints).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_recorded_program_is_judged() {
    let mut recorded: Vec<String> = std::fs::read_dir(folder().join("programs"))
        .expect("programs")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".py").map(str::to_owned))
        .collect();
    recorded.sort();
    assert_eq!(recorded, EXPECTED.iter().map(|of| of.program).collect::<Vec<_>>());
}

/// Allocations inside `backward()` are shown at its call, not where another function used the model first.
#[test]
fn memory_of_a_backward_pass_is_shown_in_the_function_that_ran_it() {
    let recording = folder().join("backward_of_the_right_function");
    let said = text(&["report", recording.to_str().expect("a path")]);
    let line = marked("backward_of_the_right_function", "backward");
    let row = said.lines().find(|row| row.contains("fit, backward")).expect("a row");
    assert!(row.contains(&format!("backward_of_the_right_function.py:{line} ")), "{row}");
    assert!(!said.contains("preview, backward"), "{said}");
}
