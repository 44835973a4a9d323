//! Verification of the model against a recorded run: replays the run and compares every decision.
//!
//! A trace shows what happened, not why: a segment may have been released by `empty_cache()`, for a request
//! that found no memory, by garbage collection or at the end of a pool. The events between two calls of the
//! program form a *group*; each explanation of a group is tried on a copy of the model, and the first that
//! gives exactly the recorded events is kept. The result includes the requests of the program ([`Requests`]).

use crate::conf_timeline::ConfTimeline;
use crate::difference::{self, ModelDifference};
use crate::explain::{ReleaseCause, TOO_AMBIGUOUS};
use crate::model::{Lane, Model, NONE};
use crate::owners::{Assumed, Collection, Owners};
use crate::requests::{Op, OpKind, Requests, lanes};
use crate::rules::{Release, Rules};
use crate::start::{lane_of, lay_out};
use crate::trace_environment::{Threshold, TraceEnvironment};
use rustc_hash::FxHashMap;
use snapshot::{Action, Event, History, PoolId, Snapshot, StackId};
use std::ops::Range;
use std::rc::Rc;

/// Requests of at least this many bytes are rejected before PyTorch looks for memory.
const MAX_REQUEST_BYTES: u64 = 1 << 60;

/// Result of verifying a recording.
pub(crate) struct VerifiedRun {
    pub(crate) requests: Requests,
    /// Number of events that the model reproduced exactly.
    pub(crate) identical: usize,
    pub(crate) difference: Option<ModelDifference>,
    /// Regions whose pool may be wrong, if there is a difference.
    pub(crate) suspects: Vec<usize>,
    /// Pools that ended in one group of events, by index.
    pub(crate) ended_together: Vec<Vec<u32>>,
    /// Number of requests that were served only after all cached memory had been released.
    pub(crate) retries: u64,
    pub(crate) threshold: Option<Threshold>,
    /// Most bytes reserved or successfully requested, if a request for more was refused.
    pub(crate) refused_above: Option<u64>,
}

impl VerifiedRun {
    /// Progress of the model: reaching the end counts more than the last event.
    pub(crate) fn progress(&self) -> usize {
        self.identical + usize::from(self.difference.is_none())
    }
}

/// Rows that may be copied for attempts in total. Bounds the time for a file made to be ambiguous everywhere.
pub(crate) const COPY_BUDGET_ROWS: usize = 100_000_000;

/// Settings and limits of a run.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RunSettings {
    pub(crate) conf: ConfTimeline,
    pub(crate) release: Release,
    pub(crate) rules: Rules,
    pub(crate) limit: Option<u64>,
}

/// Verifies the model against the history of a device.
pub(crate) fn verify(
    snapshot: &Snapshot,
    history: &History,
    run_settings: &RunSettings,
    assumed: &Assumed,
    copies_left: &mut usize,
) -> VerifiedRun {
    let RunSettings { conf, release, rules, limit } = run_settings;
    let conf = assumed.conf.as_ref().unwrap_or(conf);
    let (lanes, pools) = lanes(snapshot, history, *release, assumed, conf);
    let record = TraceEnvironment::new(snapshot, history, &pools, *limit, assumed);
    let mut model = Model::new(record, Rc::new(conf.clone()), *rules, &lanes, &pools);
    let page = conf.first().large_segment;
    let block_of = lay_out(&mut model, snapshot, history, &assumed.owners, &lanes, &pools, page);
    let mut verifier = Verifier {
        snapshot,
        history,
        owners: &assumed.owners,
        collection: assumed.collection,
        events: model.environment.clone(),
        requests: Requests {
            ops: Vec::with_capacity(history.len()),
            lanes: lanes.clone(),
            pools: pools.clone(),
        },
        model,
        block_of,
        identical: 0,
        difference: None,
        copies_left: *copies_left,
        ended_together: Vec::new(),
        before_free: None,
        empties: FxHashMap::default(),
    };
    verifier.run();
    *copies_left = verifier.copies_left;
    VerifiedRun {
        suspects: verifier.suspects(),
        ended_together: verifier.ended_together,
        identical: verifier.identical,
        retries: verifier.model.counts.retries,
        threshold: verifier.model.environment.threshold,
        refused_above: verifier.model.counts.refused.then_some(verifier.model.counts.most_granted),
        difference: verifier.difference,
        requests: verifier.requests,
    }
}

