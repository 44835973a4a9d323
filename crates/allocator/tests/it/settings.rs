//! Settings strings are accepted and rejected as by sixteen releases of PyTorch, with the same meaning.

use allocator::{Conf, Release};
use serde_json::Value;
use std::path::Path;

fn rows() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/traffic/settings.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the file exists")).expect("JSON")
}

fn releases(row: &Value) -> impl Iterator<Item = Release> {
    let names = row["releases"].as_array().expect("a list");
    names.iter().map(|name| {
        let minor = name.as_str().and_then(|name| name.split('.').nth(1)).expect("2.x.y");
        Release(minor.parse().expect("a number"))
    })
}

#[test]
fn the_same_strings_are_accepted_and_rejected() {
    let rows = rows();
    assert!(rows.len() > 500, "{} rows", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        let conf = row["conf"].as_str().expect("a string");
        // Every release parses the other allocator, but it is not modeled.
        if conf.contains("cudaMallocAsync") {
            continue;
        }
        for release in releases(row) {
            let ours = Conf::parse(conf, release);
            if ours.is_ok() != row["accepted"].as_bool().expect("a boolean") {
                wrong.push(format!("{release} {conf:?}: {} / {ours:?}", row["reason"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn accepted_strings_mean_the_same() {
    let mut compared = 0;
    for row in rows().iter().filter(|row| row["settings"].is_object()) {
        let text = row["conf"].as_str().expect("a string");
        if text.contains("cudaMallocAsync") {
            continue;
        }
        let theirs = &row["settings"];
        for release in releases(row) {
            let conf = Conf::parse(text, release).expect("taken").conf;
            let max_split = theirs["max_split_size"].as_i64().filter(|&bytes| bytes != -1);
            assert_eq!(conf.max_split.map(|bytes| bytes as i64), max_split, "{release} {text:?}");
            assert_eq!(Some(conf.gc_threshold), theirs["garbage_collection_threshold"].as_f64(), "{text:?}");
            assert_eq!(Some(u64::from(conf.expandable)), theirs["expandable_segments"].as_u64(), "{text:?}");
            let divisions = theirs["roundup_power2_divisions"].as_array().expect("a list");
            let divisions: Vec<u64> = divisions.iter().filter_map(|each| each.as_u64()).collect();
            assert_eq!(conf.divisions.to_vec(), divisions, "{release} {text:?}");
            compared += 1;
        }
    }
    assert!(compared > 500, "{compared}");
}
