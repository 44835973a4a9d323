//! `oomph diff`, several inputs as ranks, and `--fail-on`, as their users call them.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

fn oomph(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oomph"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("oomph runs")
}

fn text(arguments: &[&str]) -> String {
    let output = oomph(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(arguments)).expect("JSON")
}

const DEFAULT: &str = "fixtures/whatif/default/frag_variable_length.pickle.xz";
const EXPANDABLE: &str = "fixtures/whatif/expand/frag_variable_length.pickle.xz";

#[test]
fn a_diff_says_what_another_setting_has_changed() {
    let pair = &json(&["diff", "--json", DEFAULT, EXPANDABLE])["pairs"][0];
    let reserved = &pair["reserved"]["peak"];
    assert!(reserved["after"].as_u64() < reserved["before"].as_u64(), "{reserved}");
    let gone = pair["findings"]["gone"].as_array().expect("a list");
    assert!(gone.iter().any(|finding| finding["kind"] == "fragmentation"), "{gone:?}");
    let printed = text(&["diff", DEFAULT, EXPANDABLE]);
    assert!(printed.contains("findings that went away") && printed.contains("FRAGMENTATION"), "{printed}");
}

#[test]
fn a_diff_of_a_file_with_itself_finds_nothing() {
    let pair = &json(&["diff", "--json", DEFAULT, DEFAULT])["pairs"][0];
    assert_eq!(pair["sites"], Value::Array(Vec::new()));
    assert_eq!(pair["findings"]["appeared"], Value::Array(Vec::new()));
    assert_eq!(pair["findings"]["gone"], Value::Array(Vec::new()));
    assert!(text(&["diff", DEFAULT, DEFAULT]).starts_with("the peak is the same"));
}

#[test]
fn the_lines_of_a_diff_add_up_to_the_difference_of_the_peaks() {
    let (a, b) = ("fixtures/zoo/leak_infer_outputs.pickle.xz", "fixtures/zoo/leak_hook_cache.pickle.xz");
    let pair = &json(&["diff", "--json", "--top", "1000", a, b])["pairs"][0];
    let number = |value: &Value| value.as_i64().expect("bytes");
    let by = |value: &Value| number(&value["after"]) - number(&value["before"]);
    let lines: i64 = pair["sites"].as_array().expect("a list").iter().map(by).sum();
    let categories: i64 = pair["categories_at_peak"].as_object().expect("categories").values().map(by).sum();
    let peak = by(&pair["allocated"]["peak"]);
    assert_eq!((lines, categories), (peak, peak));
}

#[test]
fn sides_that_cannot_be_paired_are_refused_with_their_numbers() {
    let output = oomph(&["diff", DEFAULT, "fixtures/oracle"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("has 1 device") && message.contains("has 6 devices"), "{message}");
}

#[test]
fn several_inputs_are_one_report_with_the_skew() {
    let (a, b) = ("fixtures/zoo/clean_gpt2_hf.pickle.xz", "fixtures/zoo/spike_eval_logits.pickle.xz");
    let report = json(&["report", "--json", a, b, a]);
    assert_eq!(report["inputs"].as_array().map(Vec::len), Some(3));
    let ranks = &report["ranks"];
    assert_eq!((&ranks["count"], &ranks["highest"]), (&Value::from(3), &Value::from(1)));
    assert_eq!(ranks["sites"][0]["site"]["line"], 11);
    let printed = text(&["report", a, b, a]);
    assert!(printed.starts_with("3 ranks · rank 1 peaks at 5.77 GiB"), "{printed}");
    assert!(printed.contains("why rank 1") && printed.contains("spike_eval_logits.py:11"), "{printed}");
    assert!(printed.contains("on rank 1"), "{printed}");
}

#[test]
fn fail_on_turns_findings_into_an_exit_code() {
    let code = |limit: &str, file: &str| oomph(&["report", "--fail-on", limit, file]).status.code();
    let (leak, low, clean) = (
        "fixtures/zoo/leak_infer_outputs.pickle.xz",
        "fixtures/zoo/leak_loss_list.pickle.xz",
        "fixtures/zoo/clean_gpt2_hf.pickle.xz",
    );
    assert_eq!(code("high", leak), Some(1));
    assert_eq!((code("high", low), code("low", low)), (Some(0), Some(1)));
    assert_eq!(code("low", clean), Some(0));
}
