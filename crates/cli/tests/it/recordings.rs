//! Real recordings of `fixtures/recordings/train.py`, on an emulated GPU and on a CPU, held against what the program itself
//! says about its tensors.

use crate::common::{json, oomph, root, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const GPU: &str = "fixtures/recordings/gpu";
const CPU: &str = "fixtures/recordings/cpu";

fn truth(folder: &str) -> Value {
    let file = std::fs::read(root().join(folder).join("truth.json")).expect("the truth is there");
    serde_json::from_slice(&file).expect("JSON")
}

fn device(folder: &str, more: &[&str]) -> Value {
    json(&[&["report", "--json", folder], more].concat())["inputs"][0]["devices"][0].clone()
}

/// The line of the program with this mark.
fn line(mark: &str) -> u64 {
    let program = std::fs::read_to_string(root().join("fixtures/recordings/train.py")).expect("the program");
    let at = program.lines().position(|line| line.ends_with(&format!("# mark: {mark}")));
    at.expect("a mark") as u64 + 1
}

/// A copy of a recording that can be changed.
fn copy(folder: &str, name: &str) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&copy);
    std::fs::create_dir_all(&copy).expect("a folder");
    for entry in std::fs::read_dir(root().join(folder)).expect("the recording") {
        let path = entry.expect("readable").path();
        if path.file_name().is_some_and(|name| name != "truth.json") {
            std::fs::copy(&path, copy.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    copy
}

#[test]
fn categories_are_what_the_program_says_to_the_byte() {
    for folder in [GPU, CPU] {
        let (truth, device) = (truth(folder), device(folder, &[]));
        for category in ["parameter", "buffer", "gradient", "optimizer"] {
            assert_eq!(device["categories"][category], truth[category], "{folder}: {category}");
            assert_eq!(device["labels"][category]["bytes"], truth[category], "{folder}: {category}");
        }
        assert_eq!(device["categories_confidence"], "high", "{folder}");
        assert_eq!(device["steps"]["count"], truth["steps"], "{folder}");
        assert_eq!(device["steps"]["source"], "recorded", "{folder}");
        assert_eq!(device["caveats"], json!([]), "{folder}");
    }
}

#[test]
fn a_leak_inside_backward_has_the_module_and_the_line_of_its_forward_pass() {
    for folder in [GPU, CPU] {
        let (truth, device) = (truth(folder), device(folder, &[]));
        let findings = device["findings"].as_array().expect("findings");
        let leak = findings.iter().find(|finding| finding["kind"] == "leak").expect("a leak");
        assert_eq!(leak["bytes_per_step"], truth["kept_per_step"], "{folder}");
        assert_eq!(leak["evidence"]["module"], "Model.h.1", "{folder}: {leak}");
    }
}

#[test]
fn every_module_has_its_parameters_gradients_and_state() {
    for folder in [GPU, CPU] {
        let device = device(folder, &["--by", "module", "--top", "100"]);
        let groups = device["live"]["groups"].as_array().expect("groups");
        let up = groups.iter().find(|group| group["module"] == "Model.h.2.up").expect("a layer");
        let bytes = 4 * (256 * 1024 + 1024);
        assert_eq!(up["categories"]["parameter"], bytes, "{folder}");
        assert_eq!(device["live"]["by_layer"], false, "{folder}");
        let all: u64 = groups.iter().filter_map(|group| group["bytes"].as_u64()).sum();
        assert_eq!(Some(all), device["allocated"]["peak"].as_u64(), "{folder}: every block is in one group");
    }
}

#[test]
fn backward_allocations_have_the_line_that_ran_the_module() {
    for folder in [GPU, CPU] {
        let device = device(folder, &["--top", "100", "--at", "end"]);
        let groups = device["live"]["groups"].as_array().expect("groups");
        // What the hook keeps is the gradient of this line's result.
        let is_kept = |group: &&Value| group["site"]["line"] == line("gelu") && group["forward_line"] == true;
        let kept = groups.iter().find(is_kept).expect("a group");
        assert_eq!(kept["count"], truth(folder)["steps"], "{folder}");
        assert_eq!((&kept["module"], &kept["origin"]), (&json!("Model.h.1"), &json!("backward")), "{folder}");
    }
}

#[test]
fn the_memory_of_a_cpu_is_called_that_and_gets_no_advice_about_cuda() {
    let device = device(CPU, &[]);
    assert_eq!(device["kind"], "cpu");
    let report = text(&["report", CPU]);
    assert!(report.contains(" · CPU · torch 2.11"), "{report}");
    for word in ["GPU", "cuda", "CUDA", "reserved", "fragmentation", "churn", ".cpu()", "allocator settings"]
    {
        assert!(!report.contains(word), "{word}: {report}");
    }
    let output = oomph(&["simulate", CPU]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("is about the memory of a CPU"), "{error}");
}

#[test]
fn the_header_shows_the_card_and_the_exact_release() {
    let report = text(&["report", GPU]);
    let first = report.lines().next().expect("a header");
    assert!(first.contains("GPU 0, NVIDIA H100 80GB HBM3 · torch 2.11.0+"), "{first}");
    assert!(first.contains("6 steps (recorded)"), "{first}");
    let device = device(GPU, &[]);
    assert_eq!((&device["kind"], &device["name"]), (&json!("gpu"), &json!("NVIDIA H100 80GB HBM3")));
    assert!(device["non_pytorch"]["process"].as_u64() > Some(500 << 20), "{}", device["non_pytorch"]);
}

#[test]
fn a_part_that_cannot_be_read_is_named_and_left_out() {
    for (name, content, note) in [
        ("rank0.labels", "{\"version\": 9}", "version 9 is unknown"),
        ("rank0.labels", "{\"version\": 1, \"sets\": [[[0, 0", "EOF"),
        ("rank0.steps.jsonl", "{\"step\": 1}\n", "expected step marks"),
        ("rank0.json", "{\"ended\": 3}", "invalid type"),
        ("meta.json", "{\"started_us\": 1, \"devices\": 7}", "invalid type"),
    ] {
        let copy = copy(GPU, &format!("unreadable-{}", name.len() + content.len()));
        std::fs::write(copy.join(name), content).expect("writable");
        let output = oomph(&["report", "--json", &copy.to_string_lossy()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(note) && said.contains(name), "{name}: {said}");
    }
}

#[test]
fn the_pickle_alone_is_still_a_snapshot() {
    let copy = copy(GPU, "alone");
    for name in ["rank0.labels", "rank0.steps.jsonl", "rank0.json", "meta.json"] {
        std::fs::remove_file(copy.join(name)).expect("it was there");
    }
    let report = json(&["report", "--json", &copy.to_string_lossy()]);
    let device = &report["inputs"][0]["devices"][0];
    assert_eq!(device["steps"]["source"], "annotated", "the optimizer's own annotations");
    assert_eq!(device.get("labels"), None);
    assert_eq!(report["inputs"][0].get("recording"), None);
}

#[test]
fn a_recording_written_in_the_middle_of_a_run_says_so() {
    let copy = copy(GPU, "signal");
    let run = json!({"ended": "running", "dumped": "signal", "steps": {"count": 6}, "allocations": {"0": 1}});
    std::fs::write(copy.join("rank0.json"), run.to_string()).expect("writable");
    let report = text(&["report", &copy.to_string_lossy()]);
    assert!(report.contains(" written on a signal after 6 steps, while the program ran"), "{report}");
}

#[test]
fn another_process_that_took_the_room_is_named() {
    let copy = copy("fixtures/recordings/oom", "crowded");
    let path = copy.join("rank0.json");
    let mut run: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    run["oom"]["processes"] = json!([
        {"pid": 5, "bytes": 5_390_729_216u64, "name": "this process"},
        {"pid": 77, "bytes": 12u64 << 30, "name": "python"},
    ]);
    std::fs::write(&path, run.to_string()).expect("writable");
    let report = json(&["report", "--json", &copy.to_string_lossy()]);
    let findings = report["inputs"][0]["devices"][0]["findings"].as_array().expect("findings").clone();
    let oom = findings.iter().find(|finding| finding["kind"] == "oom").expect("an oom");
    assert_eq!(
        oom["evidence"]["other_processes"],
        json!([{"pid": 77, "bytes": 12u64 << 30, "name": "python"}])
    );
    assert_eq!(oom["evidence"]["device_total"], 6u64 << 30);
    let non_pytorch = findings.iter().find(|finding| finding["kind"] == "non_pytorch").expect("a finding");
    assert_eq!(non_pytorch["bytes"], 12u64 << 30);
    let alone = json(&["report", "--json", "fixtures/recordings/oom"]);
    let findings = alone["inputs"][0]["devices"][0]["findings"].as_array().expect("findings").clone();
    assert!(findings.iter().all(|finding| finding["kind"] != "non_pytorch"), "{findings:?}");
}

#[test]
fn other_commands_take_recordings() {
    text(&["diff", GPU, CPU]);
    text(&["report", GPU, CPU]);
    text(&["check", GPU, "--max-peak", "1GiB"]);
    text(&["simulate", "--verify", GPU]);
    let database = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recording.json");
    let pickle = format!("{GPU}/rank0.pickle.xz");
    let output = oomph(&["export", "--to", "json", "-o", &database.to_string_lossy(), &pickle]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tables: Value = serde_json::from_slice(&std::fs::read(&database).expect("there")).expect("JSON");
    let blocks = tables["tables"]["blocks"].as_array().expect("blocks").clone();
    let head =
        blocks.iter().find(|block| block["tensor"] == "h.2.down.weight" && block["label"] == "gradient");
    let head = head.expect("a gradient");
    assert_eq!((&head["module"], &head["phase"]), (&json!("Model.h.2.down"), &json!("backward")));
}
