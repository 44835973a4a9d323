//! Phases of a program: what each needs, what stays after it, and what one hands over to the next.

use crate::ledger::DeviceLedger;
use crate::run::model::RunModel;
use crate::run::step_peaks::MemoryPeak;
use crate::trace::counted::events_before;
use crate::words::share;
use recording::PhaseMark;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, Counters, FrameId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What the recorder calls the time in which it has recognized nothing: at the beginning, and after a phase
/// that the program names. The latter is a phase of its own only if it has the highest peak.
const STARTUP: &str = "startup";
const OTHER: &str = "other";
/// A phase releases memory if its end is lower than its beginning by so much.
const MIN_RELEASED: Bytes = Bytes(64 << 20);
const MIN_RELEASED_SHARE: f64 = 0.1;

/// The phases of a run on one device.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RunPhases {
    /// Phases by name, in the order of their first beginning.
    pub phases: Vec<PhaseSummary>,
    /// Changes from one phase to another, in the order of their first time.
    pub changes: Vec<PhaseChange>,
    /// Whether there were more phases than a recorder notes.
    pub is_cut: bool,
}

/// All phases of one name.
#[derive(Clone, PartialEq, Debug)]
pub struct PhaseSummary {
    /// The name.
    pub name: String,
    /// Whether the program gives the name, not the recorder.
    pub is_named: bool,
    /// How often it ran.
    pub times: u64,
    /// How long, all of them together, in microseconds.
    pub microseconds: u64,
    /// Highest allocated bytes.
    pub peak: MemoryPeak,
    /// Highest reserved bytes.
    pub reserved_peak: Bytes,
    /// The last one that has ended.
    pub last: Option<EndedPhase>,
}

/// One phase from its beginning to its end.
#[derive(Clone, PartialEq, Debug)]
pub struct EndedPhase {
    /// Memory when it began.
    pub before: PhaseMoment,
    /// Memory when it ended.
    pub after: PhaseMoment,
    /// Memory by owner when it ended, where the driver was asked then.
    pub ledger: Option<DeviceLedger>,
    /// Whether it ended with much less memory than it began with, as when an engine goes to sleep.
    pub releases: bool,
    /// What it allocated and did not free; if it releases memory, all that is still allocated.
    pub stayed: Bytes,
    /// Lines that made up what stayed, the largest first.
    pub lines: Vec<PhaseLine>,
}

/// What a phase left behind at one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhaseLine {
    /// The line; `None` where no stack was recorded.
    pub frame: Option<FrameId>,
    /// Bytes of the blocks.
    pub bytes: Bytes,
    /// Number of blocks.
    pub blocks: u64,
}

/// Memory at the beginning or the end of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PhaseMoment {
    /// Allocated bytes.
    pub allocated: Bytes,
    /// Reserved bytes.
    pub reserved: Bytes,
    /// Memory of the process on the device by the driver's count, where it was asked.
    pub process: Option<Bytes>,
}

/// A change from one phase to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhaseChange {
    /// Name of the phase that ends.
    pub from: String,
    /// Name of the phase that begins.
    pub to: String,
    /// How often.
    pub times: u64,
    /// Memory at the last of these changes.
    pub at: PhaseMoment,
}

/// A stretch of events between two marks.
struct Stretch<'a> {
    mark: &'a PhaseMark,
    events: Range<usize>,
    begins: PhaseMoment,
    peak: MemoryPeak,
    reserved_peak: Bytes,
}

impl RunPhases {
    /// Returns whether there is anything to tell apart: the program names a phase, or two are recognized.
    pub fn are_worth_showing(marks: &[PhaseMark]) -> bool {
        let names = marks.iter().filter_map(|mark| mark.phase.as_deref());
        let names: BTreeSet<&str> = names.filter(|&name| name != STARTUP && name != OTHER).collect();
        names.len() > 1 || marks.iter().any(|mark| mark.is_named)
    }

