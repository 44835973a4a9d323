//! `oomph report` as its users call it.

use crate::common::{json, oomph, root, text};
use serde_json::Value;
use std::process::Command;

#[test]
fn the_summary_json_equals_every_label_wherever_both_speak() {
    let mut compared = 0;
    for folder in ["zoo", "field", "oracle", "torch"] {
        let folder = root().join("fixtures").join(folder);
        let names: Vec<String> = std::fs::read_dir(&folder)
            .expect("fixtures are there")
            .filter_map(|entry| {
                entry.expect("readable").path().to_str()?.strip_suffix(".pickle.xz").map(str::to_owned)
            })
            .collect();
        for name in names {
            let label = [".truth.json", ".stats.json"]
                .iter()
                .find_map(|ending| std::fs::read_to_string(format!("{name}{ending}")).ok())
                .expect("a label");
            let label: Value = serde_json::from_str(&label).expect("a label is JSON");
            let report = json(&["report", "--summary", "--json", &format!("{name}.pickle.xz")]);
            let device = &report["inputs"][0]["devices"][0];
            for (key, value) in device["stats"].as_object().expect("stats") {
                let expected = &label["final_stats"][key];
                let is_known = device["history"] == "complete" || key.ends_with(".current");
                if is_known && !expected.is_null() {
                    assert_eq!(value, expected, "{name}: {key}");
                    compared += 1;
                }
            }
            assert_eq!(
                device["allocated"]["end"], label["final_stats"]["allocated_bytes.all.current"],
                "{name}"
            );
            assert_eq!(
                device["reserved"]["end"], label["final_stats"]["reserved_bytes.all.current"],
                "{name}"
            );
        }
    }
    assert!(compared > 2000, "only {compared} values compared");
}

#[test]
fn the_summary_table_is_the_one_that_torch_prints() {
    for name in ["torch-2.11.0", "torch-2.15.0-expandable", "torch-2.6.0"] {
        let expected =
            std::fs::read_to_string(root().join(format!("fixtures/summary/{name}.txt"))).expect("golden");
        let printed = text(&["report", "--summary", &format!("fixtures/torch/{name}.pickle.xz")]);
        for (ours, theirs) in printed.lines().zip(expected.lines()) {
            // Retries are not in these files: their histories begin late.
            if !theirs.contains("cudaMalloc retries") {
                assert_eq!(ours, theirs, "{name}");
            }
        }
        assert_eq!(printed.lines().count(), expected.lines().count(), "{name}");
    }
}

#[test]
fn the_json_has_every_field_that_others_rely_on() {
    let report = json(&["report", "--json", "fixtures/zoo/oom_too_big.pickle.xz"]);
    assert_eq!(report["version"], 2);
    let device = &report["inputs"][0]["devices"][0];
    for (pointer, expected) in [
        ("/device", Value::from(0)),
        ("/events", Value::from(8708)),
        ("/history", Value::from("complete")),
        ("/allocated/peak", Value::from(6_214_437_888_u64)),
        ("/allocated/end", Value::from(459_835_392)),
        ("/reserved/end", Value::from(6_394_216_448_u64)),
        ("/steps/count", Value::from(4)),
        ("/steps/source", Value::from("inferred")),
        ("/findings/0/kind", Value::from("oom")),
        ("/findings/0/severity", Value::from("high")),
        ("/findings/0/cause", Value::from("capacity")),
        ("/findings/0/bytes", Value::from(205_520_896)),
        ("/findings/0/site/file", Value::from("/home/user/project/oom_too_big.py")),
        ("/findings/0/site/line", Value::from(13)),
        ("/ooms", Value::from(30)),
        ("/caveats", Value::from(Vec::<Value>::new())),
    ] {
        assert_eq!(device.pointer(pointer), Some(&expected), "{pointer}");
    }
    for (categories, is_sum) in [("categories", false), ("categories_at_peak", true)] {
        let categories = device[categories].as_object().expect("categories");
        assert_eq!(categories.len(), 9);
        let sum = categories.values().map(|value| value.as_u64().expect("bytes")).sum::<u64>();
        assert_eq!(sum == 6_214_437_888, is_sum);
    }
}

#[test]
fn the_groups_and_the_rest_add_up_to_what_is_allocated() {
    for by in ["site", "category", "stack", "module", "size"] {
        for at in ["peak", "end", "1000", "oom"] {
            let file = "fixtures/zoo/oom_too_big.pickle.xz";
            let report = json(&["report", "--json", "--by", by, "--at", at, "--top", "3", file]);
            let live = &report["inputs"][0]["devices"][0]["live"];
            let sum = |key: &str| {
                let groups = live["groups"].as_array().expect("groups");
                assert!(groups.len() <= 3);
                groups
                    .iter()
                    .chain([&live["rest"]])
                    .map(|group| group[key].as_u64().expect("a number"))
                    .sum::<u64>()
            };
            assert_eq!(live["bytes"], sum("bytes"), "--by {by} --at {at}");
            assert_eq!(live["count"], sum("count"), "--by {by} --at {at}");
            if at == "peak" {
                assert_eq!(live["bytes"], 6_214_437_888_u64);
            }
        }
    }
}

