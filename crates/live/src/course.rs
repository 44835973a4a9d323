//! A run's memory from its beginning to now, in a bounded number of pieces: old ones become coarser.

use crate::wire::{Device, Step};

/// Pieces that are kept at most: enough for the widest terminal, at any time.
const MOST: usize = 2048;

/// The pieces, one after the other.
#[derive(Clone, Default, Debug)]
pub struct Course {
    pieces: Vec<Piece>,
}

/// A stretch of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Piece {
    /// Its end.
    pub time_us: i64,
    /// The last step that ended in it.
    pub step: Option<u64>,
    levels: Vec<Level>,
}

/// What a device held in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    device: u32,
    /// Allocated at the end of the last step in it.
    pub floor: Option<u64>,
    /// Allocated at most, at the moments that were seen.
    pub top: u64,
    /// Reserved at most.
    pub reserved: u64,
}

impl Level {
    /// Both together; `later` is the later one.
    pub fn joined(self, later: Level) -> Level {
        Level {
            device: self.device,
            floor: later.floor.or(self.floor),
            top: self.top.max(later.top),
            reserved: self.reserved.max(later.reserved),
        }
    }
}

impl Piece {
    /// What one device held.
    pub fn level(&self, device: u32) -> Option<Level> {
        self.levels.iter().find(|level| level.device == device).copied()
    }

    fn see(&mut self, seen: Level) {
        match self.levels.iter_mut().find(|level| level.device == seen.device) {
            Some(level) => *level = level.joined(seen),
            None => self.levels.push(seen),
        }
    }

    fn joined(mut self, later: &Piece) -> Piece {
        later.levels.iter().for_each(|&level| self.see(level));
        Piece { time_us: later.time_us, step: later.step.or(self.step), ..self }
    }
}

impl Course {
    /// An answer: the counters now, and the steps since the one before.
    pub(crate) fn add(&mut self, time_us: i64, steps: &[Step], devices: &[Device]) {
        // The first answer tells of steps long ago: each has its own time.
        if self.pieces.is_empty() {
            for step in steps {
                self.push(step.time_us, std::slice::from_ref(step), &[]);
            }
            self.push(time_us, &[], devices);
        } else {
            self.push(time_us, steps, devices);
        }
    }

    fn push(&mut self, time_us: i64, steps: &[Step], devices: &[Device]) {
        // Clocks are set back now and then, and time goes on.
        let time_us = self.pieces.last().map_or(time_us, |last| time_us.max(last.time_us));
        let mut piece = Piece { time_us, step: steps.last().map(|step| step.step), levels: Vec::new() };
        for row in steps.iter().flat_map(|step| &step.devices) {
            let (floor, top, reserved) = (Some(row.allocated), row.allocated, row.reserved);
            piece.see(Level { device: row.device, floor, top, reserved });
        }
        for row in devices {
            let (device, top, reserved) = (row.device, row.allocated, row.reserved);
            piece.see(Level { device, floor: None, top, reserved });
        }
        self.pieces.push(piece);
        if self.pieces.len() == MOST {
            self.pieces = self
                .pieces
                .chunks(2)
                .map(|pair| match pair {
                    [first, second] => first.clone().joined(second),
                    rest => rest[0].clone(),
                })
                .collect();
        }
    }

    /// Oldest first.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::StepDevice;

    #[test]
    fn a_long_run_stays_bounded_and_keeps_its_heights() {
        let mut course = Course::default();
        for step in 1..=10_000u64 {
            let devices = vec![StepDevice { device: 0, allocated: step, reserved: 2 * step }];
            let steps = [Step { step, time_us: step as i64, devices }];
            let now = Device { allocated: if step == 77 { 1_000_000 } else { step }, ..Device::default() };
            course.add(step as i64, &steps, &[now]);
        }
        assert!(course.pieces().len() <= MOST);
        let levels = || course.pieces().iter().filter_map(|piece| piece.level(0));
        assert_eq!(levels().map(|level| level.top).max(), Some(1_000_000));
        assert_eq!(
            levels().next_back().map(|level| (level.floor, level.reserved)),
            Some((Some(10_000), 20_000))
        );
        assert!(course.pieces().is_sorted_by_key(|piece| piece.time_us));
        assert_eq!(course.pieces().last().and_then(|piece| piece.step), Some(10_000));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_reorder_the_run() {
        let mut course = Course::default();
        [5, 9, 2, 7].iter().for_each(|&time_us| course.add(time_us, &[], &[]));
        let times: Vec<_> = course.pieces().iter().map(|piece| piece.time_us).collect();
        assert_eq!(times, [5, 9, 9, 9]);
    }
}
