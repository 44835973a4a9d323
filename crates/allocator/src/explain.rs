//! Why memory was released: the causes that a group of events can have, tried one after the other.

use crate::difference;
use crate::follow::{Follower, Group};
use crate::model::{Model, NONE};
use crate::owners::Collection;
use crate::record::{Mismatch, Record};
use snapshot::{Action, StackId};

/// One cause of a part of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The request at its end. So many of the completed frees at the beginning were noticed before it searched.
    Request {
        noticed: usize,
        /// Where the threshold of garbage collection is unsure: whether it released what the recording shows.
        trusts_collection: bool,
        /// Pool and stream.
        lane: u32,
        /// Whether it came while a pool was being filled, so that nothing could be released.
        gated: bool,
    },
    /// `torch.cuda.empty_cache()`
    EmptyCache,
    /// A `MemPool` went away.
    EndPool(u32),
}

/// Why a recording is not followed further.
pub(crate) const TOO_AMBIGUOUS: &str = "too many groups of events have more than one explanation";

/// More causes than this in one group are not looked for: parts of a pool that ends come one by one.
const MOST_CAUSES: usize = 64;

/// The attempt that came furthest, for the report of a difference.
type Nearest<'a> = Option<(Model<Record<'a>>, Mismatch)>;

/// A trial that worked: the model after it, and the block that the request got.
type Found<'a> = (Model<Record<'a>>, Option<u32>);

impl<'a> Follower<'a> {
    /// The causes that give just the recorded events. The model is then where they lead; without any, the difference of
    /// the attempt that came furthest is noted.
    pub(crate) fn explain(&mut self, group: &Group) -> Option<Vec<Cause>> {
        let mut causes = Vec::new();
        let mut nearest = None;
        let model = self.model.clone();
        match self.search(group, model, group.start, &mut causes, &mut nearest) {
            Some((model, block)) => {
                self.model = model;
                if let (Some(block), Some(request)) = (block, group.request)
                    && let Some(life) = self.life(group.end - 1, request.action)
                {
                    self.block_of[life as usize] = block;
                }
                Some(causes)
            }
            None => {
                self.identical = nearest.as_ref().map_or(group.start, |(_, mismatch)| mismatch.event);
                self.difference = Some(match nearest {
                    _ if self.copies_left == 0 => difference::unexplained(group.start, TOO_AMBIGUOUS),
                    Some((model, mismatch)) => difference::at_event(&model, &self.events, &mismatch),
                    None => difference::unexplained(group.start, "nothing that a program does explains it"),
                });
                None
            }
        }
    }

