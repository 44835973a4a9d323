//! What-ifs: replays the requests of a recorded run under other settings or on another card.

use crate::addresses::{Policy, SegmentAddresses};
use crate::conf_timeline::ConfTimeline;
use crate::model::{Model, NONE};
use crate::recorded::RecordedRun;
use crate::requests::OpKind;
use crate::rules::Rules;
use crate::simulated_device::SimulatedDevice;
use crate::start::{is_plausible, lay_out};
use std::rc::Rc;

/// Hypothetical run: settings, card and limit.
#[derive(Clone, PartialEq, Debug)]
pub struct WhatIf {
    /// Settings of the allocator.
    pub conf: ConfTimeline,
    /// Memory of the card in bytes, for settings that are a fraction of it.
    pub total: Option<u64>,
    /// Bytes of it available to PyTorch; `None` means unlimited.
    pub available: Option<u64>,
    /// Memory limit of the process, in bytes.
    pub limit: Option<u64>,
}

/// Resolution of the search for the smallest card, in bytes: the driver's granularity.
const SEARCH_STEP_BYTES: u64 = 2 << 20;
/// Largest card that is tried, in bytes.
pub(crate) const LARGEST_CARD_BYTES: u64 = 1 << 42;
/// Divisors of the smallest memory by which more is tried, too: 1%, 2%, 5% and 10%.
const HEADROOM_DIVISORS: [u64; 4] = [100, 50, 20, 10];

/// Largest deviation from the likely peak, as a fraction, for address orders that count for the range. In 320
/// real runs (32 programs under ten settings, H200) larger deviations were never the real figure.
const PLAUSIBLE_DEVIATION: f64 = 0.04;

/// Orders of addresses that are tried for a range.
const ADDRESS_ORDERS: u64 = 16;

/// Lowest and highest peaks of a run over several orders of addresses, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeakRanges {
    /// Allocated memory.
    pub allocated: (u64, u64),
    /// Reserved memory.
    pub reserved: (u64, u64),
    /// Whether the run does not fit in some of these orders; they are not in the ranges.
    pub may_fail: bool,
}

/// Result of a replay.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Highest allocated bytes.
    pub peak_allocated: u64,
    /// Highest reserved bytes.
    pub peak_reserved: u64,
    /// Lowest and highest peak over the ways in which a driver may choose addresses.
    pub peak_reserved_range: (u64, u64),
    /// Peaks of address orders that are too far off to be likely, see [`RecordedRun::simulate`].
    pub improbable: Vec<u64>,
    /// Whether another order of addresses would change whether the run fits.
    pub outcome_depends_on_addresses: bool,
    /// Event of the recording during which the peak was reached.
    pub peak_reserved_event: usize,
    /// Reserved bytes at the end.
    pub end_reserved: u64,
    /// Number of `cudaMalloc` calls and mappings.
    pub device_allocs: u64,
    /// Number of `cudaFree` calls and unmappings.
    pub device_frees: u64,
    /// Number of requests that were retried after all cached memory had been released.
    pub retries: u64,
    /// First request that failed.
    pub oom: Option<Oom>,
    /// Events of requests that failed in the recorded run but not here.
    pub rescued: Vec<usize>,
    /// Whether the replay reached the end of the recording; it stops at a failure that was not recorded.
    pub finished: bool,
}

/// Failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Oom {
    /// Event of the recording that made the request.
    pub event: usize,
    /// Requested bytes.
    pub requested: u64,
    /// Bytes that the allocator requested from the driver.
    pub wanted: u64,
    /// Allocated bytes at that moment.
    pub allocated: u64,
    /// Reserved bytes at that moment.
    pub reserved: u64,
    /// Size in bytes of the largest free block of its pool and stream.
    pub largest_free: u64,
    /// Bytes available to PyTorch: of the card or up to the limit.
    pub room: u64,
    /// Whether the memory in use and the request would have fit if the free memory had been contiguous.
    pub is_fragmentation: bool,
    /// Whether this request failed in the recorded run as well.
    pub was_recorded: bool,
}

