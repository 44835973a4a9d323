//! `oomph check` on recordings: limits, baselines, formats. Programs that really run are in `tests/python/test_check.py`.

use crate::common::{json, oomph, text};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

const CLEAN: &str = "fixtures/zoo/no_zero_grad.pickle.xz";
const LEAK: &str = "fixtures/zoo/leak_infer_outputs.pickle.xz";
const OTHER_SIZE: &str = "fixtures/zoo/leak_hook_cache.pickle.xz";

/// What a check says and its exit code.
fn check(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = oomph(&[&["check"], arguments].concat());
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), words(&output.stdout), words(&output.stderr))
}

/// Without the line breaks, which hang on the names of temporary files.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn refused(arguments: &[&str], words: &[&str]) {
    let (code, out, said) = check(arguments);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} does not say `{word}`:\n{said}");
    }
}

#[test]
fn a_budget_is_met_or_exceeded() {
    let kept = text(&["check", CLEAN, "--max-peak", "1GiB", "--max-reserved", "1GiB", "--no-leaks"]);
    assert!(kept.starts_with("✓ within the budget: 3 limits met"), "{kept}");
    let numbers = json(&["check", CLEAN, "--max-peak", "1GiB", "--json"]);
    let peak = numbers["devices"][0]["peak_allocated"].as_u64().expect("bytes");
    text(&["check", CLEAN, "--max-peak", &peak.to_string()]);
    assert_eq!(check(&[CLEAN, "--max-peak", &(peak - 1).to_string()]).0, Some(1));
    let (code, said, _) = check(&[LEAK, "--no-leaks"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("leak at leak_infer_outputs.py:9"), "{said}");
}

#[test]
fn a_budget_without_a_limit_is_a_mistake() {
    refused(&[CLEAN], &["no limit was given", "--max-peak"]);
    refused(&["--no-leaks"], &["nothing to check"]);
    refused(&[CLEAN, "--tolerance", "1%"], &["--baseline"]);
}

#[test]
fn the_json_keeps_its_fields() {
    let document = json(&["check", CLEAN, "--max-peak", "1GiB", "--json"]);
    assert_eq!((&document["version"], &document["ok"]), (&Value::from(1), &Value::from(true)));
    let device = &document["devices"][0];
    for field in ["input", "device", "peak_allocated", "peak_reserved", "leaks", "broken"] {
        assert!(!device[field].is_null(), "{field}");
    }
    assert_eq!(device["limits"][0]["limit"], "max-peak");
}

#[test]
fn growth_is_what_the_leaks_add_up_to() {
    let (code, said, _) = check(&[LEAK, "--max-growth", "170MiB", "--json"]);
    let document: Value = serde_json::from_str(&said).expect("JSON");
    let growth = document["devices"][0]["growth_per_step"].as_u64().expect("bytes");
    assert_eq!(code, Some(1));
    let findings = json(&["report", "--json", LEAK])["inputs"][0]["devices"][0]["findings"].clone();
    let leaks = findings.as_array().expect("a list").iter().filter(|finding| finding["kind"] == "leak");
    assert_eq!(leaks.filter_map(|leak| leak["bytes_per_step"].as_u64()).sum::<u64>(), growth);
    text(&["check", LEAK, "--max-growth", &growth.to_string()]);
    text(&["check", CLEAN, "--max-growth", "0"]);
}

#[test]
fn fragmentation_and_reserved_memory_come_from_a_replay() {
    let varied = "fixtures/whatif/default/frag_variable_length.pickle.xz";
    let (code, said, _) = check(&[varied, "--max-fragmentation", "10%", "--max-reserved", "4TiB", "--json"]);
    let device = serde_json::from_str::<Value>(&said).expect("JSON")["devices"][0].clone();
    assert_eq!(code, Some(1));
    assert!(device["fragmentation"].as_f64() > Some(0.1), "{device}");
    // The driver's addresses of that day aside, a complete recording from an empty pool is what it reserved.
    let (recorded, replayed) = (&device["peak_reserved"], &device["replayed_reserved"]);
    let (recorded, replayed) = (recorded.as_f64().expect("bytes"), replayed.as_f64().expect("bytes"));
    assert!((recorded - replayed).abs() < 0.04 * recorded, "{recorded} {replayed}");
    assert_eq!(check(&[varied, "--max-fragmentation", "99"]).0, Some(0));
}

#[test]
fn what_cannot_be_measured_is_no_pass() {
    let folder = tempfile::tempdir().expect("a folder");
    // Only the last part of a history, as PyTorch's ring buffer leaves it.
    let late = "fixtures/torch/torch-2.11.0.pickle.xz";
    let is_late = json(&["report", "--json", late])["inputs"][0]["devices"][0]["history"] == "truncated";
    assert!(is_late, "the fixture begins late");
    for (limit, words) in [
        (["--max-peak", "1TiB"], "the history starts late"),
        (["--max-reserved", "1TiB"], "cannot be replayed from an empty pool"),
        (["--max-fragmentation", "99%"], "cannot be replayed from an empty pool"),
    ] {
        let (code, said, _) = check(&[&[late], &limit[..]].concat());
        assert!(code == Some(2) && said.starts_with("? could not measure"), "{limit:?}: {code:?} {said}");
        assert!(flat(&said).contains(words), "{said}");
    }
    let (code, said, _) = check(&["fixtures/zoo/cuda_graph.pickle.xz", "--max-growth", "1GiB", "--no-leaks"]);
    assert!(code == Some(2) && said.contains("3 steps are too few to tell growth"), "{said}");
    // What was seen is too much already.
    assert_eq!(check(&[late, "--max-peak", "1"]).0, Some(1));
    let file = folder.path().join("m.json");
    refused(
        &[late, "--baseline", file.to_str().expect("text"), "--update"],
        &["needs the peak", "starts late"],
    );
}

/// A baseline of one run in a folder of its own.
fn baseline(of: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("memory.json");
    let said = text(&["check", of, "--baseline", file.to_str().expect("text"), "--update"]);
    assert!(flat(&said).contains("memory.json was written: 1 device"), "{said}");
    (folder, file)
}

#[test]
fn a_baseline_is_written_once_and_compared_with() {
    let (_folder, file) = baseline(CLEAN);
    let name = file.to_str().expect("text");
    let first = std::fs::read_to_string(&file).expect("a file");
    assert!(first.ends_with("}\n") && !first.contains("\":\"/") && first.len() < 4096, "{first}");
    assert!(first.lines().any(|line| line.contains(r#""file":"no_zero_grad.py","line":11"#)), "{first}");
    let again = text(&["check", CLEAN, "--baseline", name, "--update"]);
    assert!(flat(&again).contains("is unchanged"), "{again}");
    let kept = text(&["check", CLEAN, "--baseline", name, "--tolerance", "0"]);
    assert!(flat(&kept).contains("peak allocated +0 B, +0% against"), "{kept}");
    let (code, said, _) = check(&[LEAK, "--baseline", name]);
    assert_eq!(code, Some(1));
    for words in ["+2.45 GiB leak_infer_outputs.py:9 predict", "activation 1.00 MiB → 2.41 GiB", "`--update`"]
    {
        assert!(flat(&said).contains(words), "no `{words}` in:\n{said}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o600, 0o600);
        assert_ne!(mode & 0o077, 0, "others may read what is in git");
    }
}

#[test]
fn a_baseline_is_not_written_if_a_limit_is_exceeded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("memory.json");
    let (code, said, _) =
        check(&[LEAK, "--no-leaks", "--baseline", file.to_str().expect("text"), "--update"]);
    assert!(code == Some(1) && flat(&said).contains("was not written: over the budget"), "{said}");
    assert!(!file.exists());
}

#[test]
fn the_baseline_decides_by_its_tolerance_and_survives_moved_lines() {
    let (_folder, file) = baseline(CLEAN);
    let name = file.to_str().expect("text");
    let written = std::fs::read_to_string(&file).expect("a file");
    let mut document: Value = serde_json::from_str(&written).expect("JSON");
    let device = &mut document["devices"][0];
    // Two per cent less at one line, which has moved since.
    let less = |value: &mut Value, by: u64| *value = (value.as_u64().expect("bytes") - by).into();
    less(&mut device["peak_allocated"], 4 << 20);
    less(&mut device["peak_requested"], 4 << 20);
    less(&mut device["categories"]["temporary"], 4 << 20);
    less(&mut device["sites"][0]["bytes"], 4 << 20);
    device["sites"][0]["line"] = 42.into();
    std::fs::write(&file, document.to_string()).expect("written");
    let (code, said, _) = check(&[CLEAN, "--baseline", name]);
    let said = flat(&said);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("+4.00 MiB, +2.2%, tolerance 1%"), "{said}");
    assert!(
        said.contains("+4.00 MiB no_zero_grad.py:11 <module> (was line 42) 68.1 MiB → 72.1 MiB"),
        "{said}"
    );
    assert!(said.contains("temporary 20.0 MiB → 24.0 MiB (+4.00 MiB)"), "{said}");
    for tolerance in ["3%", "4MiB"] {
        text(&["check", CLEAN, "--baseline", name, "--tolerance", tolerance]);
    }
    assert_eq!(check(&[CLEAN, "--baseline", name, "--tolerance", "3MiB"]).0, Some(1));
    // More than the tolerance below it.
    document["devices"][0]["peak_allocated"] = (1u64 << 30).into();
    document["torch"] = "2.0.0".into();
    std::fs::write(&file, document.to_string()).expect("written");
    let (code, said, _) = check(&[CLEAN, "--baseline", name, "--tolerance", "3%"]);
    assert!(code == Some(0) && flat(&said).contains("which `--update` can tighten"), "{said}");
}

#[test]
fn a_baseline_of_other_devices_cannot_be_compared() {
    let (_folder, file) = baseline(CLEAN);
    let name = file.to_str().expect("text");
    let written = std::fs::read_to_string(&file).expect("a file");
    std::fs::write(&file, written.replace("\"rank\": 0", "\"rank\": 3")).expect("written");
    let (code, said, _) = check(&[CLEAN, "--baseline", name]);
    let said = flat(&said);
    assert_eq!(code, Some(2));
    assert!(said.contains("has no numbers of rank 0 GPU 0") && said.contains("rank 3 device 0"), "{said}");
}

#[test]
fn what_is_no_baseline_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("memory.json");
    let name = file.to_str().expect("text");
    refused(&[CLEAN, "--baseline", name], &["there is no baseline", "--update"]);
    refused(
        &[CLEAN, "--baseline", folder.path().to_str().expect("text")],
        &["cannot be read", "not a regular file"],
    );
    for (text, words) in [
        ("", "EOF"),
        ("\u{feff}{}", "expected value"),
        (r#"{"name": "a package", "version": "1.0.0"}"#, "no key `oomph_baseline`"),
        (r#"{"oomph_baseline": 2, "devices": 7}"#, "newer oomph"),
        (r#"{"oomph_baseline": -1}"#, "version -1"),
    ] {
        std::fs::write(&file, text).expect("written");
        refused(&[CLEAN, "--baseline", name], &[words, "hint:"]);
        refused(&[CLEAN, "--baseline", name, "--update"], &[words]);
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), text, "somebody else's file stays");
    }
    std::fs::write(&file, [0xff, 0xfe, 0x00]).expect("written");
    refused(&[CLEAN, "--baseline", name], &["not a text file"]);
    // Its own, damaged: `--update` repairs it.
    for text in [r#"{"oomph_baseline": 1, "devices": [{}]}"#, "<<<<<<< HEAD\n{\n=======\n"] {
        std::fs::write(&file, text).expect("written");
        refused(&[CLEAN, "--baseline", name], &["--update"]);
        let said = crate::common::text(&["check", CLEAN, "--baseline", name, "--update"]);
        assert!(flat(&said).contains("was written"), "{said}");
    }
}

#[test]
fn names_in_a_baseline_cannot_steer_the_terminal() {
    let (_folder, file) = baseline(CLEAN);
    let name = file.to_str().expect("text");
    let written = std::fs::read_to_string(&file).expect("a file");
    let hostile = written.replace("no_zero_grad.py", "\\u001b[2Jx.py").replace("195158528", "1");
    std::fs::write(&file, hostile.replace("\"devices\"", "\"torch\": \"\\u001b]0;x\", \"devices\""))
        .expect("written");
    let (code, said, _) =
        check(&[CLEAN, "--baseline", name, "--format", "text", "--format", "github", "--format", "junit"]);
    assert_eq!(code, Some(1));
    assert!(!said.contains('\u{1b}'), "{said}");
}

#[test]
fn several_formats_go_to_several_places() {
    let folder = tempfile::tempdir().expect("a folder");
    let (junit, document) = (folder.path().join("memory.xml"), folder.path().join("memory.out"));
    let file = |format: &str, path: &PathBuf| format!("{format}={}", path.to_string_lossy());
    let (code, said, _) = check(&[
        LEAK,
        "--no-leaks",
        "--max-peak",
        "8GiB",
        "--format",
        &file("junit", &junit),
        "--format",
        &file("json", &document),
    ]);
    assert!(code == Some(1) && said.starts_with("✗ over the budget: 1 of 2 limits exceeded"), "{said}");
    let xml = std::fs::read_to_string(junit).expect("a file");
    assert!(
        xml.starts_with("<?xml") && xml.contains("tests=\"2\" skipped=\"0\" failures=\"1\" errors=\"0\""),
        "{xml}"
    );
    let document = std::fs::read_to_string(document).expect("a file");
    assert_eq!(serde_json::from_str::<Value>(&document).expect("JSON")["ok"], false);
    let (_, annotations, _) = check(&[LEAK, "--no-leaks", "--format", "github"]);
    let start = "::error file=leak_infer_outputs.py,line=9,title=oomph check%3A no-leaks (";
    assert!(annotations.starts_with(start), "{annotations}");
    assert_eq!(annotations.lines().count(), 1);
    refused(
        &[LEAK, "--no-leaks", "--format", "json=/nowhere/a.json"],
        &["/nowhere/a.json` cannot be written"],
    );
    refused(&[LEAK, "--no-leaks", "--format", "xml"], &["text, json, junit or github"]);
}

#[test]
fn a_run_that_ran_out_of_memory_is_over_any_budget() {
    let (code, said, _) = check(&["fixtures/zoo/oom_too_big.pickle.xz", "--max-peak", "1TiB"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ran out of memory on GPU 0"), "{said}");
}

#[test]
fn two_ranks_are_two_suites() {
    let (code, said, _) = check(&[CLEAN, OTHER_SIZE, "--max-peak", "1TiB", "--format", "junit"]);
    assert_eq!((code, said.matches("<testsuite ").count()), (Some(0), 2), "{said}");
}
