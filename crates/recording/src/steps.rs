//! `rankN.steps.jsonl`: the counters at the end of each step, one JSON object per line.

use crate::lines::json_lines;
use crate::{AllocationCounts, FileError};
use serde::Deserialize;
use snapshot::Bytes;
use std::collections::BTreeMap;

/// One line of the file, as the recorder wrote it when a step ended.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StepLine {
    /// Number of the step, from 1.
    pub step: Option<u64>,
    /// When the step ended, in microseconds since the Unix epoch.
    pub time_us: i64,
    /// The counters of each device.
    #[serde(default)]
    pub devices: Vec<StepCounters>,
    /// Whether the allocations of the step were recorded with their stacks. Older recorders always did.
    #[serde(default = "yes", rename = "stacks")]
    pub has_stacks: bool,
    /// Whether the step is one call of a module that no other module has called: the program has no
    /// optimizer, and does not say where its steps end.
    #[serde(default, rename = "module_call")]
    pub is_module_call: bool,
}

fn yes() -> bool {
    true
}

/// Counters of one device at the end of a step. Absent ones are unknown.
#[derive(Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct StepCounters {
    /// Device ordinal.
    pub device: u32,
    /// Allocations made so far: `allocation.all.allocated` of `memory_stats()`.
    pub allocations: Option<u64>,
    /// Bytes allocated by PyTorch.
    pub allocated: Option<u64>,
    /// Bytes reserved by PyTorch.
    pub reserved: Option<u64>,
    /// Most bytes that PyTorch had allocated by then: `allocated_bytes.all.peak` of `memory_stats()`.
    pub peak: Option<u64>,
    /// Bytes in use on the device, by the driver.
    pub used: Option<u64>,
    /// Bytes in use by other processes, by the driver.
    pub others: Option<u64>,
}

impl StepLine {
    /// Parses one line.
    pub fn parse(line: &str) -> Result<StepLine, FileError> {
        Ok(serde_json::from_str(line)?)
    }

    /// Returns the most that PyTorch ever counted as allocated, for each device.
    pub(crate) fn counted_peaks(lines: &[StepLine]) -> BTreeMap<u32, Bytes> {
        let mut peaks: BTreeMap<u32, Bytes> = BTreeMap::new();
        for of in lines.iter().flat_map(|line| &line.devices) {
            let counted = of.peak.max(of.allocated).map_or(Bytes::ZERO, Bytes);
            let peak = peaks.entry(of.device).or_default();
            *peak = counted.max(*peak);
        }
        peaks
    }

    /// Parses a whole file. A killed program may have left half of the last line, which is dropped.
    pub fn parse_all(bytes: &[u8]) -> Result<Vec<StepLine>, FileError> {
        json_lines(bytes).ok_or(FileError::BadStepMarks)
    }
}

/// The end of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepMark {
    /// Microseconds since the Unix epoch.
    pub time_us: i64,
    /// Allocations made by then.
    pub allocations: AllocationCounts,
    /// Whether the allocations of the step were recorded with their stacks.
    pub has_stacks: bool,
    /// Whether the step is one call of a module that no other module has called.
    pub is_module_call: bool,
}

impl Default for StepMark {
    fn default() -> StepMark {
        let allocations = AllocationCounts::default();
        StepMark { time_us: 0, allocations, has_stacks: true, is_module_call: false }
    }
}

impl From<StepLine> for StepMark {
    fn from(StepLine { time_us, devices, has_stacks, is_module_call, .. }: StepLine) -> StepMark {
        let counts = devices.iter().filter_map(|of| Some((of.device, of.allocations?)));
        StepMark { time_us, allocations: AllocationCounts(counts.collect()), has_stacks, is_module_call }
    }
}

/// Memory of a device that PyTorch's allocator did not hand out: the most that the driver showed at the end
/// of a step.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct NonPytorchMemory {
    /// Device ordinal.
    pub device: u32,
    /// Memory of the process itself: the CUDA context, libraries.
    pub process: Bytes,
    /// Memory of other processes.
    pub others: Bytes,
}

impl NonPytorchMemory {
    /// Returns the maximum over all steps, for each device whose driver numbers are known.
    pub fn highest(lines: &[StepLine]) -> Vec<NonPytorchMemory> {
        let mut highest: BTreeMap<u32, NonPytorchMemory> = BTreeMap::new();
        for of in lines.iter().flat_map(|line| &line.devices) {
            let (Some(used), Some(reserved)) = (of.used, of.reserved) else { continue };
            let others = of.others.unwrap_or(0);
            let process = used.saturating_sub(reserved).saturating_sub(others);
            let found = highest.entry(of.device).or_default();
            found.device = of.device;
            found.process = found.process.max(Bytes(process));
            found.others = found.others.max(Bytes(others));
        }
        highest.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_known_by_its_time_even_without_counts() {
        let lines = StepLine::parse_all(
            b"{\"time_us\": 5, \"allocated\": 9}\n\n{\"time_us\": 7, \"devices\": [{\"device\": 1, \
              \"allocations\": 3, \"reserved\": 10, \"used\": 60, \"others\": 20}]}\n",
        )
        .expect("marks");
        let expected = [NonPytorchMemory { device: 1, process: Bytes(30), others: Bytes(20) }];
        assert_eq!(NonPytorchMemory::highest(&lines), expected);
        let marks: Vec<StepMark> = lines.into_iter().map(StepMark::from).collect();
        let expected = [
            StepMark { time_us: 5, ..StepMark::default() },
            StepMark { time_us: 7, allocations: AllocationCounts(vec![(1, 3)]), ..StepMark::default() },
        ];
        assert_eq!(marks, expected);
    }

    #[test]
    fn only_the_last_line_may_be_cut() {
        let bad = StepLine::parse_all(b"{\"time_us\": 5}\nnothing\n");
        assert!(matches!(bad, Err(FileError::BadStepMarks)), "{bad:?}");
        let cut = StepLine::parse_all(b"{\"time_us\": 5}\n{\"time_u").expect("all but the last line");
        assert_eq!(cut.len(), 1, "a program that was killed has left half a line");
    }
}
