//! Detects growing memory while a program still runs, from the counters that its recorder keeps.
//!
//! It uses the rule of the report, [`trend`], on one series instead of one per line of code: bytes allocated
//! at the end of each step. Its thresholds are higher than the report's, so that a cache that fills raises no
//! alarm.

use crate::run::growth::{Trend, trend};
use snapshot::Bytes;
use std::collections::VecDeque;

/// Steps that are ignored: the first ones make gradients, optimizer state and workspaces.
const WARM_UP_STEPS: u64 = 2;
/// Consecutive steps that have to add memory.
const MIN_CONSECUTIVE_RISES: usize = 6;
/// Least growth in bytes over the observed steps; less fills no device.
const MIN_GROWTH_BYTES: i64 = 1 << 20;
/// Most recent steps that are observed.
const MAX_OBSERVED_STEPS: usize = 64;
/// Equal rises at equal distances that make growth regular.
const MIN_REGULAR_RISES: usize = 4;
/// Steps after which growth that does not come with every step is detected too.
const MIN_STEPS_FOR_IRREGULAR_GROWTH: usize = 32;
/// Share of what was added that may be freed again meanwhile: a leak in a steady loop frees nothing.
const MAX_RETURNED_SHARE: f64 = 0.05;

/// How the memory at the end of each step develops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// No step has ended yet.
    NoSteps,
    /// Too early to say; `steps` more are needed.
    WarmingUp {
        /// Steps that are needed, at least.
        steps: usize,
    },
    /// Steps end with the memory that the one before ended with.
    Flat,
    /// Memory rises and falls.
    Varies {
        /// The least of the steps that were looked at, in bytes.
        least: Bytes,
        /// The most of the steps that were looked at, in bytes.
        most: Bytes,
    },
    /// Memory rises; too early to call it a leak.
    Rising {
        /// Bytes per step.
        bytes_per_step: Bytes,
    },
    /// Memory has grown, and has stayed level since.
    Settled {
        /// Growth in bytes.
        grown: Bytes,
    },
    /// Memory grows step after step: a leak.
    Growing {
        /// Bytes per step.
        bytes_per_step: Bytes,
    },
}

impl Pace {
    /// Returns the bytes per step; `None` while they are not known.
    pub fn bytes_per_step(self) -> Option<Bytes> {
        match self {
            Pace::NoSteps | Pace::WarmingUp { .. } => None,
            Pace::Flat | Pace::Settled { .. } | Pace::Varies { .. } => Some(Bytes(0)),
            Pace::Rising { bytes_per_step } | Pace::Growing { bytes_per_step } => Some(bytes_per_step),
        }
    }
}

/// Memory at the end of each of the last steps.
#[derive(Clone, Default, Debug)]
pub struct Trail {
    /// Steps so far, also those before the ones that are kept.
    steps: u64,
    allocated: VecDeque<i64>,
}

impl Trail {
    /// Adds the end of a step, by its number from 1. A watcher that attaches late starts at a later step.
    pub fn step(&mut self, number: u64, allocated: Bytes) {
        self.steps = number;
        if number <= WARM_UP_STEPS {
            return;
        }
        if self.allocated.len() == MAX_OBSERVED_STEPS {
            self.allocated.pop_front();
        }
        self.allocated.push_back(i64::try_from(allocated.0).unwrap_or(i64::MAX));
    }

    /// Number of the last step, from 1.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Judges the steps so far.
    pub fn pace(&self) -> Pace {
        let Some((&base, &now)) = self.allocated.front().zip(self.allocated.back()) else {
            return if self.steps == 0 {
                Pace::NoSteps
            } else {
                Pace::WarmingUp { steps: MIN_CONSECUTIVE_RISES + 1 }
            };
        };
        // Changes since the first of them, which itself is none.
        let held: Vec<(usize, i64)> =
            self.allocated.iter().map(|bytes| bytes.saturating_sub(base)).enumerate().skip(1).collect();
        if held.len() < MIN_CONSECUTIVE_RISES {
            return Pace::WarmingUp { steps: MIN_CONSECUTIVE_RISES - held.len() };
        }
        let (last, grown) = held[held.len() - 1];
        let grown = without_jump(grown, &held);
        let bytes_per_step = Bytes(grown.max(0) as u64 / last as u64);
        let rises = held[held.len() - MIN_CONSECUTIVE_RISES..].windows(2).all(|pair| pair[1].1 > pair[0].1);
        let (least, most) =
            held.iter().fold((0, 0), |(least, most), &(_, bytes)| (bytes.min(least), bytes.max(most)));
        match trend(&held, last) {
            Some(Trend::Growing)
                if grown >= MIN_GROWTH_BYTES && (rises || is_regular(&held) || goes_on(&held)) =>
            {
                Pace::Growing { bytes_per_step }
            }
            Some(Trend::Growing) if grown > 0 => Pace::Rising { bytes_per_step },
            Some(Trend::Stopped) if grown >= MIN_GROWTH_BYTES => Pace::Settled { grown: Bytes(grown as u64) },
            _ if most - least < MIN_GROWTH_BYTES => Pace::Flat,
            // A rise that is new: fewer than the report counts as growth.
            _ if now == base.saturating_add(most) && least == 0 && rises => Pace::Rising { bytes_per_step },
            _ => Pace::Varies {
                least: Bytes(base.saturating_add(least).max(0) as u64),
                most: Bytes(base.saturating_add(most).max(0) as u64),
            },
        }
    }
}

