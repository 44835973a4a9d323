//! Recordings of PyTorch's real allocators whose settings change while the program runs, or whose pools are of
//! special kinds: the allocator model makes every decision that PyTorch made.

use allocator::{Conf, KnownConditions, RecordedRun, Release, WhatIf};
use inputs::{Input, ProgressReporter};
use serde_json::Value;
use snapshot::{History, TorchRange};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/traffic/changing")
}

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join("cases.json")).expect("the labels exist");
    serde_json::from_str(&text).expect("a list")
}

fn load(case: &Value) -> Input {
    let path = folder().join(case["file"].as_str().expect("a name"));
    let mut input = inputs::load(&path, &ProgressReporter::SILENT).expect("a snapshot");
    let Release(minor) = release(case);
    input.snapshot.torch = TorchRange { oldest: minor, newest: minor };
    input
}

fn release(case: &Value) -> Release {
    let minor = case["torch"].as_str().and_then(|name| name.split('.').nth(1)?.parse().ok());
    Release(minor.expect("2.x.y"))
}

fn conditions(case: &Value) -> KnownConditions {
    KnownConditions {
        release: Some(release(case)),
        conf: None,
        limit: case["limit"].as_u64(),
        total: case["device_total"].as_u64(),
    }
}

fn has(case: &Value, tag: &str) -> bool {
    case["tags"].as_array().expect("tags").iter().any(|found| found == tag)
}

/// Returns whether only the growths show that settings changed: nothing noted it.
fn is_to_be_inferred(case: &Value) -> bool {
    case["file"].as_str().expect("a name").contains("-expandable-")
}

#[test]
fn runs_with_changing_settings_and_special_pools_are_reproduced() {
    let cases = cases();
    let (mut inferred, mut unexplained, mut differences) = (0, 0, Vec::new());
    for case in &cases {
        let input = load(case);
        assert_eq!(
            input.snapshot.earlier_settings.is_empty(),
            is_to_be_inferred(case) || !has(case, "changes"),
            "{}",
            case["file"]
        );
        let history = History::new(&input.snapshot, 0);
        let recorded = RecordedRun::new(&input.snapshot, &history, conditions(case));
        match recorded.verification().difference {
            None => inferred += usize::from(recorded.verification().infers_changes),
            // Choices between free blocks do not always show when the settings changed.
            Some(_) if is_to_be_inferred(case) => unexplained += 1,
            Some(difference) => differences.push(format!("{}: {difference}", case["file"])),
        }
    }
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), cases.len(), differences.join("\n"));
    assert!(cases.len() >= 60 && inferred >= 9 && unexplained <= 1, "{inferred}, {unexplained}");
}

#[test]
fn a_replay_follows_recorded_changes_and_an_override_replaces_them() {
    let mut followed = 0;
    let undisturbed = |case: &&Value| {
        has(case, "changes") && !["retries", "oom", "pending", "gc", "pools"].iter().any(|tag| has(case, tag))
    };
    for case in cases().iter().filter(undisturbed).filter(|case| !is_to_be_inferred(case)) {
        let input = load(case);
        let history = History::new(&input.snapshot, 0);
        let recorded = RecordedRun::new(&input.snapshot, &history, conditions(case));
        let what = |conf| WhatIf { conf, total: None, available: None, limit: None };
        let replayed = recorded.replay_once(&what(recorded.conf.clone()));
        assert_eq!(replayed.peak_reserved, history.reserved_peak.bytes.0, "{}", case["file"]);
        assert_eq!(replayed.peak_allocated, history.allocated_peak.bytes.0, "{}", case["file"]);
        let constant = |text: &str| {
            let parsed = Conf::parse(text, recorded.release).expect("taken");
            (recorded.conf_with(&parsed), parsed.conf)
        };
        let (with_changes, conf) = constant("expandable_segments:True,roundup_power2_divisions:4");
        assert_eq!(with_changes.changes().len(), recorded.conf.changes().len());
        for change in with_changes.changes() {
            assert!(change.conf.expandable && change.conf.divisions == conf.divisions, "{}", case["file"]);
        }
        followed += 1;
    }
    assert!(followed >= 3, "{followed} runs");
}
