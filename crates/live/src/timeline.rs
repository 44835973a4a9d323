//! The memory timeline of a run, in a bounded number of spans: older spans become coarser.

use crate::wire::{DeviceCounters, LiveStep};

/// Maximum number of spans: enough for the widest terminal.
const MAX_SPANS: usize = 2048;

/// Memory of a process over time, from its start until now.
#[derive(Clone, Default, Debug)]
pub struct MemoryTimeline {
    spans: Vec<TimelineSpan>,
}

/// Memory of all devices in one span of time.
#[derive(Clone, PartialEq, Debug)]
pub struct TimelineSpan {
    /// End of the span, in microseconds since the Unix epoch.
    pub time_us: i64,
    /// Last step that ended in the span.
    pub step: Option<u64>,
    levels: Vec<DeviceLevel>,
}

/// Memory of one device within a span, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLevel {
    device: u32,
    /// Allocated at the end of the last step of the span.
    pub floor: Option<u64>,
    /// Highest allocated memory of all samples in the span.
    pub top: u64,
    /// Highest reserved memory of all samples in the span.
    pub reserved: u64,
}

impl DeviceLevel {
    /// Merges with the level of a later span.
    pub fn merged(self, later: DeviceLevel) -> DeviceLevel {
        DeviceLevel {
            device: self.device,
            floor: later.floor.or(self.floor),
            top: self.top.max(later.top),
            reserved: self.reserved.max(later.reserved),
        }
    }
}

impl TimelineSpan {
    /// Returns the memory of one device.
    pub fn level(&self, device: u32) -> Option<DeviceLevel> {
        self.levels.iter().find(|level| level.device == device).copied()
    }

    fn add_level(&mut self, seen: DeviceLevel) {
        match self.levels.iter_mut().find(|level| level.device == seen.device) {
            Some(level) => *level = level.merged(seen),
            None => self.levels.push(seen),
        }
    }

    fn merged(mut self, later: &TimelineSpan) -> TimelineSpan {
        later.levels.iter().for_each(|&level| self.add_level(level));
        TimelineSpan { time_us: later.time_us, step: later.step.or(self.step), ..self }
    }
}

impl MemoryTimeline {
    /// Adds an answer: the counters now, and the steps since the answer before.
    pub(crate) fn add(&mut self, time_us: i64, steps: &[LiveStep], devices: &[DeviceCounters]) {
        // The first answer reports steps of long ago: each has its own time.
        if self.spans.is_empty() {
            for step in steps {
                self.push(step.time_us, std::slice::from_ref(step), &[]);
            }
            self.push(time_us, &[], devices);
        } else {
            self.push(time_us, steps, devices);
        }
    }

    fn push(&mut self, time_us: i64, steps: &[LiveStep], devices: &[DeviceCounters]) {
        // Clocks are set back now and then; the timeline stays in order.
        let time_us = self.spans.last().map_or(time_us, |last| time_us.max(last.time_us));
        let mut span = TimelineSpan { time_us, step: steps.last().map(|step| step.step), levels: Vec::new() };
        for row in steps.iter().flat_map(|step| &step.devices) {
            let (floor, top, reserved) = (Some(row.allocated), row.allocated, row.reserved);
            span.add_level(DeviceLevel { device: row.device, floor, top, reserved });
        }
        for row in devices {
            let (device, top, reserved) = (row.device, row.allocated, row.reserved);
            span.add_level(DeviceLevel { device, floor: None, top, reserved });
        }
        self.spans.push(span);
        if self.spans.len() == MAX_SPANS {
            self.spans = self
                .spans
                .chunks(2)
                .map(|pair| match pair {
                    [first, second] => first.clone().merged(second),
                    rest => rest[0].clone(),
                })
                .collect();
        }
    }

    /// Returns the spans, oldest first.
    pub fn spans(&self) -> &[TimelineSpan] {
        &self.spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::LiveStepCounters;

    #[test]
    fn a_long_run_stays_bounded_and_keeps_its_heights() {
        let mut timeline = MemoryTimeline::default();
        for step in 1..=10_000u64 {
            let devices = vec![LiveStepCounters { device: 0, allocated: step, reserved: 2 * step }];
            let steps = [LiveStep { step, time_us: step as i64, devices }];
            let now = DeviceCounters {
                allocated: if step == 77 { 1_000_000 } else { step },
                ..DeviceCounters::default()
            };
            timeline.add(step as i64, &steps, &[now]);
        }
        assert!(timeline.spans().len() <= MAX_SPANS);
        let levels = || timeline.spans().iter().filter_map(|span| span.level(0));
        assert_eq!(levels().map(|level| level.top).max(), Some(1_000_000));
        assert_eq!(
            levels().next_back().map(|level| (level.floor, level.reserved)),
            Some((Some(10_000), 20_000))
        );
        assert!(timeline.spans().is_sorted_by_key(|span| span.time_us));
        assert_eq!(timeline.spans().last().and_then(|span| span.step), Some(10_000));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_reorder_the_run() {
        let mut timeline = MemoryTimeline::default();
        [5, 9, 2, 7].iter().for_each(|&time_us| timeline.add(time_us, &[], &[]));
        let times: Vec<_> = timeline.spans().iter().map(|span| span.time_us).collect();
        assert_eq!(times, [5, 9, 9, 9]);
    }
}
