//! Search for the causes of a group of events that releases memory.

use crate::difference;
use crate::model::{Model, NONE};
use crate::owners::Collection;
use crate::trace_environment::{Mismatch, TraceEnvironment};
use crate::verify::{EventGroup, Verifier};
use snapshot::{Action, StackId};

/// Cause of a part of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReleaseCause {
    /// Request at the end of the group. `noticed` completed frees at its beginning were noticed before the
    /// request searched.
    Request {
        noticed: usize,
        /// Whether garbage collection released what the recording shows, if its threshold is uncertain.
        trusts_collection: bool,
        /// Pool and stream.
        lane: u32,
        /// Whether a pool was being filled, so that nothing could be released.
        gated: bool,
        /// Pool that served the request although it was made outside it, by index.
        lender: Option<u32>,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// Deletion of a `MemPool`.
    EndPool(u32),
}

/// Reason for giving up on a recording.
pub(crate) const TOO_AMBIGUOUS: &str = "too many groups of events have more than one explanation";

/// Maximum number of causes in one group: parts of a deleted pool are released one by one.
const MAX_CAUSES_PER_GROUP: usize = 64;

/// Attempt that came furthest, for the report of a difference.
type Nearest<'a> = Option<(Model<TraceEnvironment<'a>>, Mismatch)>;

/// Successful attempt: the model after it, and the block that the request got.
type SuccessfulAttempt<'a> = (Model<TraceEnvironment<'a>>, Option<u32>);

/// Circumstances of a request that the recording does not show.
#[derive(Clone, Copy)]
struct Circumstances {
    /// Pool and stream.
    lane: u32,
    /// Whether nothing could be released.
    gated: bool,
    /// Pool that served the request although it was made outside it, by index.
    lender: Option<u32>,
}

impl<'a> Verifier<'a> {
    /// Finds causes that give exactly the recorded events, and advances the model by them. Without any,
    /// records the difference of the attempt that came furthest.
    pub(crate) fn explain(&mut self, group: &EventGroup) -> Option<Vec<ReleaseCause>> {
        let mut causes = Vec::new();
        let mut nearest = None;
        let model = self.model.clone();
        match self.search(group, model, group.start, &mut causes, &mut nearest) {
            Some((model, block)) => {
                self.model = model;
                if let (Some(block), Some(request)) = (block, group.request)
                    && let Some(allocation) = self.allocation(group.end - 1, request.action)
                {
                    self.block_of[allocation as usize] = block;
                }
                Some(causes)
            }
            None => {
                self.identical = nearest.as_ref().map_or(group.start, |(_, mismatch)| mismatch.event);
                self.difference = Some(match nearest {
                    _ if self.copies_left == 0 => difference::unexplained(group.start, TOO_AMBIGUOUS),
                    Some((model, mismatch)) => difference::at_event(&model, &self.events, &mismatch),
                    None => difference::unexplained(group.start, "no action of a program explains it"),
                });
                None
            }
        }
    }

