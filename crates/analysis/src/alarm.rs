//! Says while a program still runs that its memory grows, from the counters that its recorder keeps.
//!
//! The judgement is that of the report, [`trend`], on one series instead of one for each line of code: bytes allocated at the
//! end of each step. It asks for more before it speaks: nobody should be called for a cache that fills.

use crate::growth::{Trend, trend};
use snapshot::Bytes;
use std::collections::VecDeque;

/// Steps that are not looked at: the first ones make gradients, optimizer state and workspaces.
const WARM_UP: usize = 2;
/// Steps in a row that have to add to what is held.
const RISES: usize = 6;
/// Growth over the steps that were looked at; less fills no device.
const LEAST: u64 = 1 << 20;

/// Memory that grows step after step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The step that it was found in, counted from 1.
    pub step: usize,
    /// What each step adds.
    pub bytes_per_step: Bytes,
    /// What is allocated by now.
    pub allocated: Bytes,
}

impl Growth {
    /// What a person is to know.
    pub fn words(&self) -> String {
        let Growth { step, bytes_per_step, allocated } = self;
        format!("memory grows {bytes_per_step} a step: {allocated} allocated at step {step}")
    }
}

/// Hears what is allocated at the end of each step, and speaks once.
#[derive(Default, Debug)]
pub struct Alarm {
    steps: usize,
    /// Of the last [`WINDOW`] steps after the warm-up.
    allocated: VecDeque<i64>,
    has_spoken: bool,
}

/// Older steps say nothing about whether memory grows now.
const WINDOW: usize = 64;

impl Alarm {
    /// The end of a step.
    pub fn step(&mut self, allocated: Bytes) -> Option<Growth> {
        self.steps += 1;
        if self.has_spoken || self.steps <= WARM_UP {
            return None;
        }
        if self.allocated.len() == WINDOW {
            self.allocated.pop_front();
        }
        self.allocated.push_back(i64::try_from(allocated.0).unwrap_or(i64::MAX));
        let base = *self.allocated.front()?;
        let changes = self.allocated.iter().map(|bytes| bytes.saturating_sub(base));
        let held: Vec<(usize, i64)> = changes.enumerate().skip(1).collect();
        let (last, grown) = *held.last()?;
        let mut recent = held[held.len().saturating_sub(RISES)..].windows(2);
        let rises = held.len() >= RISES && recent.all(|pair| pair[1].1 > pair[0].1);
        let is_growth = rises && grown >= LEAST as i64 && trend(&held, last) == Some(Trend::Growing);
        self.has_spoken = is_growth;
        let bytes_per_step = Bytes(grown as u64 / last as u64);
        is_growth.then_some(Growth { step: self.steps, bytes_per_step, allocated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The step at which the alarm speaks of a series in MiB.
    fn spoken(series: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut alarm = Alarm::default();
        series.into_iter().find_map(|mib| alarm.step(Bytes(mib * MIB))).map(|growth| growth.step)
    }

    #[test]
    fn a_leak_is_called_within_ten_steps() {
        assert_eq!(spoken((0..20).map(|step| 500 + 8 * step)), Some(9));
        assert_eq!(spoken([100, 900].into_iter().chain((0..20).map(|step| 900 + step))), Some(9));
    }

    #[test]
    fn warm_up_noise_and_caches_that_fill_are_not() {
        assert_eq!(spoken([100, 300, 300].into_iter().chain([301; 40])), None, "state after the first step");
        assert_eq!(spoken((0..60).map(|step| 500 + (step * 7919) % 31)), None, "batches of all sizes");
        assert_eq!(spoken((0..60).map(|step| 500 + step.min(5))), None, "a cache of five");
        let mut alarm = Alarm::default();
        assert!(
            (0..200).all(|step| alarm.step(Bytes(500 * MIB + 512 * step)).is_none()),
            "scalars in a list"
        );
    }

    #[test]
    fn it_speaks_once_and_says_how_much() {
        let mut alarm = Alarm::default();
        let said: Vec<Growth> =
            (0..50).filter_map(|step| alarm.step(Bytes((500 + 8 * step) * MIB))).collect();
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].bytes_per_step, Bytes(8 * MIB));
    }
}
