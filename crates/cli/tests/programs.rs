//! Commands that run a program or hold one against a budget: what they say without one, and the gate on a recording.
//! Programs that really run are in `tests/python/test_predict.py`.

mod common;

use common::{json, oomph, text};

fn refused(arguments: &[&str], words: &[&str]) {
    let output = oomph(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "data on stdout");
    for word in words {
        assert!(said.contains(word), "{arguments:?} does not say `{word}`:\n{said}");
    }
}

#[test]
fn a_card_that_nobody_knows_gets_the_list() {
    refused(&["predict", "--gpu", "h300", "train.py"], &["h300", "rtx4090", "--gpu-memory"]);
}

#[test]
fn a_program_is_needed() {
    refused(&["predict", "--gpu", "l4"], &["SCRIPT"]);
    refused(&["check", "--no-leaks"], &["nothing to check"]);
}

#[test]
fn an_interpreter_that_is_not_there() {
    let words = ["/nowhere/python` cannot be started", "--python"];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().to_str().expect("text");
    refused(&["run", "--python", "/nowhere/python", "-o", output, "train.py"], &words);
}

#[test]
fn what_can_be_tried_and_varied_is_said() {
    refused(&["predict", "--gpu", "l4", "--try", "magic", "train.py"], &["amp, checkpoint"]);
    refused(&["predict", "--gpu", "l4", "--vary", "batch", "train.py"], &["batch_size=8,16,32"]);
    refused(&["predict", "--gpu", "l4", "--steps", "0", "train.py"], &["expected a number or `all`"]);
}

const CLEAN: &str = "fixtures/zoo/no_zero_grad.pickle.xz";
const LEAK: &str = "fixtures/zoo/leak_infer_outputs.pickle.xz";

#[test]
fn a_budget_is_kept_or_broken() {
    let kept = text(&["check", CLEAN, "--max-peak", "1GiB", "--max-reserved", "1GiB", "--no-leaks"]);
    assert!(kept.starts_with("✓ within the budget"), "{kept}");
    let peak =
        json(&["check", CLEAN, "--max-peak", "1GiB", "--json"])["devices"][0]["peak_allocated"].as_u64();
    let exactly = peak.expect("bytes").to_string();
    text(&["check", CLEAN, "--max-peak", &exactly]);
    let below = (peak.expect("bytes") - 1).to_string();
    assert_eq!(oomph(&["check", CLEAN, "--max-peak", &below]).status.code(), Some(1));
    let broken = oomph(&["check", LEAK, "--no-leaks"]);
    let said = String::from_utf8_lossy(&broken.stdout);
    assert_eq!(broken.status.code(), Some(1));
    assert!(said.contains("leak at leak_infer_outputs.py:9"), "{said}");
}

#[test]
fn a_budget_without_a_limit_is_a_mistake() {
    refused(&["check", CLEAN], &["no limit was given", "--max-peak"]);
}
