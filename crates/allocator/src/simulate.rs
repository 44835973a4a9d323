//! Replays the requests of a recorded run under other settings, on another card.

use crate::addresses::{Addresses, Policy};
use crate::card::Card;
use crate::conf::Conf;
use crate::model::{Model, NONE};
use crate::recorded::Recorded;
use crate::requests::OpKind;
use crate::rules::Rules;
use crate::start::{is_plausible, lay_out};

/// A run that might have been: settings, card, limit.
#[derive(Clone, PartialEq, Debug)]
pub struct WhatIf {
    /// The allocator's settings.
    pub conf: Conf,
    /// Memory of the card, for what is a fraction of it.
    pub total: Option<u64>,
    /// Bytes of it that PyTorch can have; `None` is as much as it likes.
    pub available: Option<u64>,
    /// The limit of the process, in bytes.
    pub limit: Option<u64>,
}

/// How finely the least memory is looked for: the driver gives no less.
const STEP: u64 = 2 << 20;
pub(crate) const LARGEST_CARD: u64 = 1 << 42;
/// Shares of the least memory by which more is tried, too: 1, 2, 5 and 10 %.
const MORE: [u64; 4] = [100, 50, 20, 10];

/// Other orders of addresses than the likeliest count for the range as long as it stays within this share of the peak. In
/// 320 real runs (32 programs under ten settings, an H200) what lay further off was never the real figure.
const PLAUSIBLE: f64 = 0.04;

/// How a replay went.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Highest allocated bytes.
    pub peak_allocated: u64,
    /// Highest reserved bytes.
    pub peak_reserved: u64,
    /// The lowest and highest of that over the ways in which a driver may choose addresses.
    pub peak_reserved_range: (u64, u64),
    /// Figures of address orders that lie too far off to be likely, see [`Recorded::simulate`].
    pub improbable: Vec<u64>,
    /// Whether another order of addresses would change whether it fits.
    pub verdict_hangs_on_addresses: bool,
    /// The event of the recording under which it was reached.
    pub peak_reserved_event: usize,
    /// Reserved bytes at the end.
    pub end_reserved: u64,
    /// `cudaMalloc` calls and mappings.
    pub device_allocs: u64,
    /// `cudaFree` calls and unmappings.
    pub device_frees: u64,
    /// Requests that were tried again after everything had been released.
    pub retries: u64,
    /// The first request that failed.
    pub oom: Option<Oom>,
    /// Events of requests that failed in the recorded run and would not have failed here.
    pub rescued: Vec<usize>,
    /// Whether the replay went to the end of the recording; it stops at a failure that was not recorded.
    pub finished: bool,
}

/// A request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Oom {
    /// The event of the recording that asked.
    pub event: usize,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes that the allocator needed from the driver.
    pub wanted: u64,
    /// Allocated bytes at that moment.
    pub allocated: u64,
    /// Reserved bytes at that moment.
    pub reserved: u64,
    /// The largest free block of its pool and stream.
    pub largest_free: u64,
    /// Bytes that PyTorch could have: the card's or the limit's.
    pub room: u64,
    /// Whether the memory in use and the request would have fit, had the rest been in one piece.
    pub is_fragmentation: bool,
    /// Whether this request failed in the recorded run as well.
    pub was_recorded: bool,
}

