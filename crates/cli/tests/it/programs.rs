//! Commands that run a program: what they say without one.
//! Programs that really run are in `tests/python/test_predict.py`.

use crate::common::oomph;

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
    refused(&["predict", "--gpu", "h300", "train.py"], &["h300", "rtx4090", "24GiB"]);
}

#[test]
fn a_program_is_needed() {
    refused(&["predict", "--gpu", "l4"], &["SCRIPT"]);
}

#[test]
fn an_option_behind_the_script_is_pointed_out_and_not_taken() {
    refused(
        &["predict", "train.py", "--gpu", "h100"],
        &["--gpu <NAME|SIZE>", "hint: options of oomph go before the script"],
    );
    refused(
        &["check", "--", "python", "train.py", "--max-peak", "60GiB"],
        &["no limit was given", "or another limit before the program"],
    );
}

#[test]
fn an_option_that_nobody_knows_is_not_taken_for_a_script() {
    refused(&["run", "--jsonn", "train.py"], &["unexpected argument '--jsonn'"]);
    refused(&["check", "--max-peek", "1GiB", "train.py"], &["unexpected argument '--max-peek'"]);
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
