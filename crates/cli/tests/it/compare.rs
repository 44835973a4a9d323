//! `oomph diff`, several inputs as ranks, and `--fail-on`, as their users call them.

use crate::common::{json, oomph, root, text};
use serde_json::Value;
use std::path::Path;

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
    assert!(printed.contains("resolved findings") && printed.contains("FRAGMENTATION"), "{printed}");
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
    assert!(message.contains("has 1 device") && message.contains("has 19 devices"), "{message}");
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
    // These are two programs, not ranks of one.
    assert!(
        printed.starts_with("3 files · the highest peak is 5.77 GiB, in fixtures/zoo/spike"),
        "{printed}"
    );
    assert!(printed.contains("spike_eval_logits.py:11  evaluate · in file 1"), "{printed}");
    assert!(printed.contains("share no line"), "{printed}");
}

#[test]
fn the_skew_of_one_program_is_explained_line_by_line() {
    let (plain, split) = (DEFAULT, "fixtures/whatif/split64/frag_variable_length.pickle.xz");
    let report = json(&["report", "--json", plain, split])["ranks"].clone();
    let peaks: Vec<i64> =
        report["peaks"].as_array().expect("peaks").iter().filter_map(Value::as_i64).collect();
    let lines = report["sites"].as_array().expect("sites").iter();
    let sum: i64 =
        lines.map(|line| line["after"].as_i64().unwrap_or(0) - line["before"].as_i64().unwrap_or(0)).sum();
    assert_eq!(sum, (peaks[0] - peaks[1]).abs(), "{report}");
    assert!(text(&["report", plain, split]).starts_with("2 ranks · all peak at about"));
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

#[test]
fn step_marks_of_a_recording_are_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let pickle = folder.path().join("rank0.pickle");
    std::fs::write(&pickle, xz(&root().join("fixtures/zoo/leak_cycle.pickle.xz"))).expect("written");
    let file = pickle.to_str().expect("a path");
    let steps = |file: &str| json(&["report", "--json", file])["inputs"][0]["devices"][0]["steps"].clone();
    let inferred = steps(file);
    assert_eq!((&inferred["source"], &inferred["count"]), (&Value::from("inferred"), &Value::from(25)));
    // Marks of a recorder that counts otherwise.
    let begins = json(&["report", "--json", file])["inputs"][0]["devices"][0]["history_begins_us"].as_i64();
    let marks: String = (1..=5)
        .map(|mark| {
            format!(
                "{{\"step\": {mark}, \"time_us\": {}}}\n",
                begins.expect("a time") + 281_000 + mark * 3_000
            )
        })
        .collect();
    std::fs::write(folder.path().join("rank0.steps.jsonl"), marks).expect("written");
    assert_eq!(steps(file)["source"], "recorded");
    std::fs::write(folder.path().join("rank0.steps.jsonl"), "nonsense\n").expect("written");
    let output = oomph(&["report", "--json", file]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("step marks"), "a note says so");
}

fn xz(path: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).expect("it is there");
    liblzma::read::XzDecoder::new(file).read_to_end(&mut bytes).expect("xz");
    bytes
}
