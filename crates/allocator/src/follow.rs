//! Follows a recorded run with the model and compares every decision.
//!
//! A trace shows what happened, not why: a released segment may have gone to `empty_cache()`, to a request that found
//! no memory, to garbage collection or to the end of a pool. The events between two calls of the program are one *group*;
//! each explanation of a group is tried on a copy of the model, and the first that gives just the recorded events is
//! kept. What the program asked for ([`Requests`]) comes out on the way.

use crate::conf::Conf;
use crate::difference::{self, Difference};
use crate::explain::{Cause, TOO_AMBIGUOUS};
use crate::model::{Model, NONE};
use crate::owners::{Assumed, Collection, Owners};
use crate::record::{Record, Threshold};
use crate::requests::{Op, OpKind, Requests, lanes};
use crate::rules::{Release, Rules};
use crate::start::{lane_of, lay_out};
use rustc_hash::FxHashMap;
use snapshot::{Action, Event, History, Snapshot, StackId};

/// Requests from this size on are refused before PyTorch looks for memory.
const MOST_REQUESTED: u64 = 1 << 60;

/// What following a recording gives.
pub(crate) struct Followed {
    pub(crate) requests: Requests,
    /// Events that the model did exactly as PyTorch did.
    pub(crate) identical: usize,
    pub(crate) difference: Option<Difference>,
    /// Regions whose pool may be another one than assumed, if there is a difference.
    pub(crate) suspects: Vec<usize>,
    /// Pools that ended in one group of events, by place.
    pub(crate) ended_together: Vec<Vec<u32>>,
    /// Requests that were served only after everything had been released.
    pub(crate) retries: u64,
    pub(crate) threshold: Option<Threshold>,
    /// The most that was reserved or asked for with success, where a request for more was refused.
    pub(crate) refused_above: Option<u64>,
}

impl Followed {
    /// How far the model came: the end is further than the last event.
    pub(crate) fn progress(&self) -> usize {
        self.identical + usize::from(self.difference.is_none())
    }
}

/// Rows that may be copied for trials, all together: a file made to be ambiguous everywhere must not take forever.
pub(crate) const COPY_BUDGET: usize = 100_000_000;

/// The terms under which a run took place.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Terms {
    pub(crate) conf: Conf,
    pub(crate) release: Release,
    pub(crate) rules: Rules,
    pub(crate) limit: Option<u64>,
}

/// Follows the history of a device.
pub(crate) fn follow(
    snapshot: &Snapshot,
    history: &History,
    terms: &Terms,
    assumed: &Assumed,
    copies_left: &mut usize,
) -> Followed {
    let Terms { conf, release, rules, limit } = terms;
    let (lanes, pools) = lanes(snapshot, history, *release, &assumed.owners);
    let record = Record::new(snapshot, history, &pools, *limit, conf.gc_threshold, assumed);
    let mut model = Model::new(record, conf.clone(), *rules, &lanes, &pools);
    let block_of =
        lay_out(&mut model, snapshot, history, &assumed.owners, &lanes, &pools, conf.large_segment);
    let mut follower = Follower {
        snapshot,
        history,
        owners: &assumed.owners,
        collection: assumed.collection,
        events: model.world.clone(),
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
    follower.run();
    *copies_left = follower.copies_left;
    Followed {
        suspects: follower.suspects(),
        ended_together: follower.ended_together,
        identical: follower.identical,
        retries: follower.model.counts.retries,
        threshold: follower.model.world.threshold,
        refused_above: follower.model.counts.refused.then_some(follower.model.counts.most_granted),
        difference: follower.difference,
        requests: follower.requests,
    }
}

pub(crate) struct Follower<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) history: &'a History,
    owners: &'a Owners,
    pub(crate) collection: Collection,
    /// For looking at events only.
    pub(crate) events: Record<'a>,
    pub(crate) requests: Requests,
    /// Stays as it was at the first difference.
    pub(crate) model: Model<Record<'a>>,
    /// The model's block of each life.
    pub(crate) block_of: Vec<u32>,
    pub(crate) identical: usize,
    pub(crate) difference: Option<Difference>,
    /// Rows that trials may still copy.
    pub(crate) copies_left: usize,
    ended_together: Vec<Vec<u32>>,
    /// The model before the last free, and the event of that, where what follows may have completed it.
    before_free: Option<(Model<Record<'a>>, usize)>,
    /// Whether a stack goes through `empty_cache`.
    pub(crate) empties: FxHashMap<StackId, bool>,
}

/// The events of a group: those of one call, or of several that leave no event of their own.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The request that ends it.
    pub(crate) request: Option<Event>,
    /// Completed frees at its beginning.
    pub(crate) leading: usize,
    pub(crate) releases: bool,
    pub(crate) completes: bool,
}

