//! The model does what PyTorch did: every event, and every segment and block at the end.

use crate::common::{fixtures, json, recordings};
use allocator::{Conf, KnownConditions, RecordedRun, Release};
use serde_json::Value;
use snapshot::History;
use std::path::Path;

/// Verifies every device of a file and describes the first difference.
fn difference(file: &Path, case: &Value, limit: Option<u64>) -> Option<String> {
    let mut snapshot = snapshot::open(file).expect("a snapshot");
    let release = case["torch"].as_str().map(|name| {
        let minor = name.split('.').nth(1).expect("2.x.y");
        Release(minor.parse().expect("a number"))
    });
    // Before torch 2.3 a snapshot does not have its settings.
    let conf = release
        .filter(|&release| release < Release(3))
        .map(|release| Conf::parse(case["conf"].as_str().expect("settings"), release).expect("taken").conf);
    if let Some(conf) = &conf {
        conf.replace_in(&mut snapshot.settings);
    }
    for device in snapshot.devices() {
        let history = History::new(&snapshot, device);
        let given = KnownConditions { release, conf: conf.clone(), limit, total: None };
        let recorded = RecordedRun::new(&snapshot, &history, given);
        let verification = recorded.verification();
        if let Some(difference) = verification.difference {
            return Some(format!("{}: {difference}\n  {}", file.display(), difference.around.join("\n  ")));
        }
        assert_eq!(verification.identical, history.len(), "{}", file.display());
    }
    None
}

fn check(folder: &str, least: usize) {
    let files = recordings(folder);
    assert!(files.len() >= least, "{} files in {folder}", files.len());
    let differences: Vec<String> =
        files.iter().filter_map(|file| difference(file, &Value::Null, None)).collect();
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), files.len(), differences.join("\n"));
}

#[test]
fn the_zoo_is_reproduced() {
    check("zoo", 17);
}

#[test]
fn field_programs_are_reproduced() {
    check("field", 107);
}

#[test]
fn random_traffic_of_a_real_gpu_is_reproduced_under_nineteen_settings() {
    check("oracle", 19);
}

#[test]
fn programs_under_other_settings_are_reproduced() {
    for setting in ["default", "expand", "gc60", "pow8", "split128gc80", "split64"] {
        check(&format!("whatif/{setting}"), 2);
    }
}

#[test]
fn long_histories_are_reproduced() {
    check("large", 2);
}

#[test]
fn a_small_script_under_every_release_is_reproduced() {
    check("torch", 30);
}

/// Real allocators of sixteen releases, with random settings and calls, with and without the memory limit.
/// without it.
#[test]
fn random_traffic_of_every_release_is_reproduced() {
    let cases = json(&fixtures().join("traffic/cases.json"));
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() >= 200, "{} cases", cases.len());
    let mut differences = Vec::new();
    for case in cases {
        let file = fixtures().join("traffic").join(case["file"].as_str().expect("a name"));
        let limit = case["limit"].as_u64();
        differences.extend(difference(&file, case, limit));
        if limit.is_some() {
            differences.extend(difference(&file, case, None));
        }
    }
    assert!(differences.is_empty(), "{}:\n{}", differences.len(), differences.join("\n"));
}