#[test]
fn a_late_history_is_called_truncated_in_text_and_json() {
    let file = "fixtures/large/gpt2_150_steps.pickle.xz";
    let report = json(&["report", "--json", file]);
    let device = &report["inputs"][0]["devices"][0];
    assert_eq!(device["history"], "truncated");
    assert!(device["history_begins_us"].as_i64().expect("a time") > 1_500_000_000_000_000);
    assert!(
        device["caveats"][0].as_str().expect("a caveat").starts_with("the history is truncated: 1.47 GiB")
    );
    assert!(text(&["report", file]).contains("467,100 events, truncated"));
}

#[test]
fn segments_alone_are_reported_as_the_state_at_the_end() {
    let report = json(&["report", "--json", "fixtures/formats/segments.json.xz"]);
    let device = &report["inputs"][0]["devices"][0];
    assert_eq!(device["events"], 0);
    assert_eq!(device["history"], "truncated");
    assert_eq!(device["allocated"]["end"], device["allocated"]["peak"]);
    assert!(device["caveats"][0].as_str().expect("a caveat").contains("no history was recorded"));
}

#[test]
fn a_folder_is_read_rank_by_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    for rank in [10, 2] {
        let from = root().join("fixtures/zoo/leak_cycle.pickle.xz");
        std::fs::copy(from, folder.path().join(format!("rank{rank}.pickle.xz"))).expect("copied");
    }
    std::fs::write(folder.path().join("notes.txt"), "not a snapshot").expect("written");
    let report = json(&["report", "--json", folder.path().to_str().expect("text")]);
    let pattern = folder.path().join("rank*.xz");
    assert_eq!(report, json(&["report", "--json", pattern.to_str().expect("text")]));
    let files: Vec<&str> = report["inputs"]
        .as_array()
        .expect("inputs")
        .iter()
        .map(|input| input["file"].as_str().expect("text"))
        .collect();
    assert_eq!(files.len(), 2);
    assert!(files[0].ends_with("rank2.pickle.xz") && files[1].ends_with("rank10.pickle.xz"), "{files:?}");
}

#[test]
fn pinned_memory_is_a_device_of_its_own() {
    let file = "fixtures/torch/torch-2.15.0.pickle.xz";
    let report = json(&["report", "--json", file]);
    let devices = report["inputs"][0]["devices"].as_array().expect("devices");
    let kinds: Vec<&Value> = devices.iter().map(|device| &device["kind"]).collect();
    assert_eq!(kinds, ["gpu", "pinned"]);
    let pinned = &devices[1];
    assert_eq!((&pinned["allocated"]["peak"], &pinned["allocated"]["end"]), (&540_672.into(), &16384.into()));
    assert_eq!(pinned["live"]["groups"][0]["site"]["function"], "pin_host_memory");
    assert_eq!(pinned["findings"].as_array().map(Vec::len), Some(0));
    let printed = text(&["report", file]);
    assert!(printed.contains("host (pinned)") && printed.contains("pin_host_memory   528 KiB"), "{printed}");
    // A moment of the GPU's history is none of its own.
    assert!(!text(&["report", "--at", "oom", file]).contains("host (pinned)"));
}

#[test]
fn standard_input_is_an_input() {
    let file = std::fs::File::open(root().join("fixtures/zoo/leak_cycle.pickle.xz")).expect("a fixture");
    let output = Command::new(env!("CARGO_BIN_EXE_oomph"))
        .args(["report", "-"])
        .stdin(file)
        .output()
        .expect("oomph runs");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("standard input · GPU 0"));
}

#[test]
fn colour_is_for_terminals_only_unless_asked_for() {
    let file = "fixtures/zoo/leak_cycle.pickle.xz";
    assert!(!text(&["report", file]).contains('\x1b'));
    assert!(text(&["report", "--color", "always", file]).contains("\x1b[1m"));
}

#[test]
fn a_moment_that_never_was_is_an_error_with_a_way_out() {
    for (at, words) in [("oom", "no out-of-memory event"), ("99999999", "no such event")] {
        let output = oomph(&["report", "--at", at, "fixtures/zoo/leak_cycle.pickle.xz"]);
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{talk}");
        assert!(talk.contains(words) && talk.contains("hint: `--at"), "{talk}");
    }
}

#[test]
fn help_has_examples_and_completions_and_the_manual_are_there() {
    assert!(text(&["report", "--help"]).contains("Examples:\n  oomph report"));
    assert!(text(&["export", "--help"]).contains("Examples:\n  oomph export"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&["completions", shell]).contains("oomph"), "{shell}");
    }
    let manual = text(&["man"]);
    assert!(manual.contains(".TH oomph 1") && manual.contains("report"), "{manual}");
}
