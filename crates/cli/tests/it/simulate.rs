//! `oomph simulate` as its users call it.

use crate::common::{json, oomph, text};
use serde_json::Value;

const VARIED: &str = "fixtures/whatif/default/frag_variable_length.pickle.xz";

fn stderr(arguments: &[&str]) -> String {
    let output = oomph(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn the_search_says_what_to_export_and_what_to_stay_away_from() {
    let said = text(&["simulate", "--search", VARIED]);
    assert!(said.contains("✓ USE  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), "{said}");
    assert!(said.contains("2.87 GiB reserved at the peak instead of 5.11 GiB"), "{said}");
    assert!(said.contains("avoid max_split_size_mb:64: 20.6 GiB, 4.0×"), "{said}");
    assert!(said.contains("the model reproduces the recording: all 62,209 events match"), "{said}");

    let found = json(&["simulate", "--search", "--json", VARIED]);
    assert_eq!(found["best"]["settings"], "expandable_segments:True");
    let trials = found["trials"].as_array().expect("a list");
    assert!(trials.len() >= 16, "{} settings", trials.len());
    let peak = |conf: &str| {
        let trial = trials.iter().find(|trial| trial["settings"] == conf).expect("it was tried");
        trial["peak_reserved"].as_u64().expect("bytes")
    };
    // Measured on the H200 under the same settings.
    assert_eq!(peak("expandable_segments:True"), 3_078_619_136);
    assert_eq!(peak("max_split_size_mb:64"), 22_162_702_336);
    assert_eq!(peak("backend:native"), 5_490_343_936, "the recorded settings, in the words of the recording");
}

#[test]
fn one_setting_is_compared_with_the_recorded_run() {
    let outcome = json(&["simulate", "--json", "--conf", "expandable_segments:True", VARIED]);
    assert_eq!(outcome["version"], 1);
    assert_eq!(outcome["settings"], "expandable_segments:True");
    assert_eq!(outcome["limit"], Value::Null);
    assert_eq!(outcome["peak_reserved"], 3_078_619_136u64);
    assert_eq!(outcome["peak_reserved_range"], serde_json::json!([3_078_619_136u64, 3_078_619_136u64]));
    assert_eq!(outcome["recorded"]["peak_reserved"], 5_490_343_936u64);
    assert_eq!(outcome["recorded"]["identical"], true);
    assert_eq!(outcome["segments"]["allocs"], 97);
    assert_eq!(outcome["oom"], Value::Null);
    assert_eq!(outcome["verify"], Value::Null);
}

#[test]
fn a_card_that_is_too_small_fails_at_a_line() {
    let output = oomph(&["simulate", "--gpu", "3GiB", VARIED]);
    assert_eq!(output.status.code(), Some(1), "it does not fit");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(said.contains("✗ RUNS OUT OF MEMORY  at event 2,030, step 2"), "{said}");
    assert!(said.contains("frag_variable_length.py:13"), "{said}");
    assert!(said.contains("the smallest GPU on which it fits: 3.6"), "{said}");

    let output = oomph(&["simulate", "--json", "--gpu", "3GiB", VARIED]);
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(outcome["oom"]["event"], 2030);
    assert_eq!(outcome["oom"]["cause"], "fragmentation");
    assert_eq!(outcome["oom"]["site"]["line"], 13);
    let room = (3u64 << 30) - (700 << 20);
    assert_eq!(outcome["limit"], room, "700 MiB of the card are not PyTorch's");
    assert!(outcome["peak_reserved"].as_u64().expect("bytes") <= room);
}

#[test]
fn the_smallest_card_is_a_boundary() {
    let smallest = |arguments: &[&str]| {
        let mut all = vec!["simulate", "--json", "--smallest-gpu", VARIED];
        all.extend(arguments);
        json(&all)["smallest_gpu"].as_u64().expect("bytes")
    };
    let plain = smallest(&[]);
    let expandable = smallest(&["--conf", "expandable_segments:True"]);
    assert!(expandable < plain, "{expandable} {plain}");
    let fits = |size: u64| {
        let size = size.to_string();
        oomph(&["simulate", "--gpu", &size, VARIED]).status.code() == Some(0)
    };
    assert!(fits(plain));
    assert!(!fits(plain - (2 << 20)));
}

#[test]
fn a_limit_is_a_limit_of_the_process() {
    let with = |arguments: &[&str]| {
        let mut all = vec!["simulate", "--json", VARIED];
        all.extend(arguments);
        let output = oomph(&all);
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let limit = with(&["--limit", "4GiB"]);
    let share = with(&["--gpu", "8GiB", "--fraction", "0.5", "--non-pytorch", "1MiB"]);
    assert_eq!(limit["limit"], 4u64 << 30);
    assert_eq!(share["limit"], 4u64 << 30);
    assert_eq!(limit["peak_reserved"], share["peak_reserved"]);
    assert!(limit["retries"].as_u64() > Some(0), "it has to give memory back");
    let option = with(&["--gpu", "8GiB", "--conf", "per_process_memory_fraction:0.5"]);
    assert_eq!(option["limit"], 4u64 << 30);
}

#[test]
fn garbage_collection_without_a_limit_is_said_to_do_nothing() {
    let said = text(&["simulate", "--conf", "garbage_collection_threshold:0.6", VARIED]);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("`garbage_collection_threshold` does nothing without a memory limit"), "{said}");
}

#[test]
fn a_run_that_failed_is_replayed_under_its_own_conditions() {
    let oom = "fixtures/zoo/oom_too_big.pickle.xz";
    let output = oomph(&["simulate", "--json", oom]);
    assert_eq!(output.status.code(), Some(1), "it fails again");
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(outcome["oom"]["was_recorded"], true);
    let outcome = json(&["simulate", "--json", "--gpu", "400GiB", oom]);
    assert_eq!(outcome["oom"], Value::Null);
    assert!(!outcome["rescued"].as_array().expect("a list").is_empty());
}

#[test]
fn verification_has_exit_codes_and_json() {
    let verified = json(&["simulate", "--verify", "--json", "fixtures/zoo/cuda_graph.pickle.xz"]);
    let verify = &verified["verify"];
    assert_eq!(verify["events"], verify["identical"]);
    assert_eq!(verify["first_difference"], Value::Null);
    let folder = text(&["simulate", "--verify", "fixtures/oracle"]);
    assert!(folder.contains("19 recordings: all are identical"), "{folder}");

    // Under settings that the run did not have, the model does something else.
    let output = oomph(&["simulate", "--verify", "--conf", "max_split_size_mb:64", VARIED]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(said.contains("✗ DIFFERENT  first at event"), "{said}");
    for part in ["recorded  ", "model     ", "reserved "] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let output = oomph(&["simulate", "--verify", "--json", "--conf", "max_split_size_mb:64", VARIED]);
    let verify: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(verify["verify"]["first_difference"].is_string());
}

#[test]
fn the_replayed_run_is_a_snapshot_for_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sim.pickle");
    let path = path.to_str().expect("text");
    text(&["simulate", "--conf", "expandable_segments:True", "-o", path, VARIED]);
    let real = "fixtures/whatif/expand/frag_variable_length.pickle.xz";
    let compared = text(&["diff", real, path]);
    assert!(compared.contains("the peak is the same"), "{compared}");
    assert!(compared.contains("peak reserved   2.87 GiB  (no change)"), "{compared}");
    let verified = text(&["simulate", "--verify", path]);
    assert!(verified.contains("✓ IDENTICAL"), "{verified}");
    let report = text(&["report", path]);
    assert!(report.contains("2.87 GiB reserved"), "{report}");
}

#[test]
fn what_cannot_be_done_is_said_with_the_way_out() {
    for (arguments, parts) in [
        (
            vec!["--conf", "max_split_size:64", VARIED],
            vec!["does not take the settings", "did you mean `max_split_size_mb`?"],
        ),
        (vec!["--conf", "max_split_size_mb:4", VARIED], vec!["PyTorch accepts at least 20"]),
        (
            vec!["--conf", "large_segment_size_mb:32", "--torch", "2.5", VARIED],
            vec!["torch 2.5 does not know"],
        ),
        (vec!["--conf", "per_process_memory_fraction:0.5", VARIED], vec!["add `--gpu SIZE`"]),
        (vec!["--gpu", "many", VARIED], vec!["expected a size such as 24GiB"]),
        (vec!["--fraction", "0.5", VARIED], vec!["--gpu"]),
        (vec!["--torch", "1.13", VARIED], vec!["expected a release from 2.0 to 2.15"]),
        (vec!["--device", "7", VARIED], vec!["has no events to replay"]),
        (vec!["fixtures/oracle"], vec!["a what-if is about one run"]),
        (vec!["-o", "/no/such/folder/x.pickle", VARIED], vec!["cannot be written"]),
    ] {
        let mut all = vec!["simulate"];
        all.extend(&arguments);
        let said = stderr(&all);
        for part in parts {
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
}