impl RecordedRun<'_> {
    /// Replays the run. If the outcome may depend on addresses chosen by the driver, several choices are
    /// tried.
    pub fn simulate(&self, what: &WhatIf) -> Outcome {
        let (mut outcome, ties) = self.run(what, Policy::Learned);
        if ties > 0 {
            let point = outcome.peak_reserved;
            let (mut low, mut high) = (point, point);
            for policy in [Policy::Fresh, Policy::HighestGap, Policy::LowestGap] {
                let (other, _) = self.run(what, policy);
                // A run that ends early says nothing about the peak, only that fitting depends on addresses.
                if other.oom.is_some() != outcome.oom.is_some() {
                    outcome.outcome_depends_on_addresses = true;
                    continue;
                }
                let with_it = (low.min(other.peak_reserved), high.max(other.peak_reserved));
                if (with_it.1 - with_it.0) as f64 <= point as f64 * PLAUSIBLE_DEVIATION {
                    (low, high) = with_it;
                } else {
                    outcome.improbable.push(other.peak_reserved);
                }
            }
            outcome.peak_reserved_range = (low, high);
        }
        outcome
    }

    /// Returns how far the peaks of the run itself depend on the addresses that the driver returns: among
    /// free blocks of equal size, the address decides which one is used. `available` is the memory for
    /// PyTorch, in bytes.
    pub fn peaks_with_other_addresses(&self, available: Option<u64>) -> PeakRanges {
        let limit = self.conditions().limit;
        let what = WhatIf { conf: self.conf.clone(), total: None, available, limit };
        let wider = |(low, high): (u64, u64), peak: u64| (low.min(peak), high.max(peak));
        let (recorded, _) = self.run(&what, Policy::Learned);
        let Outcome { peak_allocated, peak_reserved, .. } = recorded;
        let mut ranges = PeakRanges {
            allocated: (peak_allocated, peak_allocated),
            reserved: (peak_reserved, peak_reserved),
            may_fail: false,
        };
        for order in 1..=ADDRESS_ORDERS {
            let (other, _) = self.run(&what, Policy::Shuffled(order));
            if other.finished {
                ranges.allocated = wider(ranges.allocated, other.peak_allocated);
                ranges.reserved = wider(ranges.reserved, other.peak_reserved);
            }
            ranges.may_fail |= recorded.finished && !other.finished;
        }
        ranges
    }

    /// Replays the run once, with the likeliest addresses and no range.
    pub fn replay_once(&self, what: &WhatIf) -> Outcome {
        self.run(what, Policy::Learned).0
    }

    /// Returns the smallest memory of a card, in bytes, from which on the run completes; `on` gives the
    /// what-if for a card of some size. `None` if no card is large enough.
    pub fn smallest(&self, on: impl Fn(u64) -> WhatIf) -> Option<u64> {
        let fits = |total: u64| self.run(&on(total), Policy::Learned).0.oom.is_none();
        let mut low = 0;
        let mut high = SEARCH_STEP_BYTES;
        while !fits(high) {
            low = high;
            high = high.checked_mul(2).filter(|&size| size <= LARGEST_CARD_BYTES)?;
        }
        loop {
            while high - low > SEARCH_STEP_BYTES {
                let middle =
                    low.midpoint(high).next_multiple_of(SEARCH_STEP_BYTES).min(high - SEARCH_STEP_BYTES);
                *(if fits(middle) { &mut high } else { &mut low }) = middle;
            }
            // A little more memory can make an allocator do worse: what fits has to fit on slightly larger
            // cards as well.
            let above =
                HEADROOM_DIVISORS.map(|share| (high + high / share).next_multiple_of(SEARCH_STEP_BYTES));
            match above.into_iter().rev().find(|&size| !fits(size)) {
                Some(size) => {
                    low = size;
                    high = size;
                    while !fits(high) {
                        let more = (high + high / 32).next_multiple_of(SEARCH_STEP_BYTES);
                        high = Some(more).filter(|&size| size <= LARGEST_CARD_BYTES)?;
                    }
                }
                None => return Some(high),
            }
        }
    }

    fn run(&self, what: &WhatIf, policy: Policy) -> (Outcome, u64) {
        let mut run = SimulatedRun::new(self, what, policy);
        run.replay(self);
        (run.outcome(), run.model.counts.guessed_ties)
    }
}

pub(crate) struct SimulatedRun {
    pub(crate) model: Model<SimulatedDevice>,
    /// Block that each allocation has or had last.
    pub(crate) block_of: Vec<u32>,
    oom: Option<Oom>,
    rescued: Vec<usize>,
    finished: bool,
}

