//! Where a driver might put new segments.
//!
//! Up to torch 2.11 the lower address wins among free blocks of equal size, and which address `cudaMalloc` returns is
//! the driver's choice. As long as a replay asks for the recorded segments in the recorded order, it gets the recorded
//! addresses; from then on it has to guess, and several guesses give a range.

use snapshot::Action;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A way to choose addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// The lowest gap that is large enough.
    LowestGap,
    /// The highest gap that is large enough.
    HighestGap,
}

/// `cudaMalloc` and `cudaFree` of the recorded run, in order: which, where, how much.
pub(crate) type Recorded = Arc<[(Action, u64, u64)]>;

/// The addresses in use, and how to choose the next.
#[derive(Clone)]
pub(crate) struct Addresses {
    policy: Policy,
    recorded: Recorded,
    /// The next call of the recording; past its end once the replay has left it.
    next: usize,
    /// Segments: start and end.
    used: BTreeMap<u64, u64>,
}

/// Segments lie on multiples of this.
const ALIGNMENT: u64 = 2 << 20;
const LOWEST: u64 = 0x7000_0000_0000;
const HIGHEST: u64 = 0x7fff_0000_0000;

impl Addresses {
    pub(crate) fn new(policy: Policy, recorded: Recorded) -> Addresses {
        Addresses { policy, recorded, next: 0, used: BTreeMap::new() }
    }

    /// Notes a segment that was there before the first event.
    pub(crate) fn occupy(&mut self, addr: u64, size: u64) {
        self.used.insert(addr, addr + size);
    }

    /// An address for a new segment, and whether it is a guess.
    pub(crate) fn place(&mut self, size: u64) -> (u64, bool) {
        let (addr, guessed) = match self.recorded.get(self.next) {
            Some(&(Action::SegmentAlloc, addr, recorded)) if recorded == size => {
                self.next += 1;
                (addr, false)
            }
            _ => {
                self.next = usize::MAX;
                (self.guess(size), true)
            }
        };
        self.used.insert(addr, addr + size);
        (addr, guessed)
    }

    pub(crate) fn release(&mut self, addr: u64) {
        self.used.remove(&addr);
        match self.recorded.get(self.next) {
            Some(&(Action::SegmentFree, recorded, _)) if recorded == addr => self.next += 1,
            _ => self.next = usize::MAX,
        }
    }

    fn guess(&self, size: u64) -> u64 {
        let span = size.next_multiple_of(ALIGNMENT);
        match self.policy {
            Policy::LowestGap => {
                let mut at = LOWEST;
                for (&start, &end) in &self.used {
                    if start >= at.saturating_add(span) {
                        break;
                    }
                    at = at.max(end.next_multiple_of(ALIGNMENT));
                }
                at
            }
            Policy::HighestGap => {
                let mut end = HIGHEST;
                for (&start, &stop) in self.used.iter().rev() {
                    if stop.saturating_add(span) <= end {
                        break;
                    }
                    end = end.min(start / ALIGNMENT * ALIGNMENT);
                }
                end.saturating_sub(span)
            }
        }
    }
}
