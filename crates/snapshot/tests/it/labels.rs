//! Every recorded program compared with its label: the counters of `torch.cuda.memory_stats()` on the H200.

use serde_json::Value;
use snapshot::{Counters, History, Metric, PoolClass, Snapshot, Stat};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Returns every snapshot below `fixtures/` that has a label, with the label.
fn labelled() -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    let mut folders = vec![fixtures()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("fixtures are there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(stem) = path.to_str().and_then(|path| path.strip_suffix(".pickle.xz")) {
                let label = [".truth.json", ".stats.json"]
                    .iter()
                    .find_map(|ending| std::fs::read_to_string(format!("{stem}{ending}")).ok());
                if let Some(label) = label {
                    found.push((path, serde_json::from_str(&label).expect("a label is JSON")));
                }
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert!(found.len() >= 70, "only {} labelled snapshots", found.len());
    found
}

fn open(path: &Path) -> Snapshot {
    snapshot::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn every_counter_at_the_end_equals_the_label() {
    let mut checked = 0;
    for (path, label) in labelled() {
        let snapshot = open(&path);
        let history = History::new(&snapshot, 0);
        let name = path.display();
        let expected = &label["final_stats"];
        for metric in Metric::ALL {
            for class in PoolClass::ALL {
                let Stat { current, peak, allocated } = history.stats.get(metric, class);
                let freed = allocated - current;
                for (field, value) in
                    [("current", current), ("peak", peak), ("allocated", allocated), ("freed", freed)]
                {
                    let key = format!("{}.{}.{field}", metric.key(), class.key());
                    // Peaks and sums before the first event of a late recording are not in the file.
                    if (history.complete || field == "current") && !expected[&key].is_null() {
                        assert_eq!(value, number(&expected[&key]), "{name}: {key}");
                        checked += 1;
                    }
                }
            }
        }
        for (key, stat) in [
            ("oversize_allocations", history.stats.oversize_allocations),
            ("oversize_segments", history.stats.oversize_segments),
        ] {
            for (field, value) in [
                ("current", stat.current),
                ("peak", stat.peak),
                ("allocated", stat.allocated),
                ("freed", stat.freed()),
            ] {
                let expected = &expected[format!("{key}.{field}")];
                if history.complete && !expected.is_null() {
                    assert_eq!(value, number(expected), "{name}: {key}.{field}");
                    checked += 1;
                }
            }
        }
        if history.complete {
            for (key, value) in [
                ("num_ooms", history.stats.ooms),
                ("num_device_alloc", history.stats.device_allocs),
                ("num_device_free", history.stats.device_frees),
            ] {
                if !expected[key].is_null() {
                    assert_eq!(value as i64, number(&expected[key]), "{name}: {key}");
                    checked += 1;
                }
            }
        }
        assert!(snapshot.caveats.is_empty(), "{name}: {:?}", snapshot.caveats);
        if history.complete {
            assert_eq!(history.caveats, [""; 0], "{name}");
        }
    }
    assert!(checked > 35 * 40, "only {checked} values were compared");
}

#[test]
fn every_step_of_a_label_is_reached_in_order() {
    for (path, label) in labelled() {
        let Some(rows) = label["rows"].as_array() else { continue };
        let snapshot = open(&path);
        let history = History::new(&snapshot, 0);
        let mut cursor = history.cursor(&snapshot);
        for row in rows {
            let wanted = |counters: Counters| {
                counters.allocated.0 as i64 == number(&row["allocated"])
                    && counters.reserved.0 as i64 == number(&row["reserved"])
                    && counters.active.0 as i64 == number(&row["active"])
                    && counters.requested.0 as i64 == number(&row["requested"])
                    && counters.inactive_split.0 as i64 == number(&row["inactive_split"])
            };
            while !wanted(cursor.total()) {
                assert!(
                    cursor.position() < history.len(),
                    "{}: step {} ({row}) is never reached",
                    path.display(),
                    row["step"]
                );
                cursor.seek(cursor.position() + 1);
            }
        }
    }
}

#[test]
fn the_cursor_gives_the_same_counters_backwards_as_forwards() {
    for (path, _) in labelled().into_iter().filter(|(path, _)| path.to_string_lossy().contains("oracle")) {
        let snapshot = open(&path);
        let history = History::new(&snapshot, 0);
        let mut cursor = history.cursor(&snapshot);
        let mut forwards = Vec::new();
        for position in 0..=history.len() {
            cursor.seek(position);
            forwards
                .push((cursor.total(), cursor.regions().map(|(_, counters)| counters).collect::<Vec<_>>()));
        }
        let (total, regions) = &forwards[history.len()];
        assert_eq!((*total, regions), (history.end, &history.region_ends), "{}", path.display());
        for position in (0..=history.len()).rev() {
            cursor.seek(position);
            let now = (cursor.total(), cursor.regions().map(|(_, counters)| counters).collect::<Vec<_>>());
            assert!(now == forwards[position], "{} at {position}", path.display());
            if position.is_multiple_of(997) {
                let held = history.allocated_at(position).map(|life| life.size).sum();
                assert_eq!(cursor.total().allocated, held, "{} at {position}", path.display());
            }
        }
    }
}
