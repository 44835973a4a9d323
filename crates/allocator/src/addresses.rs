//! Models of the addresses that a driver chooses for new segments.
//!
//! Up to torch 2.11 the lower address wins among free blocks of equal size, and the driver chooses which
//! address `cudaMalloc` returns. As long as a replay asks for the recorded segments in the recorded order, it
//! gets the recorded addresses; from then on it has to guess, and several guesses give a range.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Strategy for choosing addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// As observed on a driver, see [`Chunks`], in the address space that the recorded run reveals.
    Learned,
    /// Like `Learned`, but in an address space about which nothing else is known.
    Fresh,
    /// Like `Fresh`, but without the recorded addresses: the result depends on the requests alone.
    FixedRule,
    /// Lowest gap that is large enough.
    LowestGap,
    /// Highest gap that is large enough.
    HighestGap,
    /// Anywhere, without the recorded addresses. The number selects one of many orders.
    Shuffled(u64),
}

impl Policy {
    /// Whether segments get the recorded addresses for as long as they are requested in the recorded order.
    fn follows_recording(self) -> bool {
        !matches!(self, Policy::FixedRule | Policy::Shuffled(_))
    }

    fn has_chunks(self) -> bool {
        matches!(self, Policy::Learned | Policy::Fresh | Policy::FixedRule)
    }
}

/// `cudaMalloc` or `cudaFree` of the recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DriverCall {
    pub(crate) event: u32,
    pub(crate) is_malloc: bool,
    pub(crate) addr: u64,
    pub(crate) size: u64,
}

/// What a recorded run reveals about the driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverObservations {
    calls: Arc<[DriverCall]>,
    /// Ranges that the driver had mapped for itself and that were free from an event on: segments appear here
    /// that fit neither a known chunk nor a new one.
    hidden: Arc<[(u32, u64, u64)]>,
    /// Unmapped ranges between mapped ones, by address: new chunks appear here that are not below all others.
    gaps: Arc<[(u64, u64)]>,
}

impl DriverObservations {
    pub(crate) fn new(
        at_start: impl Iterator<Item = (u64, u64)>,
        calls: Vec<DriverCall>,
    ) -> DriverObservations {
        let mut used = BTreeMap::new();
        let mut chunks = Chunks::default();
        let mut hidden = Vec::new();
        let mut gaps = Vec::new();
        for (addr, size) in at_start {
            used.insert(addr, addr + size);
            chunks.occupy(addr, addr + size, &used);
        }
        for call in &calls {
            let DriverCall { event, is_malloc, addr, size } = *call;
            if is_malloc {
                let is_known = chunks.knows(addr);
                if !is_known && addr.is_multiple_of(CHUNK_BYTES) {
                    gaps.push((addr, (addr + size).next_multiple_of(CHUNK_BYTES)));
                } else if !is_known {
                    let high = used.range(addr..).next().map_or(addr + size, |(&start, _)| start);
                    hidden.push((event, addr, high.min(addr + MAX_HIDDEN_RANGE_BYTES).max(addr + size)));
                }
                used.insert(addr, addr + size);
                chunks.occupy(addr, addr + size, &used);
            } else {
                used.remove(&addr);
                chunks.release(addr, &used);
            }
        }
        gaps.sort_unstable();
        DriverObservations { calls: calls.into(), hidden: hidden.into(), gaps: gaps.into() }
    }
}

/// Addresses in use, and the strategy for choosing the next one.
#[derive(Clone)]
pub(crate) struct SegmentAddresses {
    policy: Policy,
    driver: DriverObservations,
    /// Index of the next call of the recording; past the end once the replay has diverged from it.
    next: usize,
    /// Segments: start → end.
    used: BTreeMap<u64, u64>,
    chunks: Chunks,
    /// Number of hidden ranges that are free by now.
    revealed: usize,
    /// Number of segments placed so far.
    placed: u64,
}

/// Alignment of segments, in bytes.
const SEGMENT_ALIGNMENT: u64 = 2 << 20;
/// Range of addresses for guesses.
const LOWEST_ADDRESS: u64 = 0x7000_0000_0000;
const HIGHEST_ADDRESS: u64 = 0x7fff_0000_0000;

impl SegmentAddresses {
    pub(crate) fn new(policy: Policy, driver: DriverObservations) -> SegmentAddresses {
        let next = if policy.follows_recording() { 0 } else { usize::MAX };
        SegmentAddresses {
            policy,
            driver,
            next,
            used: BTreeMap::new(),
            chunks: Chunks::default(),
            revealed: 0,
            placed: 0,
        }
    }