    /// Returns the phases that a recorder noted; `None` where there is nothing to tell apart.
    pub fn new(model: &RunModel<'_>) -> Option<RunPhases> {
        let marks = &model.device.recording.phases;
        if model.device.is_pinned() || !RunPhases::are_worth_showing(marks) {
            return None;
        }
        let stretches = stretches(model, marks);
        let mut phases: Vec<PhaseSummary> = Vec::new();
        let mut numbers: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for (at, stretch) in stretches.iter().enumerate() {
            let Some(name) = stretch.mark.phase.as_deref() else { continue };
            let place = phases.iter().position(|phase| phase.name == name).unwrap_or(phases.len());
            if place == phases.len() {
                phases.push(PhaseSummary::new(name, stretch.mark.is_named));
            }
            let phase = &mut phases[place];
            phase.times += u64::from(numbers.entry(name).or_default().insert(stretch.mark.number));
            let until = stretches.get(at + 1).map_or(stretch.mark.time_us, |next| next.mark.time_us);
            phase.microseconds += u64::try_from(until.saturating_sub(stretch.mark.time_us)).unwrap_or(0);
            if stretch.peak.bytes >= phase.peak.bytes {
                phase.peak = stretch.peak;
            }
            phase.reserved_peak = phase.reserved_peak.max(stretch.reserved_peak);
        }
        for phase in &mut phases {
            phase.last = last_ended(model, &stretches, &phase.name);
        }
        let highest = phases.iter().map(|phase| phase.peak.bytes).max();
        phases.retain(|phase| phase.name != OTHER || Some(phase.peak.bytes) == highest);
        let is_cut = marks.last().is_some_and(|mark| mark.phase.is_none());
        Some(RunPhases { phases, changes: changes(&stretches), is_cut })
    }
}

impl PhaseSummary {
    fn new(name: &str, is_named: bool) -> PhaseSummary {
        PhaseSummary {
            name: name.to_owned(),
            is_named,
            times: 0,
            microseconds: 0,
            peak: MemoryPeak::default(),
            reserved_peak: Bytes::ZERO,
            last: None,
        }
    }
}

impl PhaseMoment {
    /// What the recorder counted, or what the history shows where it did not.
    fn new(mark: &PhaseMark, device: u32, counters: Counters) -> PhaseMoment {
        match mark.of(device) {
            Some(of) => PhaseMoment {
                allocated: Bytes(of.allocated),
                reserved: Bytes(of.reserved),
                process: of.processes().0,
            },
            None => PhaseMoment { allocated: counters.allocated, reserved: counters.reserved, process: None },
        }
    }

    /// Whether much of this memory is gone at a later moment: by the driver's count, or PyTorch's where the
    /// driver was not asked.
    fn is_released_at(self, later: PhaseMoment) -> bool {
        let (from, to) = match (self.process, later.process) {
            (Some(from), Some(to)) => (from, to),
            _ => (self.reserved, later.reserved),
        };
        from - to >= MIN_RELEASED && share(from - to, from) >= MIN_RELEASED_SHARE
    }
}

fn stretches<'a>(model: &RunModel<'_>, marks: &'a [PhaseMark]) -> Vec<Stretch<'a>> {
    let device = model.device;
    let ordinal = device.history.device;
    let count = |mark: &PhaseMark| mark.of(ordinal).and_then(|of| of.allocations);
    let moments: Vec<(i64, Option<u64>)> = marks.iter().map(|mark| (mark.time_us, count(mark))).collect();
    let mut begins = events_before(device.snapshot, device.recording, ordinal, &moments);
    // Moments by the clock and moments by counts may cross.
    for at in 1..begins.len() {
        begins[at] = begins[at].max(begins[at - 1]);
    }
    begins.push(device.history.len());
    let mut cursor = device.history.cursor(device.snapshot);
    let mut stretch = |(mark, events): (&'a PhaseMark, Range<usize>)| {
        cursor.seek(events.start);
        let first = cursor.total();
        let mut peak = MemoryPeak { bytes: first.allocated, position: events.start };
        let mut reserved_peak = first.reserved;
        for position in events.start + 1..=events.end {
            cursor.seek(position);
            let total = cursor.total();
            reserved_peak = reserved_peak.max(total.reserved);
            if total.allocated > peak.bytes {
                peak = MemoryPeak { bytes: total.allocated, position };
            }
        }
        Stretch { mark, events, begins: PhaseMoment::new(mark, ordinal, first), peak, reserved_peak }
    };
    let events = begins.windows(2).map(|pair| pair[0]..pair[1]);
    marks.iter().zip(events).map(&mut stretch).collect()
}