impl SimulatedRun {
    pub(crate) fn new(recorded: &RecordedRun<'_>, what: &WhatIf, policy: Policy) -> SimulatedRun {
        let requests = &recorded.verified.requests;
        let mut addresses = SegmentAddresses::new(policy, recorded.driver().clone());
        let old = recorded.history.segments_at_start.iter().filter(|segment| !segment.expandable);
        for segment in old.filter(|segment| is_plausible(segment.addr, segment.size)) {
            addresses.occupy(segment.addr, segment.size);
        }
        let card = SimulatedDevice::new(what, addresses);
        let rules = Rules::of(recorded.release);
        let mut model = Model::new(card, Rc::new(what.conf.clone()), rules, &requests.lanes, &requests.pools);
        let page = recorded.conf.first().large_segment;
        let (snapshot, history) = (recorded.snapshot, recorded.history);
        let owners = &recorded.assumed.owners;
        let block_of = lay_out(&mut model, snapshot, history, owners, &requests.lanes, &requests.pools, page);
        model.environment.start_with(model.counts.reserved);
        SimulatedRun { model, block_of, oom: None, rescued: Vec::new(), finished: true }
    }

    pub(crate) fn replay(&mut self, recorded: &RecordedRun<'_>) {
        let ops = &recorded.verified.requests.ops;
        let model = &mut self.model;
        for op in ops {
            model.now = op.event;
            model.environment.now = op.event;
            match op.kind {
                OpKind::Alloc => match model.malloc(op.size, op.lane, None) {
                    Some(block) => self.block_of[op.allocation as usize] = block,
                    None => {
                        // Ends the replay, even if earlier failures were survived.
                        self.oom = Some(failure(model, op.size, op.lane, op.event, false));
                        self.finished = false;
                        return;
                    }
                },
                OpKind::Free => {
                    let block = self.block_of[op.allocation as usize];
                    if block != NONE {
                        model.free(block, None);
                    }
                }
                OpKind::FreeLater => {
                    let block = self.block_of[op.allocation as usize];
                    if block != NONE {
                        model.free(block, Some(op.allocation));
                    }
                }
                OpKind::Complete => {
                    let block = self.block_of[op.allocation as usize];
                    if block != NONE {
                        model.complete_pending(block, op.allocation);
                    }
                }
                OpKind::EmptyCache => model.release_all(),
                OpKind::EndPool => model.end_pool(op.lane),
                OpKind::RetirePool => model.environment.retired.push(op.lane),
                OpKind::Failed => match model.malloc(op.size, op.lane, None) {
                    // The program continued without it, so it cannot keep it.
                    Some(block) => {
                        self.rescued.push(op.event as usize);
                        if op.event != ops[ops.len() - 1].event {
                            model.free(block, None);
                        }
                    }
                    None => {
                        self.oom.get_or_insert(failure(model, op.size, op.lane, op.event, true));
                    }
                },
            }
        }
    }

    fn outcome(&mut self) -> Outcome {
        let counts = &self.model.counts;
        Outcome {
            peak_allocated: counts.peak_allocated,
            peak_reserved: counts.peak_reserved,
            peak_reserved_range: (counts.peak_reserved, counts.peak_reserved),
            improbable: Vec::new(),
            outcome_depends_on_addresses: false,
            peak_reserved_event: counts.peak_reserved_at as usize,
            end_reserved: counts.reserved,
            device_allocs: counts.device_allocs,
            device_frees: counts.device_frees,
            retries: counts.retries,
            oom: self.oom,
            rescued: std::mem::take(&mut self.rescued),
            finished: self.finished,
        }
    }
}

fn failure(model: &Model<SimulatedDevice>, requested: u64, lane: u32, event: u32, was_recorded: bool) -> Oom {
    let size = model.rounded(requested);
    let room = model.environment.room();
    Oom {
        event: event as usize,
        requested,
        wanted: model.segment_size(size),
        allocated: model.counts.allocated,
        reserved: model.counts.reserved,
        largest_free: model.largest_free(lane, size),
        room,
        is_fragmentation: model.counts.active.saturating_add(size) <= room,
        was_recorded,
    }
}
