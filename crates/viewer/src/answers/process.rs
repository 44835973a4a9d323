//! The memory of the process by owner, and the phases of the program, as the report shows them.

use crate::question::{ExportPart, Question};
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use analysis::words::{counted, site_name};
use analysis::{DeviceLedger, PhaseSummary, RunPhases};
use serde::{Deserialize, Serialize};

/// Lines that are named for what stayed after a phase.
const MAX_LINES: usize = 3;

/// Asks for the process of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct ProcessQuery {
    run: usize,
}

impl Question for ProcessQuery {
    const NAME: &'static str = "process";
    type Answer = ProcessMemory;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<ProcessMemory, Problem> {
        viewer.about(self.run, |view| Ok(ProcessMemory::new(view)))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<ProcessQuery> {
        match *part {
            ExportPart::Page { runs, .. } => runs.iter().map(|&run| ProcessQuery { run }).collect(),
            _ => Vec::new(),
        }
    }
}

/// Memory of a process on one device.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
pub(crate) struct ProcessMemory {
    /// When most of the device was in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<ProcessLedger>,
    phases: Vec<PhaseCard>,
}

/// Memory by owner.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
struct ProcessLedger {
    /// Bytes of the process by the driver's count.
    process: u64,
    /// The moment, in words.
    when: String,
    /// Whether calls of the CUDA driver were counted.
    traced: bool,
    owners: Vec<OwnerBytes>,
    /// What the owners lack of the process's memory.
    unattributed: i64,
    /// Other processes.
    others: Vec<OwnerBytes>,
}

/// What one owner has.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
struct OwnerBytes {
    name: String,
    bytes: u64,
    /// What it is made up of, in words.
    parts: String,
}

/// All phases of one name.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
struct PhaseCard {
    name: String,
    times: u64,
    duration_us: u64,
    /// Highest allocated bytes.
    peak: u64,
    /// Position of the peak.
    position: usize,
    /// Highest reserved bytes.
    reserved: u64,
    /// Allocated bytes when the last one ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<u64>,
    /// Bytes of the process when the last one ended, where the driver was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u64>,
    /// What the last one left.
    #[serde(skip_serializing_if = "Option::is_none")]
    stayed: Option<u64>,
    /// Lines of what stayed, in words.
    lines: String,
}

impl ProcessMemory {
    /// Whether there is anything to show.
    pub(crate) fn is_there(view: &DeviceView<'_>) -> bool {
        let recording = view.device().recording;
        let ledger = DeviceLedger::highest(recording, view.history().device);
        RunPhases::are_worth_showing(&recording.phases) || ledger.is_some_and(|of| of.process.is_some())
    }

    fn new(view: &DeviceView<'_>) -> ProcessMemory {
        let device = view.device();
        let ledger = DeviceLedger::highest(device.recording, view.history().device);
        let phases = RunPhases::new(view.model).map(|found| found.phases).unwrap_or_default();
        ProcessMemory {
            ledger: ledger.and_then(ProcessLedger::new),
            phases: phases.into_iter().map(|phase| PhaseCard::new(view, phase)).collect(),
        }
    }
}

impl ProcessLedger {
    fn new(ledger: DeviceLedger) -> Option<ProcessLedger> {
        let when = ledger.when();
        let others = ledger.others.into_iter().map(|process| OwnerBytes {
            name: format!("{} ({})", process.name, process.pid),
            bytes: process.bytes.0,
            parts: String::new(),
        });
        let owners = ledger.rows.into_iter().map(|row| {
            let parts = row.libraries.iter().map(|(name, bytes)| format!("{name} {bytes}"));
            let parts = parts.collect::<Vec<_>>().join(" · ");
            OwnerBytes { name: row.owner.name().to_owned(), bytes: row.bytes.0, parts }
        });
        Some(ProcessLedger {
            process: ledger.process?.0,
            when,
            traced: ledger.is_traced,
            owners: owners.collect(),
            unattributed: ledger.unattributed.unwrap_or(0),
            others: others.collect(),
        })
    }
}

impl PhaseCard {
    fn new(view: &DeviceView<'_>, phase: PhaseSummary) -> PhaseCard {
        let last = phase.last.as_ref();
        let lines = last.map(|last| last.lines.as_slice()).unwrap_or_default();
        let mut words: Vec<String> = lines
            .iter()
            .take(MAX_LINES)
            .filter_map(|line| Some(format!("{} {}", site_name(view.snapshot(), line.frame?), line.bytes)))
            .collect();
        if lines.len() > MAX_LINES {
            words.push(counted((lines.len() - MAX_LINES) as u64, "more line"));
        }
        PhaseCard {
            times: phase.times,
            duration_us: phase.microseconds,
            peak: phase.peak.bytes.0,
            position: phase.peak.position,
            reserved: phase.reserved_peak.0,
            after: last.map(|last| last.after.allocated.0),
            process: last.and_then(|last| last.after.process).map(|bytes| bytes.0),
            stayed: last.map(|last| last.stayed.0),
            lines: words.join(" · "),
            name: phase.name,
        }
    }
}