/// The last phase of this name that has ended.
fn last_ended(model: &RunModel<'_>, stretches: &[Stretch<'_>], name: &str) -> Option<EndedPhase> {
    let is_of = |stretch: &Stretch<'_>, number: u64| {
        stretch.mark.phase.as_deref() == Some(name) && stretch.mark.number == number
    };
    let is_last = |at: &usize| {
        let mark = stretches[*at].mark;
        // A phase goes on under its number after the ones within it.
        let goes_on = stretches[at + 1..].iter().any(|later| is_of(later, mark.number));
        mark.phase.as_deref() == Some(name) && !goes_on
    };
    let at = (0..stretches.len().saturating_sub(1)).rev().find(is_last)?;
    let (last, next) = (&stretches[at], &stretches[at + 1]);
    let parts: Vec<&Stretch<'_>> =
        stretches[..=at].iter().filter(|part| is_of(part, last.mark.number)).collect();
    let (before, after, end) = (parts.first()?.begins, next.begins, last.events.end);
    let releases = before.is_released_at(after);
    let is_own = |event: usize| parts.iter().any(|part| part.events.contains(&event));
    let lines = lines_at(model, end, |event| releases || event.is_some_and(is_own));
    let recording = model.device.recording;
    let is_traced = recording.ledger.as_deref().is_some_and(|ledger| ledger.is_traced);
    let counters = next.mark.of(model.device.history.device);
    let ledger = counters.map(|of| DeviceLedger::new(of, is_traced.then_some(&next.mark.driver)));
    let stayed = lines.iter().map(|line| line.bytes).sum();
    Some(EndedPhase { before, after, ledger, releases, stayed, lines })
}

/// What is allocated at a position, by line: the blocks whose event of allocation `is_wanted`.
fn lines_at(
    model: &RunModel<'_>,
    position: usize,
    is_wanted: impl Fn(Option<usize>) -> bool,
) -> Vec<PhaseLine> {
    let history = &model.device.history;
    let mut lines: FxHashMap<Option<FrameId>, PhaseLine> = FxHashMap::default();
    let rows = history.allocations[..history.first_allocated_from(position)].iter().enumerate();
    for (row, allocation) in rows {
        if allocation.is_allocated_at(position) && is_wanted(allocation.alloc_event()) {
            let frame = model.frame_of_allocation(row);
            let line = lines.entry(frame).or_insert(PhaseLine { frame, bytes: Bytes::ZERO, blocks: 0 });
            line.bytes += allocation.size;
            line.blocks += 1;
        }
    }
    let mut lines: Vec<PhaseLine> = lines.into_values().collect();
    lines.sort_by_key(|line| (Reverse(line.bytes), line.frame));
    lines
}

fn changes(stretches: &[Stretch<'_>]) -> Vec<PhaseChange> {
    let mut changes: Vec<PhaseChange> = Vec::new();
    for pair in stretches.windows(2) {
        let (Some(from), Some(to)) = (&pair[0].mark.phase, &pair[1].mark.phase) else { continue };
        let place = changes.iter().position(|of| (&of.from, &of.to) == (from, to)).unwrap_or(changes.len());
        if place == changes.len() {
            let at = PhaseMoment::default();
            changes.push(PhaseChange { from: from.clone(), to: to.clone(), times: 0, at });
        }
        changes[place].times += 1;
        changes[place].at = pair[1].begins;
    }
    changes
}
