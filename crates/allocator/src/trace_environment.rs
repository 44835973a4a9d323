//! Environment of a recorded run: the driver answers as it did then, and the events of the model are compared
//! with those of PyTorch.

use crate::model::{AMPLE_RANGE_BYTES, Completion, Environment, ModelEvent, ModelPool};
use crate::owners::{Assumed, Collection, Owners};
use crate::start::{ADDRESS_LIMIT, is_plausible};
use snapshot::{Action, Event, History, Snapshot};

/// Position at which model and recording differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    /// Event of the recording.
    pub(crate) event: usize,
    /// Event of the model instead.
    pub(crate) modeled: ModelEvent,
    /// Bytes that the model requested from the driver just before, which the recording does not show.
    pub(crate) requested: Option<u64>,
}

/// Bounds of the threshold of garbage collection: at least `low`, below `high`. A snapshot does not contain
/// the limit that it is a fraction of, but every growth of the recorded run narrows it down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Threshold {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// Recorded run as an environment.
#[derive(Clone)]
pub(crate) struct TraceEnvironment<'a> {
    snapshot: &'a Snapshot,
    history: &'a History,
    pools: &'a [ModelPool],
    owners: &'a Owners,
    /// Index of the next event.
    pub(crate) cursor: usize,
    pub(crate) mismatch: Option<Mismatch>,
    requested: Option<(usize, u64)>,
    limit: Option<u64>,
    collection: Collection,
    gc_threshold: f64,
    /// `None` if garbage collection is off.
    pub(crate) threshold: Option<Threshold>,
    /// Whether a segment released while the threshold is uncertain was released by garbage collection.
    pub(crate) trusts_collection: bool,
    /// Bounds of the length of expandable segments: at least the first, below the second. They extend over
    /// the card's memory plus one eighth.
    range_length: (u64, u64),
    /// Private pools that a release of all cached memory has taken, by index.
    pub(crate) retired: Vec<u32>,
    /// Event at which the last of them was requested.
    retired_at: Option<usize>,
}

impl<'a> TraceEnvironment<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        history: &'a History,
        pools: &'a [ModelPool],
        limit: Option<u64>,
        assumed: &'a Assumed,
    ) -> TraceEnvironment<'a> {
        // The start addresses of expandable segments created before the recording are unknown.
        let has_old_ranges = history.segments_at_start.iter().any(|segment| segment.expandable);
        let range_length = match assumed.total.filter(|_| !has_old_ranges) {
            Some(total) => {
                (total.saturating_add(total / 8), total.saturating_add(total / 8).saturating_add(1))
            }
            None => (0, u64::MAX),
        };
        TraceEnvironment {
            snapshot,
            history,
            pools,
            cursor: 0,
            mismatch: None,
            requested: None,
            limit,
            collection: assumed.collection,
            gc_threshold: 0.0,
            threshold: None,
            trusts_collection: true,
            range_length,
            owners: &assumed.owners,
            retired: Vec::new(),
            retired_at: None,
        }
    }

    /// Returns an event of the recording.
    #[inline]
    pub(crate) fn event(&self, index: usize) -> Option<Event> {
        (index < self.history.len()).then(|| self.snapshot.events.get(self.history.rows.start + index))
    }

    fn next(&self) -> Option<Event> {
        self.event(self.cursor)
    }

    /// Returns the private pool whose memory the event releases, by index.
    pub(crate) fn released_pool(&self, index: usize) -> Option<u32> {
        let event = self.event(index)?;
        if !matches!(event.action, Action::SegmentFree | Action::SegmentUnmap) {
            return None;
        }
        let region = self.history.region_of(index, event.action)?;
        let id = self.owners.pool(region)?;
        let place = self.pools.iter().position(|pool| pool.id == id)?;
        (place > 0).then_some(place as u32)
    }
}