    /// Registers a segment at a known address.
    pub(crate) fn occupy(&mut self, addr: u64, size: u64) {
        self.used.insert(addr, addr + size);
        if self.policy.has_chunks() {
            self.chunks.occupy(addr, addr + size, &self.used);
        }
    }

    /// Returns an address for a new segment, and whether it is a guess. `now` is the current event of the
    /// recording.
    pub(crate) fn place(&mut self, size: u64, now: u32) -> (u64, bool) {
        while self.policy == Policy::Learned
            && let Some(&(event, low, high)) = self.driver.hidden.get(self.revealed)
            && event <= now
        {
            self.chunks.reveal(low, high);
            self.revealed += 1;
        }
        let (addr, guessed) = match self.driver.calls.get(self.next) {
            Some(call) if call.is_malloc && call.size == size && self.is_free(call.addr, size) => {
                self.next += 1;
                (call.addr, false)
            }
            _ => {
                self.next = usize::MAX;
                (self.guess(size), true)
            }
        };
        self.occupy(addr, size);
        self.placed += 1;
        (addr, guessed)
    }

    pub(crate) fn release(&mut self, addr: u64) {
        self.used.remove(&addr);
        if self.policy.has_chunks() {
            self.chunks.release(addr, &self.used);
        }
        match self.driver.calls.get(self.next) {
            Some(call) if !call.is_malloc && call.addr == addr => self.next += 1,
            _ => self.next = usize::MAX,
        }
    }

    fn guess(&self, size: u64) -> u64 {
        let span = size.next_multiple_of(SEGMENT_ALIGNMENT);
        let addr = match self.policy {
            Policy::Learned => self.chunks.guess(span, &self.used, &self.driver.gaps),
            Policy::Fresh | Policy::FixedRule => self.chunks.guess(span, &self.used, &[]),
            Policy::LowestGap => gap_above(&self.used, LOWEST_ADDRESS, span),
            Policy::HighestGap => gap_below(&self.used, HIGHEST_ADDRESS, span),
            Policy::Shuffled(seed) => gap_above(&self.used, shuffled_address(seed, self.placed), span),
        };
        if self.is_free(addr, span) {
            return addr;
        }
        // What is known about the address space may contradict the guess; then the segment goes below
        // everything, or above.
        let lowest = self.used.first_key_value().map_or(HIGHEST_ADDRESS, |(&start, _)| start);
        let highest = self.used.last_key_value().map_or(LOWEST_ADDRESS, |(_, &end)| end);
        lowest.checked_sub(span).map_or(highest.next_multiple_of(SEGMENT_ALIGNMENT), |below| {
            below / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT
        })
    }

    fn is_free(&self, addr: u64, size: u64) -> bool {
        self.used.range(..addr.saturating_add(size)).next_back().is_none_or(|(_, &end)| end <= addr)
    }
}

/// Some address for the segment at `place`: the same for the same seed.
fn shuffled_address(seed: u64, place: u64) -> u64 {
    // SplitMix64.
    let mut bits = (seed << 32 | place).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let room = HIGHEST_ADDRESS - LOWEST_ADDRESS;
    LOWEST_ADDRESS + bits % room / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT
}

/// Start of the lowest gap of `span` bytes from `low` on.
fn gap_above(used: &BTreeMap<u64, u64>, low: u64, span: u64) -> u64 {
    let mut at = low;
    for (&start, &end) in used {
        if start >= at.saturating_add(span) {
            break;
        }
        at = at.max(end.next_multiple_of(SEGMENT_ALIGNMENT));
    }
    at
}

/// Start of the highest gap of `span` bytes below `high`.
fn gap_below(used: &BTreeMap<u64, u64>, high: u64, span: u64) -> u64 {
    let mut end = high;
    for (&start, &stop) in used.iter().rev() {
        if stop.saturating_add(span) <= end {
            break;
        }
        end = end.min(start / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT);
    }
    end.saturating_sub(span)
}

/// Address space as a driver was observed to hand it out (H200, five recordings of random traffic: 779 of 784
/// addresses as predicted): it is mapped in chunks of 32 MiB, from the top down; a segment, small or large,
/// goes into the best-fitting hole of the newest chunk that has one; an empty chunk is released.
#[derive(Clone, Default)]
struct Chunks {
    /// Mapped chunks, oldest first.
    chunks: Vec<(u64, u64)>,
    /// Addresses of released chunks.
    released: BTreeMap<u64, u64>,
    /// Lowest address ever mapped.
    floor: Option<u64>,
}

/// Size of a chunk, in bytes.
const CHUNK_BYTES: u64 = 32 << 20;

/// Number of chunks that are searched for a hole, newest first.
const MAX_SEARCHED_CHUNKS: usize = 512;