impl Recorded<'_> {
    /// Replays the run. Where the outcome may hang on addresses that the driver chooses, several choices are tried.
    pub fn simulate(&self, what: &WhatIf) -> Outcome {
        let (mut outcome, ties) = self.run(what, Policy::Learned);
        if ties > 0 {
            let point = outcome.peak_reserved;
            let (mut low, mut high) = (point, point);
            for policy in [Policy::Fresh, Policy::HighestGap, Policy::LowestGap] {
                let (other, _) = self.run(what, policy);
                // A run that ends early says nothing about the peak, but that fitting hangs on addresses.
                if other.oom.is_some() != outcome.oom.is_some() {
                    outcome.verdict_hangs_on_addresses = true;
                    continue;
                }
                let with_it = (low.min(other.peak_reserved), high.max(other.peak_reserved));
                if (with_it.1 - with_it.0) as f64 <= point as f64 * PLAUSIBLE {
                    (low, high) = with_it;
                } else {
                    outcome.improbable.push(other.peak_reserved);
                }
            }
            outcome.peak_reserved_range = (low, high);
        }
        outcome
    }

    /// Replays the run once, with the likeliest addresses and no range.
    pub fn replay_once(&self, what: &WhatIf) -> Outcome {
        self.run(what, Policy::Learned).0
    }

    /// The least memory of a card from which on the run goes through; `on` says what a card of some size means. `None` if
    /// none is large enough.
    pub fn smallest(&self, on: impl Fn(u64) -> WhatIf) -> Option<u64> {
        let fits = |total: u64| self.run(&on(total), Policy::Learned).0.oom.is_none();
        let mut low = 0;
        let mut high = STEP;
        while !fits(high) {
            low = high;
            high = high.checked_mul(2).filter(|&size| size <= LARGEST_CARD)?;
        }
        loop {
            while high - low > STEP {
                let middle = low.midpoint(high).next_multiple_of(STEP).min(high - STEP);
                *(if fits(middle) { &mut high } else { &mut low }) = middle;
            }
            // A little more memory can make an allocator do worse: what fits has to fit above as well.
            let above = MORE.map(|share| (high + high / share).next_multiple_of(STEP));
            match above.into_iter().rev().find(|&size| !fits(size)) {
                Some(size) => {
                    low = size;
                    high = size;
                    while !fits(high) {
                        let more = (high + high / 32).next_multiple_of(STEP);
                        high = Some(more).filter(|&size| size <= LARGEST_CARD)?;
                    }
                }
                None => return Some(high),
            }
        }
    }

    fn run(&self, what: &WhatIf, policy: Policy) -> (Outcome, u64) {
        let mut run = Run::new(self, what, policy);
        run.replay(self);
        (run.outcome(), run.model.counts.guessed_ties)
    }
}

pub(crate) struct Run {
    pub(crate) model: Model<Card>,
    /// The block that each life has or had last.
    pub(crate) block_of: Vec<u32>,
    oom: Option<Oom>,
    rescued: Vec<usize>,
    finished: bool,
}

impl Run {
    pub(crate) fn new(recorded: &Recorded<'_>, what: &WhatIf, policy: Policy) -> Run {
        let requests = &recorded.followed.requests;
        let mut addresses = Addresses::new(policy, recorded.driver().clone());
        let old = recorded.history.segments_at_start.iter().filter(|segment| !segment.expandable);
        for segment in old.filter(|segment| is_plausible(segment.addr, segment.size)) {
            addresses.occupy(segment.addr, segment.size);
        }
        let card = Card::new(what, addresses);
        let rules = Rules::of(recorded.release);
        let mut model = Model::new(card, what.conf.clone(), rules, &requests.lanes, &requests.pools);
        let page = recorded.conf.large_segment;
        let (snapshot, history) = (recorded.snapshot, recorded.history);
        let owners = &recorded.assumed.owners;
        let block_of = lay_out(&mut model, snapshot, history, owners, &requests.lanes, &requests.pools, page);
        model.world.start_with(model.counts.reserved);
        Run { model, block_of, oom: None, rescued: Vec::new(), finished: true }
    }

    pub(crate) fn replay(&mut self, recorded: &Recorded<'_>) {
        let ops = &recorded.followed.requests.ops;
        let model = &mut self.model;
        for op in ops {
            model.now = op.event;
            model.world.now = op.event;
            match op.kind {
                OpKind::Alloc => match model.malloc(op.size, op.lane, None) {
                    Some(block) => self.block_of[op.life as usize] = block,
                    None => {
                        // It ends the replay, whatever failed and was survived before.
                        self.oom = Some(failure(model, op.size, op.lane, op.event, false));
                        self.finished = false;
                        return;
                    }
                },
                OpKind::Free => {
                    let block = self.block_of[op.life as usize];
                    if block != NONE {
                        model.free(block, None);
                    }
                }
                OpKind::FreeLater => {
                    let block = self.block_of[op.life as usize];
                    if block != NONE {
                        model.free(block, Some(op.life));
                    }
                }
                OpKind::Complete => {
                    let block = self.block_of[op.life as usize];
                    if block != NONE {
                        model.complete_pending(block, op.life);
                    }
                }
                OpKind::EmptyCache => model.release_all(),
                OpKind::EndPool => model.end_pool(op.lane),
                OpKind::RetirePool => model.world.retired.push(op.lane),
                OpKind::Failed => match model.malloc(op.size, op.lane, None) {
                    // The program went on without it, so it cannot keep it.
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
            verdict_hangs_on_addresses: false,
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

fn failure(model: &Model<Card>, requested: u64, lane: u32, event: u32, was_recorded: bool) -> Oom {
    let size = model.rounded(requested);
    let room = model.world.room();
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
