//! Environment of a what-if: a device of some size, a memory limit, and modeled addresses.

use crate::addresses::SegmentAddresses;
use crate::model::{AMPLE_RANGE_BYTES, Completion, Environment, ModelEvent};
use crate::simulate::WhatIf;
use snapshot::Action;

/// Reserved bytes beyond any device: the meaning of "unlimited".
const UNLIMITED_BYTES: u64 = 1 << 56;

/// Event of the model and the event of the recording during which it happened.
pub(crate) type LoggedEvent = (u32, ModelEvent);

/// Simulated device.
#[derive(Clone)]
pub(crate) struct SimulatedDevice {
    /// Bytes of the device available to PyTorch.
    available: u64,
    used: u64,
    limit: Option<u64>,
    /// Reserved bytes above which garbage collection runs.
    threshold: Option<u64>,
    /// Bytes of addresses of an expandable segment.
    range: u64,
    next_range: u64,
    addresses: SegmentAddresses,
    /// Private pools that a release of all cached memory takes.
    pub(crate) retired: Vec<u32>,
    asked_retired: usize,
    /// Events of the model, if they are recorded.
    pub(crate) log: Option<Vec<LoggedEvent>>,
    pub(crate) now: u32,
}

impl SimulatedDevice {
    pub(crate) fn new(what: &WhatIf, addresses: SegmentAddresses) -> SimulatedDevice {
        let WhatIf { available, total, limit, .. } = *what;
        SimulatedDevice {
            available: available.unwrap_or(UNLIMITED_BYTES),
            used: 0,
            limit,
            threshold: None,
            range: total.map_or(AMPLE_RANGE_BYTES, |total| total + total / 8),
            next_range: FIRST_RANGE_ADDRESS,
            addresses,
            retired: Vec::new(),
            asked_retired: 0,
            log: None,
            now: 0,
        }
    }

    /// Adds memory that was reserved before the first event.
    pub(crate) fn start_with(&mut self, bytes: u64) {
        self.used = bytes;
    }

    /// Returns the lower of the device's memory and the limit, in bytes.
    pub(crate) fn room(&self) -> u64 {
        self.available.min(self.limit.unwrap_or(u64::MAX))
    }

    fn take(&mut self, size: u64) -> bool {
        let fits = size <= self.available.saturating_sub(self.used);
        if fits {
            self.used += size;
        }
        fits
    }
}

/// First address of expandable segments: far from those of ordinary ones.
const FIRST_RANGE_ADDRESS: u64 = 0x1000_0000_0000;

impl Environment for SimulatedDevice {
    fn allows(&mut self, reserved: u64, want: u64) -> bool {
        self.limit.is_none_or(|limit| reserved.saturating_add(want) <= limit)
    }

    fn knows_limit(&self) -> bool {
        true
    }

    fn malloc(&mut self, size: u64) -> Option<(u64, bool)> {
        self.take(size).then(|| self.addresses.place(size, self.now))
    }

    fn free(&mut self, addr: u64, size: u64) {
        self.used = self.used.saturating_sub(size);
        self.addresses.release(addr);
    }

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        let base = self.next_range;
        let bytes = self.range.next_multiple_of(page);
        self.next_range += bytes;
        Some((base, bytes))
    }

    fn reaches(&mut self, page: u64, length: u64, _: u64) -> bool {
        length <= self.range.next_multiple_of(page)
    }

    fn knows_ranges(&self) -> bool {
        true
    }

    fn takes(&self, _: u64) -> bool {
        false
    }

    fn map(&mut self, _: u64, size: u64) -> bool {
        self.take(size)
    }

    fn unmap(&mut self, size: u64) {
        self.used = self.used.saturating_sub(size);
    }

    fn set_gc_threshold(&mut self, threshold: f64) {
        let limit = self.limit.filter(|_| threshold > 0.0);
        self.threshold = limit.map(|limit| (threshold * limit as f64) as u64);
    }

    #[inline]
    fn collects(&self) -> bool {
        self.threshold.is_some()
    }

    fn is_above_threshold(&mut self, reserved: u64, _: u64) -> bool {
        self.threshold.is_some_and(|threshold| reserved > threshold)
    }

    fn next_completion(&mut self) -> Completion {
        Completion::All
    }

    fn next_retired_pool(&mut self) -> Option<u32> {
        let pool = self.retired.get(self.asked_retired).copied();
        self.asked_retired = if pool.is_some() { self.asked_retired + 1 } else { 0 };
        pool
    }

    #[inline]
    fn on_event(&mut self, event: ModelEvent) {
        if let Some(log) = &mut self.log {
            let free = self.available.saturating_sub(self.used);
            let addr = if event.action == Action::Oom { free } else { event.addr };
            log.push((self.now, ModelEvent { addr, ..event }));
        }
    }
}
