//! `rankN.phases.jsonl`: the phases of a program, one line for each change.

use crate::lines::json_lines;
use crate::{DriverCounts, FileError, LedgerCounters};
use serde::Deserialize;

/// The moment from which on a phase ran, with the counters of that moment.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct PhaseMark {
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
    /// Name of the phase; `None` where the recorder stopped to note phases, since there were too many.
    pub phase: Option<String>,
    /// Number of the phase among all of the run. A phase goes on under its number when one within it ends.
    #[serde(default)]
    pub number: u64,
    /// Whether the program names the phase, not the recorder.
    #[serde(default, rename = "named")]
    pub is_named: bool,
    /// Counters of each device. Empty where reading them would have cost too much.
    #[serde(default)]
    pub devices: Vec<LedgerCounters>,
    /// What libraries had taken from the driver.
    #[serde(default)]
    pub driver: DriverCounts,
}

impl PhaseMark {
    /// Parses the whole file. A killed program may have left half of the last line, which is dropped.
    pub fn parse_all(bytes: &[u8]) -> Result<Vec<PhaseMark>, FileError> {
        json_lines(bytes).ok_or(FileError::BadPhaseMarks)
    }

    /// Returns the counters of a device.
    pub fn of(&self, device: u32) -> Option<&LedgerCounters> {
        self.devices.iter().find(|of| of.device == device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_needs_a_time_only() {
        let marks = PhaseMark::parse_all(
            b"{\"time_us\": 5, \"phase\": \"train\", \"number\": 1, \"named\": false, \"devices\": \
              [{\"device\": 0, \"allocations\": 7, \"allocated\": 3, \"reserved\": 4}]}\n{\"time_us\": 9}\n",
        )
        .expect("marks");
        assert_eq!(marks[0].of(0).and_then(|of| of.allocations), Some(7));
        assert_eq!(marks[1], PhaseMark { time_us: 9, ..PhaseMark::default() });
        let bad = PhaseMark::parse_all(b"[]\n{\"time_us\": 9}\n");
        assert!(matches!(bad, Err(FileError::BadPhaseMarks)), "{bad:?}");
    }
}