/// By how much each entry of a series differs from the one before, with its place.
fn changes(held: &[(usize, i64)]) -> impl Iterator<Item = (usize, i64)> {
    held.windows(2).map(|pair| (pair[1].0, pair[1].1.saturating_sub(pair[0].1)))
}

/// Growth of a series less its largest rise, if that is most of it: an evaluation that keeps its results, for
/// example, while something small is added in each step.
fn without_jump(grown: i64, held: &[(usize, i64)]) -> i64 {
    let first = held.first().map_or(0, |&(_, bytes)| bytes);
    let largest = changes(held).map(|(_, change)| change).fold(first, i64::max);
    if largest > grown / 2 { grown - largest } else { grown }
}

/// Whether a series rises by the same amount at a regular interval of steps and never falls.
fn is_regular(held: &[(usize, i64)]) -> bool {
    let changes: Vec<(usize, i64)> = changes(held).filter(|&(_, change)| change != 0).collect();
    let [(first, amount), (second, _), ..] = changes[..] else { return false };
    let gap = second - first;
    let is_steady = changes.iter().all(|&(_, change)| change == amount)
        && changes.windows(2).all(|pair| pair[1].0 - pair[0].0 == gap);
    // Growth with every step needs more evidence: it may be a cache of a few entries.
    amount > 0 && gap > 1 && changes.len() >= MIN_REGULAR_RISES && is_steady
}

/// Whether a long series rises again and again, every few steps, and gives hardly anything back.
fn goes_on(held: &[(usize, i64)]) -> bool {
    let (mut rises, mut added, mut returned) = (0, 0i64, 0i64);
    for (_, change) in changes(held) {
        if change > 0 {
            rises += 1;
            added = added.saturating_add(change);
        } else {
            returned = returned.saturating_sub(change);
        }
    }
    held.len() >= MIN_STEPS_FOR_IRREGULAR_GROWTH
        && rises >= MIN_CONSECUTIVE_RISES
        && returned as f64 <= MAX_RETURNED_SHARE * added as f64
}

/// Growth that a [`GrowthAlarm`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrowthAlert {
    /// The step in which it was found, from 1.
    pub step: usize,
    /// Bytes per step.
    pub bytes_per_step: Bytes,
    /// Allocated bytes at that step.
    pub allocated: Bytes,
}

impl GrowthAlert {
    /// Returns the alarm in a sentence, without a full stop.
    pub fn words(&self) -> String {
        let GrowthAlert { step, bytes_per_step, allocated } = self;
        format!("memory has grown {bytes_per_step} per step: {allocated} allocated at step {step}")
    }
}

/// Reports a leak once, from what is allocated at the end of each step.
#[derive(Default, Debug)]
pub struct GrowthAlarm {
    trail: Trail,
    has_alerted: bool,
}