pub(crate) struct Verifier<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) history: &'a History,
    owners: &'a Owners,
    pub(crate) collection: Collection,
    /// Only for looking at events.
    pub(crate) events: TraceEnvironment<'a>,
    pub(crate) requests: Requests,
    /// Model state; frozen at the first difference.
    pub(crate) model: Model<TraceEnvironment<'a>>,
    /// Block of the model for each allocation.
    pub(crate) block_of: Vec<u32>,
    pub(crate) identical: usize,
    pub(crate) difference: Option<ModelDifference>,
    /// Rows that attempts may still copy.
    pub(crate) copies_left: usize,
    ended_together: Vec<Vec<u32>>,
    /// Model before the last free and the event of that free, if later events may have completed it.
    before_free: Option<(Model<TraceEnvironment<'a>>, usize)>,
    /// Whether a stack goes through `empty_cache`.
    pub(crate) empties: FxHashMap<StackId, bool>,
}

/// Events of a group: those of one call, or of several calls without an event of their own.
#[derive(Clone, Copy)]
pub(crate) struct EventGroup {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Request that ends the group.
    pub(crate) request: Option<Event>,
    /// Number of completed frees at its beginning.
    pub(crate) leading: usize,
    pub(crate) releases: bool,
    pub(crate) grows: bool,
    pub(crate) completes: bool,
}

impl<'a> Verifier<'a> {
    fn run(&mut self) {
        let mut at = 0;
        // The history may begin inside a call: frees that it completes are applied as recorded.
        if !self.history.complete {
            while self.action(at) == Some(Action::FreeCompleted) {
                self.complete(at);
                at += 1;
            }
        }
        while let Some(event) = self.events.event(at) {
            at = match event.action {
                Action::FreeRequested => self.free(at, &event),
                Action::Snapshot => {
                    self.check_active(at, &event);
                    at + 1
                }
                Action::Annotate | Action::Other(_) => at + 1,
                _ => self.group(at),
            };
            if self.difference.is_none() {
                self.identical = at;
            }
        }
        if self.difference.is_none() {
            self.difference = difference::at_end(&self.model, self.snapshot, self.history);
        }
    }

    pub(crate) fn action(&self, index: usize) -> Option<Action> {
        self.events.event(index).map(|event| event.action)
    }

    /// Checks the active bytes that PyTorch records when a snapshot is taken; with private pools these may be
    /// the bytes of one of them.
    fn check_active(&mut self, at: usize, event: &Event) {
        let active = self.model.counts.active;
        if self.difference.is_none() && active != event.size.0 && self.requests.pools.len() == 1 {
            self.difference = Some(difference::active(at, event.size.0, active));
        }
    }

    fn push(&mut self, kind: OpKind, at: usize, allocation: u32, lane: u32, size: u64) {
        // Frees that complete while a request waits for all streams follow it: event numbers never decrease.
        let event = self.requests.ops.last().map_or(0, |last| last.event).max(at as u32);
        self.requests.ops.push(Op { kind, lane, allocation, event, size });
    }

    pub(crate) fn allocation(&self, at: usize, action: Action) -> Option<u32> {
        self.history.allocation_of(at, action).map(|allocation| allocation as u32)
    }

