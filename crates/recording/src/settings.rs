//! Allocator settings that a program changed while it ran, from `rankN.json`.

use crate::AllocationCounts;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Allocator settings of a program that changed them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsLog {
    /// Settings string before the first change.
    pub initial: String,
    /// Calls that changed them, in order of time.
    pub changes: Vec<SettingsMark>,
}

/// Call that changed the allocator settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsMark {
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
    /// Allocations made by then.
    pub allocations: AllocationCounts,
    /// Settings string that the program passed.
    pub conf: String,
}

#[derive(Deserialize)]
pub(crate) struct SettingsEntry {
    initial: String,
    /// Time in microseconds, allocations of each device, settings string.
    changes: Vec<(i64, BTreeMap<String, u64>, String)>,
}

impl From<SettingsEntry> for SettingsLog {
    fn from(SettingsEntry { initial, changes }: SettingsEntry) -> SettingsLog {
        let mark = |(time_us, allocations, conf)| SettingsMark {
            time_us,
            allocations: AllocationCounts::from(allocations),
            conf,
        };
        SettingsLog { initial, changes: changes.into_iter().map(mark).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_known_by_time_and_counts() {
        let entry = r#"{"initial": "a:1", "changes": [[5, {"0": 3, "1": 4}, "b:2"], [7, {}, ""]]}"#;
        let log = SettingsLog::from(serde_json::from_str::<SettingsEntry>(entry).expect("an entry"));
        assert_eq!(log.initial, "a:1");
        let [first, second] = &log.changes[..] else { panic!("two changes: {log:?}") };
        assert_eq!((first.time_us, first.allocations.of(1), first.conf.as_str()), (5, Some(4), "b:2"));
        assert_eq!((second.time_us, second.allocations.of(0), second.conf.as_str()), (7, None, ""));
    }
}
