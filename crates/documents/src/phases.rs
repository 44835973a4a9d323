//! The phases of a program in the JSON of `oomph report`.

use crate::ledger::LedgerReport;
use crate::sites::ReportedSite;
use analysis::{EndedPhase, PhaseChange, PhaseLine, PhaseMoment, PhaseSummary, RunPhases};
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::Snapshot;

/// Lines that are listed for what stayed after a phase.
const MAX_LINES: usize = 16;

/// The phases of a run on one device.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PhasesReport {
    /// Phases by name, in the order of their first beginning.
    phases: Vec<ProgramPhaseReport>,
    /// Changes from one phase to another, in the order of their first time.
    changes: Vec<PhaseChangeReport>,
    /// Whether there were more phases than a recorder notes.
    cut: bool,
}

/// All phases of one name.
#[derive(Serialize, JsonSchema)]
struct ProgramPhaseReport {
    /// The name.
    name: String,
    /// Whether the program gives the name (`oomph.phase()`). Others are recognized.
    named: bool,
    /// How often it ran.
    times: u64,
    /// How long, all of them together, in microseconds.
    duration_us: u64,
    /// Highest allocated bytes.
    peak: u64,
    /// Index of the event that reaches it.
    peak_event: usize,
    /// Highest reserved bytes.
    reserved_peak: u64,
    /// The last one that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<EndedPhaseReport>,
}

/// One phase from its beginning to its end.
#[derive(Serialize, JsonSchema)]
struct EndedPhaseReport {
    /// Memory when it began.
    before: PhaseMomentReport,
    /// Memory when it ended.
    after: PhaseMomentReport,
    /// Whether it ended with much less memory than it began with, as when an engine goes to sleep.
    releases: bool,
    /// Bytes that it allocated and did not free; if it releases memory, all that is still allocated.
    stayed: u64,
    /// Lines that made up what stayed, the largest first.
    lines: Vec<PhaseLineReport>,
    /// Memory of the process by owner when it ended, where the driver was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<LedgerReport>,
}

/// Memory at a change of phases, in bytes.
#[derive(Serialize, JsonSchema)]
struct PhaseMomentReport {
    /// Allocated bytes.
    allocated: u64,
    /// Reserved bytes.
    reserved: u64,
    /// Memory of the process on the device by the driver's count, where it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u64>,
}

/// What a phase left behind at one line.
#[derive(Serialize, JsonSchema)]
struct PhaseLineReport {
    /// The line, where a stack was recorded.
    site: Option<ReportedSite>,
    /// Bytes of the blocks.
    bytes: u64,
    /// Number of blocks.
    blocks: u64,
}

/// A change from one phase to another.
#[derive(Serialize, JsonSchema)]
struct PhaseChangeReport {
    /// Name of the phase that ends.
    from: String,
    /// Name of the phase that begins.
    to: String,
    /// How often.
    times: u64,
    /// Memory at the last of these changes.
    at: PhaseMomentReport,
}

impl PhasesReport {
    /// The phases of a run whose lines are frames of this snapshot.
    pub(crate) fn new(found: RunPhases, snapshot: &Snapshot) -> PhasesReport {
        PhasesReport {
            phases: found.phases.into_iter().map(|phase| ProgramPhaseReport::new(phase, snapshot)).collect(),
            changes: found.changes.into_iter().map(PhaseChangeReport::from).collect(),
            cut: found.is_cut,
        }
    }
}

impl ProgramPhaseReport {
    fn new(phase: PhaseSummary, snapshot: &Snapshot) -> ProgramPhaseReport {
        ProgramPhaseReport {
            name: phase.name,
            named: phase.is_named,
            times: phase.times,
            duration_us: phase.microseconds,
            peak: phase.peak.bytes.0,
            peak_event: phase.peak.position.saturating_sub(1),
            reserved_peak: phase.reserved_peak.0,
            last: phase.last.map(|last| EndedPhaseReport::new(last, snapshot)),
        }
    }
}

impl EndedPhaseReport {
    fn new(last: EndedPhase, snapshot: &Snapshot) -> EndedPhaseReport {
        let line = |line: &PhaseLine| PhaseLineReport {
            site: line.frame.map(|frame| ReportedSite::of(snapshot, frame)),
            bytes: line.bytes.0,
            blocks: line.blocks,
        };
        EndedPhaseReport {
            before: last.before.into(),
            after: last.after.into(),
            releases: last.releases,
            stayed: last.stayed.0,
            lines: last.lines.iter().take(MAX_LINES).map(line).collect(),
            ledger: last.ledger.map(LedgerReport::from),
        }
    }
}

impl From<PhaseMoment> for PhaseMomentReport {
    fn from(moment: PhaseMoment) -> PhaseMomentReport {
        PhaseMomentReport {
            allocated: moment.allocated.0,
            reserved: moment.reserved.0,
            process: moment.process.map(|bytes| bytes.0),
        }
    }
}

impl From<PhaseChange> for PhaseChangeReport {
    fn from(change: PhaseChange) -> PhaseChangeReport {
        let PhaseChange { from, to, times, at } = change;
        PhaseChangeReport { from, to, times, at: at.into() }
    }
}