impl<'a> Follower<'a> {
    fn run(&mut self) {
        let mut at = 0;
        // The history may begin inside a call: what it completes is applied as it stands.
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

    /// PyTorch notes the active bytes when a snapshot is taken; with private pools it may be those of one of them.
    fn check_active(&mut self, at: usize, event: &Event) {
        let active = self.model.counts.active;
        if self.difference.is_none() && active != event.size.0 && self.requests.pools.len() == 1 {
            self.difference = Some(difference::active(at, event.size.0, active));
        }
    }

    fn push(&mut self, kind: OpKind, at: usize, life: u32, lane: u32, size: u64) {
        // What completes while a request waits for all streams comes after it: time does not run backwards.
        let event = self.requests.ops.last().map_or(0, |last| last.event).max(at as u32);
        self.requests.ops.push(Op { kind, lane, life, event, size });
    }

    pub(crate) fn life(&self, at: usize, action: Action) -> Option<u32> {
        self.history.life_of(at, action).map(|life| life as u32)
    }

    /// Does something to the model, as long as it has followed the record so far.
    fn with_model(&mut self, at: usize, act: impl FnOnce(&mut Model<Record<'a>>, &mut [u32])) {
        if self.difference.is_some() {
            return;
        }
        self.model.now = at as u32;
        self.model.world.cursor = at;
        act(&mut self.model, &mut self.block_of);
        if let Some(mismatch) = self.model.world.mismatch {
            self.identical = mismatch.event;
            self.difference = Some(difference::at_event(&self.model, &self.events, &mismatch));
        }
    }

    fn free(&mut self, at: usize, event: &Event) -> usize {
        // Both events of an ordinary free come from one call. A later call may complete a free that had to wait, too.
        let at_once = self.events.event(at + 1).is_some_and(|next| {
            next.action == Action::FreeCompleted && next.addr == event.addr && next.stack == event.stack
        });
        let next = at + 1 + usize::from(at_once);
        let Some(life) = self.life(at, Action::FreeRequested) else {
            self.cannot_follow(at, "it frees a block that the history does not have");
            return next;
        };
        self.push(if at_once { OpKind::Free } else { OpKind::FreeLater }, at, life, 0, 0);
        let block = self.block_of[life as usize];
        if block == NONE {
            self.cannot_follow(at, "it frees a block that the state before the history has no place for");
            return next;
        }
        let may_have_waited = || {
            let following = self.bounds(next);
            following.releases || following.request.is_some_and(|request| request.action == Action::Oom)
        };
        if at_once && self.difference.is_none() && may_have_waited() && self.may_copy() {
            self.before_free = Some((self.model.clone(), at));
        }
        self.with_model(at, |model, _| model.free(block, (!at_once).then_some(life)));
        next
    }

    /// Whether there is budget for one more copy of the model; takes it.
    pub(crate) fn may_copy(&mut self) -> bool {
        self.copies_left = self.copies_left.saturating_sub(self.model.rows() + 64);
        self.copies_left > 0
    }

    /// The free just before a group may have had to wait for the call that made the group. Goes back to that: the group
    /// then begins with its completion.
    pub(crate) fn defer_last_free(&mut self, group: &Group) -> Option<Group> {
        let (model, at) = self.before_free.take()?;
        if at + 2 != group.start {
            return None;
        }
        let life = self.life(at, Action::FreeRequested)?;
        let block = self.block_of[life as usize];
        self.model = model;
        self.difference = None;
        self.with_model(at, |model, _| model.free(block, Some(life)));
        let free = self.requests.ops.iter_mut().rev().find(|op| op.life == life)?;
        free.kind = OpKind::FreeLater;
        Some(Group { start: group.start - 1, leading: group.leading + 1, completes: true, ..*group })
    }

    fn cannot_follow(&mut self, at: usize, why: &str) {
        if self.difference.is_none() {
            self.difference = Some(difference::unexplained(at, why));
        }
    }

    /// A completed free of a block that waits for another stream.
    fn complete(&mut self, at: usize) {
        let Some(life) = self.life(at, Action::FreeCompleted) else { return };
        self.push(OpKind::Complete, at, life, 0, 0);
        let block = self.block_of[life as usize];
        self.with_model(at, |model, _| {
            if block != NONE {
                model.complete_pending(block, life);
            }
        });
    }

    fn group(&mut self, start: usize) -> usize {
        let group = self.bounds(start);
        if group.request.is_some_and(|request| request.size.0 >= MOST_REQUESTED) {
            self.cannot_follow(group.end - 1, "no program can ask for this much");
            return group.end;
        }
        let is_served = group.request.is_none_or(|request| request.action == Action::Alloc);
        let is_unambiguous = !group.completes && self.before_free.is_none() && self.requests.pools.len() == 1;
        if !group.releases && (is_served || is_unambiguous) {
            self.before_free = None;
            self.plain_group(&group);
            return group.end;
        }
        if self.difference.is_none() && self.copies_left == 0 {
            self.cannot_follow(start, TOO_AMBIGUOUS);
        }
        let known_retired = self.model.world.retired.len();
        let mut group = group;
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
        let retired: Vec<u32> = self.model.world.retired.iter().skip(known_retired).copied().collect();
        for pool in retired {
            self.push(OpKind::RetirePool, start, NONE, pool, 0);
        }
        self.before_free = None;
        let ended = causes.iter().flatten().filter_map(|cause| match cause {
            Cause::EndPool(pool) => Some(*pool),
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

    /// A request that was served without anything being released: there is but one explanation.
    fn plain_group(&mut self, group: &Group) {
        let searched = group.start + group.leading;
        for at in group.start..searched {
            self.complete(at);
        }
        let Some(event) = group.request else {
            if searched < group.end {
                self.cannot_follow(searched, "memory was reserved for no request");
            }
            return;
        };
        let at = group.end - 1;
        let lane = self.lane(at, &event);
        let life = self.note_request(at, &event, lane);
        self.with_model(searched, |model, block_of| {
            let block = model.malloc(event.size.0, lane, None);
            if let (Some(block), Some(of_life)) = (block, block_of.get_mut(life as usize)) {
                *of_life = block;
            }
        });
    }

    fn bounds(&self, start: usize) -> Group {
        let mut group =
            Group { start, end: start, request: None, leading: 0, releases: false, completes: false };
        while let Some(event) = self.events.event(group.end) {
            match event.action {
                Action::FreeCompleted => {
                    group.completes = true;
                    group.leading += usize::from(group.leading == group.end - start);
                }
                Action::SegmentFree | Action::SegmentUnmap => group.releases = true,
                Action::SegmentAlloc | Action::SegmentMap => {}
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

    /// Pool and stream of the request at `at`.
    pub(crate) fn lane(&self, at: usize, event: &Event) -> u32 {
        let context = self.snapshot.events.context(event.context);
        let life = self.history.life_of(at, event.action);
        let region = life.and_then(|life| self.owners.pool(self.history.lives[life].region as usize));
        let pool = context.pool.or(region).unwrap_or_default();
        lane_of(&self.requests.lanes, &self.requests.pools, pool, context.stream)
    }

    /// Adds a request to the list; the life that it begins.
    fn note_request(&mut self, at: usize, event: &Event, lane: u32) -> u32 {
        let life = self.life(at, event.action).unwrap_or(NONE);
        let kind = if event.action == Action::Alloc { OpKind::Alloc } else { OpKind::Failed };
        if event.size.0 < MOST_REQUESTED && (life != NONE || kind == OpKind::Failed) {
            self.push(kind, at, life, lane, event.size.0);
        } else {
            self.cannot_follow(at, "no program can ask for this");
        }
        life
    }

    /// The segments that the recording and the model used at the first difference.
    fn suspects(&self) -> Vec<usize> {
        let Some(difference) = &self.difference else { return Vec::new() };
        let recorded = self.events.event(difference.event).and_then(|event| {
            let life = self.history.life_of(difference.event, event.action);
            let region = life.map(|life| self.history.lives[life].region as usize);
            region.or(self.history.region_of(difference.event, event.action))
        });
        let modelled = difference.place.and_then(|addr| self.region_at(addr, difference.event));
        recorded.into_iter().chain(modelled).filter(|&region| !self.owners.is_sure(region)).collect()
    }

    /// The segment that lies at an address when an event happens.
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

    /// Adds what the program did in a group with several explanations.
    fn note_causes(&mut self, group: &Group, causes: &[Cause]) {
        let mut completions: Vec<usize> =
            (group.start..group.end).filter(|&at| self.action(at) == Some(Action::FreeCompleted)).collect();
        let mut note_completions = |follower: &mut Self, count: usize| {
            for at in completions.drain(..count.min(completions.len())) {
                if let Some(life) = follower.life(at, Action::FreeCompleted) {
                    follower.push(OpKind::Complete, at, life, 0, 0);
                }
            }
        };
        for &cause in causes {
            match cause {
                Cause::Request { noticed, lane, .. } => {
                    note_completions(self, noticed);
                    if let Some(event) = group.request {
                        self.note_request(group.end - 1, &event, lane);
                    }
                }
                // What is complete when everything is released was so before, too: nothing was asked in between.
                Cause::EmptyCache => {
                    note_completions(self, usize::MAX);
                    self.push(OpKind::EmptyCache, group.start, NONE, 0, 0);
                }
                Cause::EndPool(pool) => {
                    note_completions(self, usize::MAX);
                    self.push(OpKind::EndPool, group.start, NONE, pool, 0);
                }
            }
        }
        // Noticed while the request waited for all streams: complete for whatever comes next.
        note_completions(self, usize::MAX);
    }
}
