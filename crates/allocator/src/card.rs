//! The world of a what-if: a card of some size, a limit, and addresses of our own choice.

use crate::addresses::Addresses;
use crate::model::{Completion, Deed, World};
use crate::simulate::WhatIf;
use crate::start::AMPLE_RANGE;
use snapshot::Action;

/// Reserved bytes that no device has: the end of "as much as you like".
const UNLIMITED: u64 = 1 << 56;

/// A deed and the event of the recording under which it happened.
pub(crate) type Logged = (u32, Deed);

/// A device that might have been.
#[derive(Clone)]
pub(crate) struct Card {
    /// Bytes that PyTorch can have of the device.
    available: u64,
    used: u64,
    limit: Option<u64>,
    /// Reserved bytes above which garbage collection works.
    threshold: Option<u64>,
    /// Bytes of addresses of an expandable segment.
    range: u64,
    next_range: u64,
    addresses: Addresses,
    /// Private pools that a release of everything takes.
    pub(crate) retired: Vec<u32>,
    asked_retired: usize,
    /// What the model did, if somebody wants to know.
    pub(crate) log: Option<Vec<Logged>>,
    pub(crate) now: u32,
}

impl Card {
    pub(crate) fn new(what: &WhatIf, addresses: Addresses) -> Card {
        let WhatIf { available, total, limit, .. } = *what;
        let gc_threshold = what.conf.gc_threshold;
        Card {
            available: available.unwrap_or(UNLIMITED),
            used: 0,
            limit,
            threshold: limit.filter(|_| gc_threshold > 0.0).map(|limit| (gc_threshold * limit as f64) as u64),
            range: total.map_or(AMPLE_RANGE, |total| total + total / 8),
            next_range: FIRST_RANGE,
            addresses,
            retired: Vec::new(),
            asked_retired: 0,
            log: None,
            now: 0,
        }
    }

    /// Counts memory that was there before the first event.
    pub(crate) fn start_with(&mut self, bytes: u64) {
        self.used = bytes;
    }

    /// The lower of what the card has and what the limit lets in.
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

/// Where the addresses of expandable segments begin: far from those of ordinary ones.
const FIRST_RANGE: u64 = 0x1000_0000_0000;

impl World for Card {
    fn allows(&mut self, reserved: u64, want: u64) -> bool {
        self.limit.is_none_or(|limit| reserved.saturating_add(want) <= limit)
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
    fn deed(&mut self, deed: Deed) {
        if let Some(log) = &mut self.log {
            let free = self.available.saturating_sub(self.used);
            let addr = if deed.action == Action::Oom { free } else { deed.addr };
            log.push((self.now, Deed { addr, ..deed }));
        }
    }
}