impl Environment for TraceEnvironment<'_> {
    fn allows(&mut self, reserved: u64, want: u64) -> bool {
        let total = reserved.saturating_add(want);
        match self.limit {
            _ if total >= ADDRESS_LIMIT => false,
            Some(limit) => total <= limit,
            // An unknown limit shows in the next event: something is released, or the request fails.
            None => self.next().is_some_and(|event| {
                matches!(event.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc)
            }),
        }
    }

    fn knows_limit(&self) -> bool {
        self.limit.is_some()
    }

    fn malloc(&mut self, size: u64) -> Option<(u64, bool)> {
        match self.next().filter(|event| is_plausible(event.addr, event.size.0)) {
            Some(event) if event.action == Action::SegmentAlloc && event.size.0 == size => {
                Some((event.addr, false))
            }
            _ => {
                self.requested.get_or_insert((self.cursor, size));
                None
            }
        }
    }

    fn free(&mut self, _: u64, _: u64) {}

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        let is_map =
            |event: &Event| event.action == Action::SegmentMap && is_plausible(event.addr, event.size.0);
        let Some(event) = self.next().filter(is_map) else {
            // The addresses become known only when pages are mapped.
            self.requested.get_or_insert((self.cursor, page));
            return None;
        };
        let known = self.knows_ranges().then(|| self.range_length.0.next_multiple_of(page));
        Some((event.addr, known.unwrap_or(AMPLE_RANGE_BYTES)))
    }

    fn knows_ranges(&self) -> bool {
        self.range_length.1 - self.range_length.0 <= 1
    }

    fn takes(&self, addr: u64) -> bool {
        let is_use = |action| matches!(action, Action::Alloc | Action::SegmentFree);
        self.next().is_some_and(|event| is_use(event.action) && event.addr == addr)
    }

    fn reaches(&mut self, page: u64, length: u64, addr: u64) -> bool {
        let (known, too_long) = self.range_length;
        if length <= known || self.knows_ranges() {
            return length <= known.next_multiple_of(page);
        }
        if length >= too_long {
            return false;
        }
        match self.next() {
            Some(event) if event.action == Action::SegmentMap && event.addr == addr => {
                self.range_length.0 = length;
                true
            }
            Some(event) if event.action == Action::SegmentMap => {
                self.range_length.1 = length;
                false
            }
            _ => true,
        }
    }

    fn map(&mut self, addr: u64, size: u64) -> bool {
        let is_recorded = self.next().is_some_and(|event| {
            (event.action, event.addr, event.size.0) == (Action::SegmentMap, addr, size)
                && is_plausible(addr, size)
        });
        if !is_recorded {
            self.requested.get_or_insert((self.cursor, size));
        }
        is_recorded
    }

    fn unmap(&mut self, _: u64) {}

    fn set_gc_threshold(&mut self, threshold: f64) {
        if threshold == self.gc_threshold {
            return;
        }
        self.gc_threshold = threshold;
        let is_on = threshold > 0.0 && (self.limit.is_some() || self.collection != Collection::Off);
        self.threshold = is_on.then(|| match self.limit {
            Some(limit) => {
                let exact = (threshold * limit as f64) as u64;
                Threshold { low: exact, high: exact.saturating_add(1) }
            }
            None => Threshold { low: 0, high: u64::MAX },
        });
    }

    fn collects(&self) -> bool {
        self.threshold.is_some()
    }

    fn is_above_threshold(&mut self, reserved: u64, victim: u64) -> bool {
        let next = self.next();
        let Some(threshold) = &mut self.threshold else { return false };
        if reserved <= threshold.low {
            return false;
        }
        if reserved >= threshold.high {
            return true;
        }
        let goes = next.is_some_and(|event| event.action == Action::SegmentFree && event.addr == victim);
        if goes && self.trusts_collection {
            threshold.high = reserved;
            true
        } else {
            threshold.low = reserved;
            false
        }
    }

    fn next_completion(&mut self) -> Completion {
        match self.next() {
            Some(event) if event.action == Action::FreeCompleted => Completion::Next(event.addr),
            _ => Completion::Done,
        }
    }

    fn next_retired_pool(&mut self) -> Option<u32> {
        if self.mismatch.is_some() {
            return None;
        }
        let pool = self.released_pool(self.cursor)?;
        // Called again at the same event: the model had nothing to release, so this is not what the recording
        // shows.
        if self.retired_at.replace(self.cursor) == Some(self.cursor) {
            return None;
        }
        if !self.retired.contains(&pool) {
            self.retired.push(pool);
        }
        Some(pool)
    }

    fn on_event(&mut self, modeled: ModelEvent) {
        if self.mismatch.is_some() {
            return;
        }
        let is_same = self.next().is_some_and(|event| {
            let stream = self.snapshot.events.context(event.context).stream;
            event.action == modeled.action
                && (event.addr == modeled.addr || event.action == Action::Oom)
                && event.size.0 == modeled.size
                && stream == modeled.stream
        });
        if is_same {
            self.cursor += 1;
            self.requested = None;
        } else {
            let requested = self.requested.filter(|(at, _)| *at == self.cursor).map(|(_, size)| size);
            self.mismatch = Some(Mismatch { event: self.cursor, modeled, requested });
        }
    }
}