    /// Explains what is left of a group, from the event `at` on.
    fn search(
        &mut self,
        group: &Group,
        model: Model<Record<'a>>,
        at: usize,
        causes: &mut Vec<Cause>,
        nearest: &mut Nearest<'a>,
    ) -> Option<Found<'a>> {
        if at == group.end {
            return Some((model, None));
        }
        if causes.len() == MOST_CAUSES {
            return None;
        }
        for cause in self.candidates(group, at, &model) {
            self.copies_left = self.copies_left.saturating_sub(model.rows() + 8 * (group.end - at) + 64);
            if self.copies_left == 0 {
                return None;
            }
            let mut trial = model.clone();
            let block = self.attempt(&mut trial, group, at, cause);
            if let Some(mismatch) = trial.world.mismatch {
                if nearest.as_ref().is_none_or(|(_, furthest)| mismatch.event > furthest.event) {
                    *nearest = Some((trial, mismatch));
                }
                continue;
            }
            let reached = trial.world.cursor;
            let is_request = matches!(cause, Cause::Request { .. });
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

    fn attempt(&self, trial: &mut Model<Record<'a>>, group: &Group, at: usize, cause: Cause) -> Option<u32> {
        trial.now = (group.end - 1) as u32;
        trial.world.cursor = at;
        match cause {
            Cause::EmptyCache => trial.release_all(),
            Cause::EndPool(pool) => trial.end_pool(pool),
            Cause::Request { noticed, trusts_collection, lane, gated } => {
                trial.world.trusts_collection = trusts_collection;
                for completed in at..at + noticed {
                    let life = self.life(completed, Action::FreeCompleted)?;
                    let block = self.block_of[life as usize];
                    if block != NONE {
                        trial.complete_pending(block, life);
                    }
                }
                return trial.malloc(group.request?.size.0, lane, Some(gated));
            }
        }
        None
    }

    /// What may have caused the events from `at` on, the likeliest first.
    fn candidates(&mut self, group: &Group, at: usize, model: &Model<Record<'a>>) -> Vec<Cause> {
        let mut candidates = Vec::new();
        if group.request.is_some() {
            // The rest of the completed frees was noticed while the request waited for all streams. That is rare, so all
            // before the search comes first.
            let leading =
                (at..group.end).take_while(|&at| self.action(at) == Some(Action::FreeCompleted)).count();
            let unsure = model.world.threshold.is_some_and(|threshold| threshold.high - threshold.low > 1);
            for (lane, gated) in self.circumstances(group) {
                let likely = self.collection == Collection::Likely;
                for trusts_collection in [likely, !likely] {
                    if trusts_collection == likely || unsure {
                        let request = |noticed| Cause::Request { noticed, trusts_collection, lane, gated };
                        candidates.extend((0..=leading).rev().take(MOST_SPLITS).map(request));
                    }
                }
            }
        }
        let first_release = (at..group.end)
            .find(|&at| matches!(self.action(at), Some(Action::SegmentFree | Action::SegmentUnmap)));
        let Some(first_release) = first_release else {
            candidates.push(Cause::EmptyCache);
            return candidates;
        };
        let is_asked_for = self.was_asked_for(group, first_release, model.counts.reserved);
        let place = if is_asked_for { 0 } else { candidates.len() };
        candidates.insert(place, Cause::EmptyCache);
        if let Some(pool) = self.events.released_pool(first_release) {
            candidates.push(Cause::EndPool(pool));
        }
        candidates
    }

    /// Pools in which the request of a group may have been made, and whether nothing could be released; the likeliest
    /// first. Whether another pool was being filled meanwhile is never recorded.
    fn circumstances(&self, group: &Group) -> Vec<(u32, bool)> {
        let Some(request) = group.request else { return Vec::new() };
        let lane = self.lane(group.end - 1, &request);
        let gated = self.model.is_gated(lane * 2);
        let mut circumstances = vec![(lane, gated)];
        if self.requests.pools.len() > 1 {
            circumstances.push((lane, !gated));
        }
        // An allocation that failed has no address to tell its pool from.
        let context = self.snapshot.events.context(request.context);
        if request.action == Action::Oom && context.pool.is_none() {
            let others = self
                .requests
                .lanes
                .iter()
                .enumerate()
                .filter(|&(other, of)| of.stream == context.stream && other as u32 != lane);
            circumstances.extend(others.take(MOST_POOLS).map(|(other, _)| (other as u32, true)));
        }
        circumstances
    }

    /// Causes of a group that could not be tried, because the model has lost the track.
    pub(crate) fn likely_causes(&mut self, group: &Group) -> Vec<Cause> {
        let request = self.circumstances(group).first().map(|&(lane, gated)| Cause::Request {
            noticed: group.leading,
            trusts_collection: true,
            lane,
            gated,
        });
        let first_release = (group.start..group.end)
            .find(|&at| matches!(self.action(at), Some(Action::SegmentFree | Action::SegmentUnmap)));
        let emptied = first_release.filter(|&first| {
            group.request.is_none() || self.was_asked_for(group, first, self.model.counts.reserved)
        });
        emptied.map(|_| Cause::EmptyCache).into_iter().chain(request).collect()
    }

    /// Whether the program asked for the release, rather than a request that found no memory. Both give the same events;
    /// only the first would happen again under other settings.
    fn was_asked_for(&mut self, group: &Group, first_release: usize, reserved: u64) -> bool {
        let Some(request) = group.request else { return true };
        let stack = self.events.event(first_release).map_or(StackId::EMPTY, |event| event.stack);
        if stack != StackId::EMPTY {
            return self.is_emptying(stack);
        }
        // Without a stack: a device that held more at another time did not run out here.
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

/// Pools that are tried for an allocation that failed.
const MOST_POOLS: usize = 8;

/// Ways to divide the completed frees at the beginning of a group that are tried.
const MOST_SPLITS: usize = 16;