    /// Explains the rest of a group, from the event `at` on.
    fn search(
        &mut self,
        group: &EventGroup,
        model: Model<TraceEnvironment<'a>>,
        at: usize,
        causes: &mut Vec<ReleaseCause>,
        nearest: &mut Nearest<'a>,
    ) -> Option<SuccessfulAttempt<'a>> {
        if at == group.end {
            return Some((model, None));
        }
        if causes.len() == MAX_CAUSES_PER_GROUP {
            return None;
        }
        for cause in self.candidates(group, at, &model) {
            self.copies_left = self.copies_left.saturating_sub(model.rows() + 8 * (group.end - at) + 64);
            if self.copies_left == 0 {
                return None;
            }
            let mut trial = model.clone();
            let block = self.attempt(&mut trial, group, at, cause);
            if let Some(mismatch) = trial.environment.mismatch {
                if nearest.as_ref().is_none_or(|(_, furthest)| mismatch.event > furthest.event) {
                    *nearest = Some((trial, mismatch));
                }
                continue;
            }
            let reached = trial.environment.cursor;
            let is_request = matches!(cause, ReleaseCause::Request { .. });
            if reached == at || (is_request && reached < group.end) {
                continue;
            }
            causes.push(cause);
            if is_request {
                return Some((trial, block));
            }
            if let Some(found) = self.search(group, trial, reached, causes, nearest) {
                return Some(found);
            }
            causes.pop();
        }
        None
    }

    fn attempt(
        &self,
        trial: &mut Model<TraceEnvironment<'a>>,
        group: &EventGroup,
        at: usize,
        cause: ReleaseCause,
    ) -> Option<u32> {
        trial.now = (group.end - 1) as u32;
        trial.environment.cursor = at;
        match cause {
            ReleaseCause::EmptyCache => trial.release_all(),
            ReleaseCause::EndPool(pool) => trial.end_pool(pool),
            ReleaseCause::Request { noticed, trusts_collection, lane, gated, lender } => {
                if let Some(lender) = lender {
                    trial.set_lends(lender);
                }
                trial.environment.trusts_collection = trusts_collection;
                for completed in at..at + noticed {
                    let allocation = self.allocation(completed, Action::FreeCompleted)?;
                    let block = self.block_of[allocation as usize];
                    if block != NONE {
                        trial.complete_pending(block, allocation);
                    }
                }
                return trial.malloc(group.request?.size.0, lane, Some(gated));
            }
        }
        None
    }

    /// Returns the possible causes of the events from `at` on, most likely first.
    fn candidates(
        &mut self,
        group: &EventGroup,
        at: usize,
        model: &Model<TraceEnvironment<'a>>,
    ) -> Vec<ReleaseCause> {
        let mut candidates = Vec::new();
        if group.request.is_some() {
            // The remaining completed frees were noticed while the request waited for all streams. That is
            // rare, so the case in which all completed before the search comes first.
            let leading =
                (at..group.end).take_while(|&at| self.action(at) == Some(Action::FreeCompleted)).count();
            let unsure =
                model.environment.threshold.is_some_and(|threshold| threshold.high - threshold.low > 1);
            for Circumstances { lane, gated, lender } in self.circumstances(group) {
                let likely = self.collection == Collection::Likely;
                for trusts_collection in [likely, !likely] {
                    if trusts_collection == likely || unsure {
                        let request = |noticed| ReleaseCause::Request {
                            noticed,
                            trusts_collection,
                            lane,
                            gated,
                            lender,
                        };
                        candidates.extend((0..=leading).rev().take(MAX_TRIED_SPLITS).map(request));
                    }
                }
            }
        }
        let first_release = (at..group.end)
            .find(|&at| matches!(self.action(at), Some(Action::SegmentFree | Action::SegmentUnmap)));
        let Some(first_release) = first_release else {
            candidates.push(ReleaseCause::EmptyCache);
            return candidates;
        };
        let is_asked_for = self.was_requested_by_program(group, first_release, model.counts.reserved);
        let place = if is_asked_for { 0 } else { candidates.len() };
        candidates.insert(place, ReleaseCause::EmptyCache);
        if let Some(pool) = self.events.released_pool(first_release) {
            candidates.push(ReleaseCause::EndPool(pool));
        }
        candidates
    }

    /// Returns the pools in which the request of a group may have been made, and whether nothing could be
    /// released, most likely first. Whether another pool was being filled meanwhile is never recorded.
    fn circumstances(&self, group: &EventGroup) -> Vec<Circumstances> {
        let Some(request) = group.request else { return Vec::new() };
        let lane = self.lane(group.end - 1, &request);
        let gated = self.model.is_gated(lane * 2);
        let mut circumstances = vec![Circumstances { lane, gated, lender: None }];
        if self.requests.pools.len() > 1 {
            circumstances.push(Circumstances { lane, gated: !gated, lender: None });
        }
        if let Some((lender, lane)) = self.possible_loan(group) {
            circumstances.push(Circumstances { lane, gated: false, lender: Some(lender) });
        }
        // A failed allocation has no address that shows its pool.
        let context = self.snapshot.events.context(request.context);
        if request.action == Action::Oom && context.pool.is_none() {
            let others = self
                .requests
                .lanes
                .iter()
                .enumerate()
                .filter(|&(other, of)| of.stream == context.stream && other as u32 != lane);
            let in_pool =
                |(other, _): (usize, _)| Circumstances { lane: other as u32, gated: true, lender: None };
            circumstances.extend(others.take(MAX_TRIED_POOLS).map(in_pool));
        }
        circumstances
    }

    /// Returns causes of a group that cannot be tried because the model has already diverged.
    pub(crate) fn likely_causes(&mut self, group: &EventGroup) -> Vec<ReleaseCause> {
        let request = self.circumstances(group).first().map(|of| ReleaseCause::Request {
            noticed: group.leading,
            trusts_collection: true,
            lane: of.lane,
            gated: of.gated,
            lender: None,
        });
        let first_release = (group.start..group.end)
            .find(|&at| matches!(self.action(at), Some(Action::SegmentFree | Action::SegmentUnmap)));
        let emptied = first_release.filter(|&first| {
            group.request.is_none() || self.was_requested_by_program(group, first, self.model.counts.reserved)
        });
        emptied.map(|_| ReleaseCause::EmptyCache).into_iter().chain(request).collect()
    }

    /// Returns whether the program asked for the release, rather than a request that found no memory. Both
    /// give the same events; only the first would happen again under other settings.
    fn was_requested_by_program(&mut self, group: &EventGroup, first_release: usize, reserved: u64) -> bool {
        let Some(request) = group.request else { return true };
        let stack = self.events.event(first_release).map_or(StackId::EMPTY, |event| event.stack);
        if stack != StackId::EMPTY {
            return self.is_emptying(stack);
        }
        // Without a stack: a device that held more at another time did not run out of memory here.
        let want = self.model.segment_size(self.model.rounded(request.size.0));
        request.action == Action::Alloc && reserved.saturating_add(want) <= self.history.reserved_peak.bytes.0
    }

    fn is_emptying(&mut self, stack: StackId) -> bool {
        let snapshot = self.snapshot;
        *self.empties.entry(stack).or_insert_with(|| {
            snapshot.stacks.frames(stack).iter().any(|&frame| {
                let name = snapshot.strings.get(snapshot.stacks.frame(frame).function);
                name.contains("empty_cache") || name.contains("emptyCache")
            })
        })
    }
}

/// Maximum number of pools tried for a failed allocation.
const MAX_TRIED_POOLS: usize = 8;

/// Maximum number of ways tried to divide the completed frees at the beginning of a group.
const MAX_TRIED_SPLITS: usize = 16;