/// Largest range of the driver's own, in bytes, that is assumed to have become free at once.
const MAX_HIDDEN_RANGE_BYTES: u64 = 512 << 20;

impl Chunks {
    fn guess(&self, span: u64, used: &BTreeMap<u64, u64>, gaps: &[(u64, u64)]) -> u64 {
        for &(low, high) in self.chunks.iter().rev().take(MAX_SEARCHED_CHUNKS) {
            let mut holes = Vec::new();
            let before = used.range(..low).next_back().map_or(low, |(_, &end)| end);
            let mut at = low.max(before);
            for (&start, &end) in used.range(low..high) {
                if start > at {
                    holes.push((start - at, at));
                }
                at = end;
            }
            if high > at {
                holes.push((high - at, at));
            }
            if let Some((_, hole)) = holes.into_iter().filter(|(size, _)| *size >= span).min() {
                return hole;
            }
        }
        let bytes = span.next_multiple_of(CHUNK_BYTES);
        let is_free = |low: u64, high: u64| {
            used.range(..high).next_back().is_none_or(|(_, &end)| end <= low)
                && self.chunks.iter().all(|&(other_low, other_high)| other_high <= low || high <= other_low)
        };
        let fits = |&(low, high): &(u64, u64)| high - low >= bytes && is_free(high - bytes, high);
        let gap = gaps.iter().rev().find(|gap| fits(gap)).map(|&(_, high)| high);
        // Reuse of a released range that fits exactly was never observed.
        let released =
            self.released.iter().rev().find(|(low, high)| **high - **low > bytes).map(|(_, &high)| high);
        match gap.max(released) {
            Some(high) => high - bytes,
            None => self.floor.unwrap_or(HIGHEST_ADDRESS).saturating_sub(bytes),
        }
    }

    /// Returns whether a segment at this address is expected: in a chunk, in a released range, or below
    /// everything.
    fn knows(&self, addr: u64) -> bool {
        let is_in = |low: u64, high: u64| (low..high).contains(&addr);
        self.floor.is_none_or(|floor| addr < floor)
            || self.chunks.iter().any(|&(low, high)| is_in(low, high))
            || self.released.iter().any(|(&low, &high)| is_in(low, high))
    }

    /// Adds a range that the driver had from the beginning: as the oldest chunk.
    fn reveal(&mut self, low: u64, high: u64) {
        if self.chunks.iter().all(|&(other_low, other_high)| other_high <= low || high <= other_low) {
            self.chunks.insert(0, (low, high));
        }
    }

    /// Registers a segment; one outside all chunks reveals a new chunk.
    fn occupy(&mut self, addr: u64, end: u64, used: &BTreeMap<u64, u64>) {
        if let Some(chunk) = self.chunks.iter_mut().find(|(low, high)| (*low..*high).contains(&addr)) {
            chunk.1 = chunk.1.max(end);
            return;
        }
        let mut low = addr / CHUNK_BYTES * CHUNK_BYTES;
        let mut high = end.next_multiple_of(CHUNK_BYTES);
        for &(other_low, other_high) in &self.chunks {
            if other_low >= end {
                high = high.min(other_low);
            } else if other_high <= addr {
                low = low.max(other_high);
            }
        }
        // The part of the chunk in front of it belongs to another owner.
        let low = if used.range(low..addr).next().is_none() { addr } else { low };
        self.chunks.push((low, high));
        let cut: Vec<(u64, u64)> = self
            .released
            .iter()
            .filter(|(start, stop)| **start < high && **stop > low)
            .map(|(&a, &b)| (a, b))
            .collect();
        for (start, stop) in cut {
            self.released.remove(&start);
            if start < low {
                self.released.insert(start, low);
            }
            if stop > high {
                self.released.insert(high, stop);
            }
        }
        self.floor = Some(self.floor.map_or(low, |floor| floor.min(low)));
    }

    fn release(&mut self, addr: u64, used: &BTreeMap<u64, u64>) {
        let Some(place) = self.chunks.iter().position(|(low, high)| (*low..*high).contains(&addr)) else {
            return;
        };
        let (mut low, mut high) = self.chunks[place];
        if used.range(low..high).next().is_some() {
            return;
        }
        self.chunks.remove(place);
        if let Some((&start, _)) = self.released.range(..low).next_back().filter(|(_, stop)| **stop == low) {
            self.released.remove(&start);
            low = start;
        }
        if let Some(stop) = self.released.remove(&high) {
            high = stop;
        }
        if self.floor == Some(low) {
            self.floor = Some(high);
        } else {
            self.released.insert(low, high);
        }
    }
}
