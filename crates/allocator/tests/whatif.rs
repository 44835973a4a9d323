//! One recording tells what the same program reserves under other settings.

use allocator::{Conf, Given, Recorded, WhatIf};
use snapshot::History;
use std::path::Path;

const SETTINGS: [&str; 6] = ["default", "expand", "gc60", "pow8", "split128gc80", "split64"];
const PROGRAMS: [&str; 2] = ["clean_resnet50_amp", "frag_variable_length"];

#[test]
fn the_peak_under_other_settings_is_the_one_of_the_real_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/whatif");
    let mut wrong = Vec::new();
    for program in PROGRAMS {
        for from in SETTINGS {
            let snapshot =
                snapshot::open(&folder.join(from).join(format!("{program}.pickle.xz"))).expect("a snapshot");
            let history = History::new(&snapshot, 0);
            let recorded = Recorded::new(&snapshot, &history, Given::default());
            for setting in SETTINGS {
                let label =
                    std::fs::read_to_string(folder.join(setting).join(format!("{program}.truth.json")));
                let label: serde_json::Value = serde_json::from_str(&label.expect("a label")).expect("JSON");
                let conf = label["conf"].as_str().expect("settings");
                let conf = Conf::parse(conf, recorded.release).expect("accepted").conf;
                let outcome = recorded.simulate(&WhatIf { conf, total: None, available: None, limit: None });
                let real = label["final_stats"]["reserved_bytes.all.peak"].as_u64().expect("a number");
                let (low, high) = outcome.peak_reserved_range;
                let mark = if low == high && low == real {
                    "exact"
                } else if low <= real && real <= high {
                    "inside"
                } else {
                    "OUTSIDE"
                };
                println!(
                    "{program:22} {from:13} {setting:13} {real:12} {:12} {low:12} {high:12} {mark} {:.2}%",
                    outcome.peak_reserved,
                    (high - low) as f64 / real as f64 * 100.0
                );
                if mark == "OUTSIDE" {
                    wrong.push(setting);
                }
            }
        }
    }
    assert!(wrong.is_empty());
}