    /// Applies `act` to the model unless it has diverged from the recording.
    fn with_model(&mut self, at: usize, act: impl FnOnce(&mut Model<TraceEnvironment<'a>>, &mut [u32])) {
        if self.difference.is_some() {
            return;
        }
        self.model.now = at as u32;
        self.model.environment.cursor = at;
        act(&mut self.model, &mut self.block_of);
        if let Some(mismatch) = self.model.environment.mismatch {
            self.identical = mismatch.event;
            self.difference = Some(difference::at_event(&self.model, &self.events, &mismatch));
        }
    }

    fn free(&mut self, at: usize, event: &Event) -> usize {
        // Both events of an ordinary free come from one call. A later call may also complete a free that had
        // to wait.
        let at_once = self.events.event(at + 1).is_some_and(|next| {
            next.action == Action::FreeCompleted && next.addr == event.addr && next.stack == event.stack
        });
        let next = at + 1 + usize::from(at_once);
        let Some(allocation) = self.allocation(at, Action::FreeRequested) else {
            self.cannot_explain(at, "it frees a block that is not in the history");
            return next;
        };
        self.push(if at_once { OpKind::Free } else { OpKind::FreeLater }, at, allocation, 0, 0);
        let block = self.block_of[allocation as usize];
        if block == NONE {
            self.cannot_explain(at, "it frees a block that is missing from the state before the history");
            return next;
        }
        let may_have_waited = || {
            let following = self.bounds(next);
            following.releases || following.request.is_some_and(|request| request.action == Action::Oom)
        };
        if at_once && self.difference.is_none() && may_have_waited() && self.may_copy() {
            self.before_free = Some((self.model.clone(), at));
        }
        self.with_model(at, |model, _| model.free(block, (!at_once).then_some(allocation)));
        next
    }

    /// Takes the budget for one more copy of the model; returns whether there was enough.
    pub(crate) fn may_copy(&mut self) -> bool {
        self.copies_left = self.copies_left.saturating_sub(self.model.rows() + 64);
        self.copies_left > 0
    }

    /// Treats the free before a group as one that had to wait for the call of the group: returns to the state
    /// before it, so that the group begins with its completion.
    pub(crate) fn defer_last_free(&mut self, group: &EventGroup) -> Option<EventGroup> {
        let (model, at) = self.before_free.take()?;
        if at + 2 != group.start {
            return None;
        }
        let allocation = self.allocation(at, Action::FreeRequested)?;
        let block = self.block_of[allocation as usize];
        self.model = model;
        self.difference = None;
        self.with_model(at, |model, _| model.free(block, Some(allocation)));
        let free = self.requests.ops.iter_mut().rev().find(|op| op.allocation == allocation)?;
        free.kind = OpKind::FreeLater;
        Some(EventGroup { start: group.start - 1, leading: group.leading + 1, completes: true, ..*group })
    }

    fn cannot_explain(&mut self, at: usize, why: &str) {
        if self.difference.is_none() {
            self.difference = Some(difference::unexplained(at, why));
        }
    }

    /// Applies a completed free of a block that was waiting for another stream.
    fn complete(&mut self, at: usize) {
        let Some(allocation) = self.allocation(at, Action::FreeCompleted) else { return };
        self.push(OpKind::Complete, at, allocation, 0, 0);
        let block = self.block_of[allocation as usize];
        self.with_model(at, |model, _| {
            if block != NONE {
                model.complete_pending(block, allocation);
            }
        });
    }

    fn group(&mut self, start: usize) -> usize {
        let mut group = self.bounds(start);
        if !group.grows
            && let Some(events) = self.restored_segment(group.end - 1)
        {
            if start == events.start {
                return self.restore(events);
            }
            // What was released before has another cause.
            group = EventGroup { end: events.start, request: None, ..group };
        }
        if group.request.is_some_and(|request| request.size.0 >= MAX_REQUEST_BYTES) {
            self.cannot_explain(group.end - 1, "no program can request this much");
            return group.end;
        }
        let is_served = group.request.is_none_or(|request| request.action == Action::Alloc);
        let is_unambiguous = !group.completes && self.before_free.is_none() && self.requests.pools.len() == 1;
        let is_plain = is_served && self.possible_loan(&group).is_none();
        if !group.releases && (is_plain || is_unambiguous) {
            self.before_free = None;
            self.plain_group(&group);
            return group.end;
        }
        if self.difference.is_none() && self.copies_left == 0 {
            self.cannot_explain(start, TOO_AMBIGUOUS);
        }
        let known_retired = self.model.environment.retired.len();
        let mut causes = match self.difference {
            None => self.explain(&group),
            Some(_) => None,
        };
        if causes.is_none() && self.before_free.is_some() {
            let difference = (self.difference.clone(), self.identical);
            if let Some(earlier) = self.defer_last_free(&group) {
                group = earlier;
                causes = self.explain(&group);
            }
            if causes.is_none() {
                (self.difference, self.identical) = difference;
            }
        }
        let retired: Vec<u32> = self.model.environment.retired.iter().skip(known_retired).copied().collect();
        for pool in retired {
            self.push(OpKind::RetirePool, start, NONE, pool, 0);
        }
        self.before_free = None;
        let ended = causes.iter().flatten().filter_map(|cause| match cause {
            ReleaseCause::EndPool(pool) => Some(*pool),
            _ => None,
        });
        let ended: Vec<u32> = ended.collect();
        if ended.len() > 1 {
            self.ended_together.push(ended);
        }
        let causes = causes.unwrap_or_else(|| self.likely_causes(&group));
        self.note_causes(&group, &causes);
        group.end
    }

    /// Returns the pool that may have served the request of a group although it was made outside all pools
    /// (`MemPool(use_on_oom=True)`), and the lane of the request; `None` if it makes no difference.
    pub(crate) fn possible_loan(&self, group: &EventGroup) -> Option<(u32, u32)> {
        let request = group.request.filter(|request| request.action == Action::Alloc)?;
        if self.difference.is_some() || self.requests.pools.len() == 1 {
            return None;
        }
        let lane = self.lane(group.end - 1, &request);
        let Lane { pool, stream } = self.requests.lanes[lane as usize];
        let outside = lane_of(&self.requests.lanes, &self.requests.pools, PoolId::DEFAULT, stream);
        let is_new = (group.start..group.end).any(|at| self.action(at) == Some(Action::SegmentAlloc));
        if pool == 0 || is_new || self.model.would_take(request.size.0, outside).is_some() {
            return None;
        }
        let is_usual = self.model.would_take(request.size.0, lane) == Some(request.addr);
        (!is_usual || self.model.may_differ_outside()).then_some((pool, outside))
    }

    /// Returns the events from `at` on that allocate all blocks of a segment at given addresses, if there are
    /// such: PyTorch returns a pool to a checkpoint (`torch._C._cuda_setCheckpointPoolState`). Requests that
    /// happen to fill a segment are none.
    fn restored_segment(&mut self, at: usize) -> Option<Range<usize>> {
        if self.difference.is_some() || self.requests.pools.len() == 1 {
            return None;
        }
        let first = self.events.event(at).filter(|event| event.action == Action::Alloc)?;
        let lane = self.lane(at, &first);
        if self.requests.lanes[lane as usize].pool == 0 {
            return None;
        }
        let list = self.list_of_block(at, lane)?;
        let block = *self.model.block(self.model.free_block_at(list, first.addr)?);
        if block.prev != NONE || (!block.is_expandable() && block.next != NONE) {
            return None;
        }
        let mut end = first.addr;
        let of_segment = (at..).map_while(|index| self.events.event(index)).take_while(|event| {
            let belongs = event.action == Action::Alloc
                && event.addr == end
                && event.size.0 <= block.addr + block.size - end
                && event.size.0 > 0;
            end += if belongs { event.size.0 } else { 0 };
            belongs
        });
        let events = at..at + of_segment.count();
        let is_filled = end == block.addr + block.size || block.is_expandable();
        if events.is_empty() || !is_filled || !self.may_copy() {
            return None;
        }
        let mut trial = self.model.clone();
        trial.environment.cursor = at;
        for event in events.clone().filter_map(|index| self.events.event(index)) {
            trial.now = at as u32;
            trial.malloc(event.size.0, lane, None);
        }
        trial.environment.mismatch.is_some().then_some(events)
    }

    /// Returns the free list of the block that the event at `at` allocates: a restored block may be smaller
    /// than the requests of its size class.
    fn list_of_block(&self, at: usize, lane: u32) -> Option<u32> {
        let allocation = self.history.allocation_of(at, Action::Alloc)?;
        let region = self.history.regions.get(self.history.allocations[allocation].region as usize)?;
        Some(lane * 2 + u32::from(!region.small))
    }

    /// Allocates the blocks of a segment as recorded; returns the next event.
    fn restore(&mut self, events: Range<usize>) -> usize {
        let mut is_free: Vec<u64> = Vec::new();
        // Those that were free are freed at once, in order.
        let mut next = events.end;
        while let Some(event) = self.events.event(next)
            && event.action == Action::FreeRequested
            && self.action(next + 1) == Some(Action::FreeCompleted)
            && is_free.last().is_none_or(|last| *last < event.addr)
        {
            is_free.push(event.addr);
            next += 2;
        }
        let Some(first) = self.events.event(events.start) else { return events.end };
        let lane = self.lane(events.start, &first);
        let Some(list) = self.list_of_block(events.start, lane) else { return events.end };
        for at in events.clone() {
            let Some(event) = self.events.event(at) else { break };
            let Some(allocation) = self.allocation(at, Action::Alloc) else { continue };
            if is_free.binary_search(&event.addr).is_err() {
                self.push(OpKind::Alloc, at, allocation, lane, event.size.0);
            }
            self.with_model(at, |model, block_of| {
                if let Some(block) = model.place(list, event.addr, event.size.0) {
                    block_of[allocation as usize] = block;
                }
            });
        }
        events.end
    }

    /// Handles a request that was served without a release: it has only one explanation.
    fn plain_group(&mut self, group: &EventGroup) {
        let searched = group.start + group.leading;
        for at in group.start..searched {
            self.complete(at);
        }
        let Some(event) = group.request else {
            if searched < group.end {
                self.cannot_explain(searched, "memory was reserved without a request");
            }
            return;
        };
        let at = group.end - 1;
        let lane = self.lane(at, &event);
        let allocation = self.note_request(at, &event, lane);
        self.with_model(searched, |model, block_of| {
            // Settings may have changed since the frees that it noticed.
            model.now = at as u32;
            let block = model.malloc(event.size.0, lane, None);
            if let (Some(block), Some(of_life)) = (block, block_of.get_mut(allocation as usize)) {
                *of_life = block;
            }
        });
    }

    fn bounds(&self, start: usize) -> EventGroup {
        let mut group = EventGroup {
            start,
            end: start,
            request: None,
            leading: 0,
            releases: false,
            grows: false,
            completes: false,
        };
        while let Some(event) = self.events.event(group.end) {
            match event.action {
                Action::FreeCompleted => {
                    group.completes = true;
                    group.leading += usize::from(group.leading == group.end - start);
                }
                Action::SegmentFree | Action::SegmentUnmap => group.releases = true,
                Action::SegmentAlloc | Action::SegmentMap => group.grows = true,
                Action::Alloc | Action::Oom => {
                    group.request = Some(event);
                    group.end += 1;
                    break;
                }
                _ => break,
            }
            group.end += 1;
        }
        group
    }

    /// Returns the pool and stream of the request at `at`.
    pub(crate) fn lane(&self, at: usize, event: &Event) -> u32 {
        let context = self.snapshot.events.context(event.context);
        let allocation = self.history.allocation_of(at, event.action);
        let region = allocation
            .and_then(|allocation| self.owners.pool(self.history.allocations[allocation].region as usize));
        let pool = context.pool.or(region).unwrap_or_default();
        lane_of(&self.requests.lanes, &self.requests.pools, pool, context.stream)
    }

    /// Adds a request to the list and returns its allocation.
    fn note_request(&mut self, at: usize, event: &Event, lane: u32) -> u32 {
        let allocation = self.allocation(at, event.action).unwrap_or(NONE);
        let kind = if event.action == Action::Alloc { OpKind::Alloc } else { OpKind::Failed };
        if event.size.0 < MAX_REQUEST_BYTES && (allocation != NONE || kind == OpKind::Failed) {
            self.push(kind, at, allocation, lane, event.size.0);
        } else {
            self.cannot_explain(at, "no program can make this request");
        }
        allocation
    }

    /// Returns the segments that the recording and the model used at the first difference.
    fn suspects(&self) -> Vec<usize> {
        let Some(difference) = &self.difference else { return Vec::new() };
        let recorded = self.events.event(difference.event).and_then(|event| {
            let allocation = self.history.allocation_of(difference.event, event.action);
            let region = allocation.map(|allocation| self.history.allocations[allocation].region as usize);
            region.or(self.history.region_of(difference.event, event.action))
        });
        let modeled = difference.place.and_then(|addr| self.region_at(addr, difference.event));
        recorded.into_iter().chain(modeled).filter(|&region| !self.owners.is_sure(region)).collect()
    }

    /// Returns the segment at an address during an event.
    fn region_at(&self, addr: u64, event: usize) -> Option<usize> {
        let covers = |start: u64, size: u64| start <= addr && addr - start < size;
        let made = (0..event.min(self.history.len())).rev().find_map(|index| {
            let event = self.events.event(index)?;
            (event.action == Action::SegmentAlloc && covers(event.addr, event.size.0))
                .then(|| self.history.region_of(index, event.action))
        });
        let is_old = |region: &snapshot::Region| region.from_start && covers(region.addr, region.size.0);
        made.unwrap_or_else(|| self.history.regions.iter().position(is_old))
    }

    /// Adds the requests of a group with several explanations.
    fn note_causes(&mut self, group: &EventGroup, causes: &[ReleaseCause]) {
        let mut completions: Vec<usize> =
            (group.start..group.end).filter(|&at| self.action(at) == Some(Action::FreeCompleted)).collect();
        let mut note_completions = |verifier: &mut Self, count: usize| {
            for at in completions.drain(..count.min(completions.len())) {
                if let Some(allocation) = verifier.allocation(at, Action::FreeCompleted) {
                    verifier.push(OpKind::Complete, at, allocation, 0, 0);
                }
            }
        };
        for &cause in causes {
            match cause {
                ReleaseCause::Request { noticed, lane, lender, .. } => {
                    note_completions(self, noticed);
                    if let Some(lender) = lender {
                        self.requests.pools[lender as usize].lends = true;
                    }
                    if let Some(event) = group.request {
                        self.note_request(group.end - 1, &event, lane);
                    }
                }
                // Frees that are complete when everything is released were complete before, too: nothing was
                // requested in between.
                ReleaseCause::EmptyCache => {
                    note_completions(self, usize::MAX);
                    self.push(OpKind::EmptyCache, group.start, NONE, 0, 0);
                }
                ReleaseCause::EndPool(pool) => {
                    note_completions(self, usize::MAX);
                    self.push(OpKind::EndPool, group.start, NONE, pool, 0);
                }
            }
        }
        // Noticed while the request waited for all streams: complete for the requests that follow.
        note_completions(self, usize::MAX);
    }
}
