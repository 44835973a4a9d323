//! Where a driver might put new segments.
//!
//! Up to torch 2.11 the lower address wins among free blocks of equal size, and which address `cudaMalloc` returns is
//! the driver's choice. As long as a replay asks for the recorded segments in the recorded order, it gets the recorded
//! addresses; from then on it has to guess, and several guesses give a range.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A way to choose addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// As a driver was seen to do it, see [`Chunks`], in the address space that the recorded run shows to be there.
    Learned,
    /// The same in an address space of which nothing else is known.
    Fresh,
    /// The same, and not even the recorded addresses are used: what comes out hangs on the requests alone.
    Anew,
    /// The lowest gap that is large enough.
    LowestGap,
    /// The highest gap that is large enough.
    HighestGap,
}

impl Policy {
    fn has_chunks(self) -> bool {
        matches!(self, Policy::Learned | Policy::Fresh | Policy::Anew)
    }
}

/// A `cudaMalloc` or `cudaFree` of the recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) event: u32,
    pub(crate) is_malloc: bool,
    pub(crate) addr: u64,
    pub(crate) size: u64,
}

/// What a recorded run tells about the driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    calls: Arc<[Call]>,
    /// Ranges that the driver had mapped for itself and that were free from an event on: where segments appear that fit
    /// neither a known chunk nor a new one.
    hidden: Arc<[(u32, u64, u64)]>,
    /// Unmapped ranges between those of others, by address: where new chunks appear that are not below everything.
    gaps: Arc<[(u64, u64)]>,
}

impl Driver {
    pub(crate) fn new(at_start: impl Iterator<Item = (u64, u64)>, calls: Vec<Call>) -> Driver {
        let mut used = BTreeMap::new();
        let mut chunks = Chunks::default();
        let mut hidden = Vec::new();
        let mut gaps = Vec::new();
        for (addr, size) in at_start {
            used.insert(addr, addr + size);
            chunks.occupy(addr, addr + size, &used);
        }
        for call in &calls {
            let Call { event, is_malloc, addr, size } = *call;
            if is_malloc {
                let is_known = chunks.knows(addr);
                if !is_known && addr.is_multiple_of(CHUNK) {
                    gaps.push((addr, (addr + size).next_multiple_of(CHUNK)));
                } else if !is_known {
                    let high = used.range(addr..).next().map_or(addr + size, |(&start, _)| start);
                    hidden.push((event, addr, high.min(addr + MOST_HIDDEN).max(addr + size)));
                }
                used.insert(addr, addr + size);
                chunks.occupy(addr, addr + size, &used);
            } else {
                used.remove(&addr);
                chunks.release(addr, &used);
            }
        }
        gaps.sort_unstable();
        Driver { calls: calls.into(), hidden: hidden.into(), gaps: gaps.into() }
    }
}

/// The addresses in use, and how to choose the next.
#[derive(Clone)]
pub(crate) struct Addresses {
    policy: Policy,
    driver: Driver,
    /// The next call of the recording; past its end once the replay has left it.
    next: usize,
    /// Segments: start and end.
    used: BTreeMap<u64, u64>,
    chunks: Chunks,
    /// How many of the hidden ranges are free by now.
    revealed: usize,
}

/// Segments lie on multiples of this.
const ALIGNMENT: u64 = 2 << 20;
const LOWEST: u64 = 0x7000_0000_0000;
const HIGHEST: u64 = 0x7fff_0000_0000;

impl Addresses {
    pub(crate) fn new(policy: Policy, driver: Driver) -> Addresses {
        let next = if policy == Policy::Anew { usize::MAX } else { 0 };
        Addresses { policy, driver, next, used: BTreeMap::new(), chunks: Chunks::default(), revealed: 0 }
    }

    /// Notes a segment at a known place.
    pub(crate) fn occupy(&mut self, addr: u64, size: u64) {
        self.used.insert(addr, addr + size);
        if self.policy.has_chunks() {
            self.chunks.occupy(addr, addr + size, &self.used);
        }
    }

    /// An address for a new segment, and whether it is a guess. `now` is the event of the recording.
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
        let span = size.next_multiple_of(ALIGNMENT);
        let addr = match self.policy {
            Policy::Learned => self.chunks.guess(span, &self.used, &self.driver.gaps),
            Policy::Fresh | Policy::Anew => self.chunks.guess(span, &self.used, &[]),
            Policy::LowestGap => gap_above(&self.used, LOWEST, span),
            Policy::HighestGap => gap_below(&self.used, HIGHEST, span),
        };
        if self.is_free(addr, span) {
            return addr;
        }
        // What is learned of the address space may contradict what is guessed of it: then below everything, or above.
        let lowest = self.used.first_key_value().map_or(HIGHEST, |(&start, _)| start);
        let highest = self.used.last_key_value().map_or(LOWEST, |(_, &end)| end);
        lowest
            .checked_sub(span)
            .map_or(highest.next_multiple_of(ALIGNMENT), |below| below / ALIGNMENT * ALIGNMENT)
    }

    fn is_free(&self, addr: u64, size: u64) -> bool {
        self.used.range(..addr.saturating_add(size)).next_back().is_none_or(|(_, &end)| end <= addr)
    }
}

