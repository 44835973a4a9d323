//! The alarm on the steps of real programs: what `memory_allocated()` said on a GPU after each of them.

use analysis::GrowthAlarm;
use serde_json::Value;
use snapshot::Bytes;
use std::path::Path;

/// Programs with growth that the alarm is for: each step adds a part of a megabyte at least.
const LEAKS: [&str; 5] =
    ["leak_cycle", "leak_exception", "leak_hook_cache", "leak_infer_outputs", "leak_retain_graph"];

/// The step at which the alarm speaks of a recorded program.
fn spoken(name: &str) -> Option<usize> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/zoo/{name}.truth.json"));
    let text = std::fs::read_to_string(path).expect("the program's steps");
    let truth: Value = serde_json::from_str(&text).expect("JSON");
    let rows = truth["rows"].as_array().expect("rows");
    let mut alarm = GrowthAlarm::default();
    rows.iter().find_map(|row| alarm.step(Bytes(row["allocated"].as_u64()?))).map(|growth| growth.step)
}

#[test]
fn leaks_are_called_within_ten_steps_and_nothing_else_is() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/zoo");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("the fixtures")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".truth.json")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let step = spoken(&name);
        if LEAKS.contains(&name.as_str()) {
            assert!(step.is_some_and(|step| step <= 10), "{name} is called at step {step:?}");
        } else {
            assert_eq!(step, None, "{name}");
        }
    }
}
