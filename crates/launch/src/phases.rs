//! Phases of a predicted program: its setup, each of its loops over a data loader, and the code outside
//! loops.

use inputs::Input;
use recording::{EmulationInfo, LoopInfo};
use snapshot::{Bytes, History};

/// Part of a program, with the highest memory of one device in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramPhase {
    /// Which part it is.
    pub part: ProgramPart,
    /// Peak of allocated memory.
    pub allocated: Bytes,
    /// Peak of reserved memory.
    pub reserved: Bytes,
}

/// Part of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramPart {
    /// Everything before the first loop.
    SetUp,
    /// A loop over a data loader, in all its runs.
    Loop(LoopInfo),
    /// Everything between loops and after them.
    BetweenLoops,
}

/// Returns the phases of a run in their order, for one device; none for a run without such loops.
pub(crate) fn phases(recording: &Input, device: u32, emulation: &EmulationInfo) -> Vec<ProgramPhase> {
    if emulation.loops.is_empty() {
        return Vec::new();
    }
    let (loops, rows) = merged(&emulation.loops);
    let mut found = vec![ProgramPhase::new(ProgramPart::SetUp)];
    found.extend(loops.into_iter().map(|of| ProgramPhase::new(ProgramPart::Loop(of))));
    found.push(ProgramPhase::new(ProgramPart::BetweenLoops));
    let between = found.len() - 1;
    let history = History::new(&recording.snapshot, device);
    let mut cursor = history.cursor(&recording.snapshot);
    let mut marks = emulation.loop_marks.iter().peekable();
    let mut at = 0;
    for (index, event) in recording.snapshot.events.iter(history.rows.clone()).enumerate() {
        while let Some((_, row)) = marks.next_if(|(time, _)| i128::from(*time) <= i128::from(event.time_us)) {
            at = row.and_then(|row| rows.get(row)).map_or(between, |&row| row + 1);
            // Memory already in use counts toward the new phase.
            found[at].update(cursor.total().allocated, cursor.total().reserved);
        }
        cursor.seek(index + 1);
        found[at].update(cursor.total().allocated, cursor.total().reserved);
    }
    found.retain(|phase| phase.reserved > Bytes::ZERO);
    found
}

/// Merges loops that differ only in their callers. Returns them, and the index that each row
/// has among them.
pub(crate) fn merged(loops: &[LoopInfo]) -> (Vec<LoopInfo>, Vec<usize>) {
    let mut found: Vec<LoopInfo> = Vec::new();
    let mut rows = Vec::new();
    for of in loops {
        let same =
            |other: &LoopInfo| (&other.file, other.line, &other.library) == (&of.file, of.line, &of.library);
        match found.iter().position(same) {
            Some(index) => {
                let other = &mut found[index];
                other.batches = other.batches.max(of.batches);
                other.iterations = other.iterations.max(of.iterations);
                other.runs += of.runs;
                other.skipped += of.skipped;
                other.is_settled &= of.is_settled;
                other.growth = other.growth.max(of.growth);
                other.skipped_growth = other.skipped_growth.max(of.skipped_growth);
                rows.push(index);
            }
            None => {
                rows.push(found.len());
                found.push(of.clone());
            }
        }
    }
    (found, rows)
}

impl ProgramPhase {
    fn new(part: ProgramPart) -> ProgramPhase {
        ProgramPhase { part, allocated: Bytes::ZERO, reserved: Bytes::ZERO }
    }

    fn update(&mut self, allocated: Bytes, reserved: Bytes) {
        self.allocated = self.allocated.max(allocated);
        self.reserved = self.reserved.max(reserved);
    }
}