/// The lowest gap of `span` bytes from `low` on.
fn gap_above(used: &BTreeMap<u64, u64>, low: u64, span: u64) -> u64 {
    let mut at = low;
    for (&start, &end) in used {
        if start >= at.saturating_add(span) {
            break;
        }
        at = at.max(end.next_multiple_of(ALIGNMENT));
    }
    at
}

/// The highest gap of `span` bytes below `high`.
fn gap_below(used: &BTreeMap<u64, u64>, high: u64, span: u64) -> u64 {
    let mut end = high;
    for (&start, &stop) in used.iter().rev() {
        if stop.saturating_add(span) <= end {
            break;
        }
        end = end.min(start / ALIGNMENT * ALIGNMENT);
    }
    end.saturating_sub(span)
}

/// Address space as a driver was seen to hand it out (an H200, five recordings of random traffic: 779 of 784 addresses
/// as predicted): it is mapped in chunks of 32 MiB, from the top down; a segment goes into the best hole of the newest
/// chunk that has one, small and large alike; an empty chunk is given up.
#[derive(Clone, Default)]
struct Chunks {
    /// Mapped chunks, oldest first.
    chunks: Vec<(u64, u64)>,
    /// Addresses of chunks that were given up.
    released: BTreeMap<u64, u64>,
    /// The lowest address ever mapped.
    floor: Option<u64>,
}

const CHUNK: u64 = 32 << 20;

/// Chunks that are looked through for a hole, the newest first.
const MOST_CHUNKS: usize = 512;

/// Longest range of the driver's own that is believed to have become free at once.
const MOST_HIDDEN: u64 = 512 << 20;

impl Chunks {
    fn guess(&self, span: u64, used: &BTreeMap<u64, u64>, gaps: &[(u64, u64)]) -> u64 {
        for &(low, high) in self.chunks.iter().rev().take(MOST_CHUNKS) {
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
        let bytes = span.next_multiple_of(CHUNK);
        let is_free = |low: u64, high: u64| {
            used.range(..high).next_back().is_none_or(|(_, &end)| end <= low)
                && self.chunks.iter().all(|&(other_low, other_high)| other_high <= low || high <= other_low)
        };
        let fits = |&(low, high): &(u64, u64)| high - low >= bytes && is_free(high - bytes, high);
        let gap = gaps.iter().rev().find(|gap| fits(gap)).map(|&(_, high)| high);
        // A released range that fits exactly was never seen to be used again.
        let released =
            self.released.iter().rev().find(|(low, high)| **high - **low > bytes).map(|(_, &high)| high);
        match gap.max(released) {
            Some(high) => high - bytes,
            None => self.floor.unwrap_or(HIGHEST).saturating_sub(bytes),
        }
    }

    /// Whether a segment at this address is no surprise: in a chunk, in a released range, or below everything.
    fn knows(&self, addr: u64) -> bool {
        let is_in = |low: u64, high: u64| (low..high).contains(&addr);
        self.floor.is_none_or(|floor| addr < floor)
            || self.chunks.iter().any(|&(low, high)| is_in(low, high))
            || self.released.iter().any(|(&low, &high)| is_in(low, high))
    }

    /// Adds a range that the driver had all the time: as the oldest chunk.
    fn reveal(&mut self, low: u64, high: u64) {
        if self.chunks.iter().all(|&(other_low, other_high)| other_high <= low || high <= other_low) {
            self.chunks.insert(0, (low, high));
        }
    }

    /// Notes a segment; one outside all chunks shows a new one.
    fn occupy(&mut self, addr: u64, end: u64, used: &BTreeMap<u64, u64>) {
        if let Some(chunk) = self.chunks.iter_mut().find(|(low, high)| (*low..*high).contains(&addr)) {
            chunk.1 = chunk.1.max(end);
            return;
        }
        let mut low = addr / CHUNK * CHUNK;
        let mut high = end.next_multiple_of(CHUNK);
        for &(other_low, other_high) in &self.chunks {
            if other_low >= end {
                high = high.min(other_low);
            } else if other_high <= addr {
                low = low.max(other_high);
            }
        }
        // What lies in front of it in the chunk belongs to somebody else.
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