impl GrowthAlarm {
    /// Adds the end of a step; returns the growth when it is found.
    pub fn step(&mut self, allocated: Bytes) -> Option<GrowthAlert> {
        if self.has_alerted {
            return None;
        }
        let step = self.trail.steps() + 1;
        self.trail.step(step, allocated);
        let Pace::Growing { bytes_per_step } = self.trail.pace() else { return None };
        self.has_alerted = true;
        Some(GrowthAlert { step: step as usize, bytes_per_step, allocated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The step at which the alarm detects growth of a series in MiB.
    fn alerted(series: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut alarm = GrowthAlarm::default();
        series.into_iter().find_map(|mib| alarm.step(Bytes(mib * MIB))).map(|growth| growth.step)
    }

    #[test]
    fn one_jump_is_no_growth_of_each_step() {
        let mut alarm = GrowthAlarm::default();
        let alerts = (0..200).filter_map(|step| {
            let outputs = if step < 40 { 0 } else { 320 * MIB };
            alarm.step(Bytes(100 * MIB + outputs + 512 * step))
        });
        assert_eq!(alerts.count(), 0);
        // A leak is found next to a jump, and its rate is that of the leak.
        let mut alarm = GrowthAlarm::default();
        let mut alerts = (0..200).filter_map(|step| {
            let outputs = if step < 8 { 0 } else { 320 * MIB };
            alarm.step(Bytes(100 * MIB + outputs + 2 * MIB * step))
        });
        assert!(alerts.next().is_some_and(|alert| alert.bytes_per_step.0 <= 2 * MIB));
    }

    #[test]
    fn a_leak_is_detected_within_ten_steps() {
        assert_eq!(alerted((0..20).map(|step| 500 + 8 * step)), Some(9));
        assert_eq!(alerted([100, 900].into_iter().chain((0..20).map(|step| 900 + step))), Some(9));
    }

    #[test]
    fn warm_up_noise_and_caches_that_fill_are_not() {
        assert_eq!(alerted([100, 300, 300].into_iter().chain([301; 40])), None, "state after the first step");
        assert_eq!(alerted((0..60).map(|step| 500 + (step * 7919) % 31)), None, "batches of all sizes");
        assert_eq!(alerted((0..60).map(|step| 500 + step.min(5))), None, "a cache of five");
        let mut alarm = GrowthAlarm::default();
        assert!(
            (0..200).all(|step| alarm.step(Bytes(500 * MIB + 512 * step)).is_none()),
            "scalars in a list"
        );
    }

    #[test]
    fn it_alerts_once_with_the_bytes_per_step() {
        let mut alarm = GrowthAlarm::default();
        let said: Vec<GrowthAlert> =
            (0..50).filter_map(|step| alarm.step(Bytes((500 + 8 * step) * MIB))).collect();
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].bytes_per_step, Bytes(8 * MIB));
    }

    fn pace(series: impl IntoIterator<Item = u64>) -> Pace {
        let mut trail = Trail::default();
        for (step, mib) in series.into_iter().enumerate() {
            trail.step(step as u64 + 1, Bytes(mib * MIB));
        }
        trail.pace()
    }

    #[test]
    fn a_leak_every_few_steps_is_detected_after_a_while() {
        assert_eq!(alerted((0..60).map(|step| 500 + 36 * (step / 2))), Some(11), "every second step");
        assert_eq!(alerted((0..60).map(|step| 500 + 9 * (step / 3))), Some(16), "every third");
        let uneven = |step: u64| 500 + 9 * (step / 3) + 2 * (step / 7);
        assert_eq!(alerted((0..60).map(uneven)), Some(35), "now and then, and not alike");
        assert_eq!(alerted((0..60).map(|step| 500 + 9 * (step / 3) - 4 * (step % 3))), None, "it gives back");
    }

    #[test]
    fn the_pace_is_given_as_far_as_it_is_known() {
        assert_eq!(pace([]), Pace::NoSteps);
        assert_eq!(pace([100, 300]), Pace::WarmingUp { steps: 7 });
        assert_eq!(pace([100, 300, 300, 300]), Pace::WarmingUp { steps: 5 });
        assert_eq!(pace([100, 300].into_iter().chain([300; 20])), Pace::Flat);
        assert_eq!(
            pace((0..30).map(|step| 500 + 8 * step)),
            Pace::Growing { bytes_per_step: Bytes(8 * MIB) }
        );
        assert_eq!(pace((0..40).map(|step| 500 + step.min(12))), Pace::Settled { grown: Bytes(10 * MIB) });
        let varies = Pace::Varies { least: Bytes(500 * MIB), most: Bytes(530 * MIB) };
        assert_eq!(pace((0..60).map(|step| 500 + (step * 7919) % 31)), varies);
        assert_eq!(pace((0..12).map(|step| 500 + step / 3)), Pace::Rising { bytes_per_step: Bytes(MIB / 3) });
    }

    #[test]
    fn a_watcher_that_attaches_late_judges_the_steps_it_has_seen() {
        let mut trail = Trail::default();
        for step in 100..112 {
            trail.step(step, Bytes((500 + 8 * step) * MIB));
        }
        assert_eq!(trail.pace(), Pace::Growing { bytes_per_step: Bytes(8 * MIB) });
    }
}
