//! The world of a recorded run: the driver answers what it answered then, and what the model does is held against what
//! PyTorch did.

use crate::model::{Completion, Deed, Pool, World};
use crate::owners::{Assumed, Collection, Owners};
use crate::start::{AMPLE_RANGE, MOST_ADDRESS, is_plausible};
use snapshot::{Action, Event, History, Snapshot};

/// Where model and record part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    /// The event of the recording.
    pub(crate) event: usize,
    /// What the model did instead.
    pub(crate) deed: Deed,
    /// The model asked the driver for this many bytes just before, which the recording does not show.
    pub(crate) asked: Option<u64>,
}

/// What is known of the threshold of garbage collection: at least `low`, below `high`. The limit that it is a fraction
/// of is not in a snapshot, but every growth of the recorded run tells something about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Threshold {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// The recorded run as a world.
#[derive(Clone)]
pub(crate) struct Record<'a> {
    snapshot: &'a Snapshot,
    history: &'a History,
    pools: &'a [Pool],
    owners: &'a Owners,
    /// The next event.
    pub(crate) cursor: usize,
    pub(crate) mismatch: Option<Mismatch>,
    asked: Option<(usize, u64)>,
    limit: Option<u64>,
    /// `None`: garbage collection is off.
    pub(crate) threshold: Option<Threshold>,
    /// Whether a segment that goes when the threshold is unsure goes to garbage collection.
    pub(crate) trusts_collection: bool,
    /// Length of expandable segments, as far as known: at least the first, below the second. They end where the card's
    /// memory and an eighth more would.
    range_length: (u64, u64),
    /// Private pools that a release of everything has taken, by place.
    pub(crate) retired: Vec<u32>,
    /// Where the last of them was asked for.
    retired_at: Option<usize>,
}

impl<'a> Record<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        history: &'a History,
        pools: &'a [Pool],
        limit: Option<u64>,
        gc_threshold: f64,
        assumed: &'a Assumed,
    ) -> Record<'a> {
        let is_on = gc_threshold > 0.0 && (limit.is_some() || assumed.collection != Collection::Off);
        let threshold = is_on.then(|| match limit {
            Some(limit) => {
                let exact = (gc_threshold * limit as f64) as u64;
                Threshold { low: exact, high: exact.saturating_add(1) }
            }
            None => Threshold { low: 0, high: u64::MAX },
        });
        // Of expandable segments that were there before the recording nobody knows where they begin.
        let has_old_ranges = history.segments_at_start.iter().any(|segment| segment.expandable);
        let range_length = match assumed.total.filter(|_| !has_old_ranges) {
            Some(total) => {
                (total.saturating_add(total / 8), total.saturating_add(total / 8).saturating_add(1))
            }
            None => (0, u64::MAX),
        };
        Record {
            snapshot,
            history,
            pools,
            cursor: 0,
            mismatch: None,
            asked: None,
            limit,
            threshold,
            trusts_collection: true,
            range_length,
            owners: &assumed.owners,
            retired: Vec::new(),
            retired_at: None,
        }
    }

    /// An event of the recording.
    #[inline]
    pub(crate) fn event(&self, index: usize) -> Option<Event> {
        (index < self.history.len()).then(|| self.snapshot.events.get(self.history.rows.start + index))
    }

    fn next(&self) -> Option<Event> {
        self.event(self.cursor)
    }

    /// The private pool whose memory the event gives back, by place.
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

impl World for Record<'_> {
    fn allows(&mut self, reserved: u64, want: u64) -> bool {
        let total = reserved.saturating_add(want);
        match self.limit {
            _ if total >= MOST_ADDRESS => false,
            Some(limit) => total <= limit,
            // A limit that is not known shows in what follows: something is released, or the request fails.
            None => self.next().is_some_and(|event| {
                matches!(event.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc)
            }),
        }
    }

    fn malloc(&mut self, size: u64) -> Option<(u64, bool)> {
        match self.next().filter(|event| is_plausible(event.addr, event.size.0)) {
            Some(event) if event.action == Action::SegmentAlloc && event.size.0 == size => {
                Some((event.addr, false))
            }
            _ => {
                self.asked.get_or_insert((self.cursor, size));
                None
            }
        }
    }

    fn free(&mut self, _: u64, _: u64) {}

    fn reserve(&mut self, page: u64) -> Option<(u64, u64)> {
        let is_map =
            |event: &Event| event.action == Action::SegmentMap && is_plausible(event.addr, event.size.0);
        let Some(event) = self.next().filter(is_map) else {
            // Where the addresses are shows only when pages are mapped there.
            self.asked.get_or_insert((self.cursor, page));
            return None;
        };
        let known = self.knows_ranges().then(|| self.range_length.0.next_multiple_of(page));
        Some((event.addr, known.unwrap_or(AMPLE_RANGE)))
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
            self.asked.get_or_insert((self.cursor, size));
        }
        is_recorded
    }

    fn unmap(&mut self, _: u64) {}

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
        // Asked again at the same event: the model had nothing to release, so this is not what the recording shows.
        if self.retired_at.replace(self.cursor) == Some(self.cursor) {
            return None;
        }
        if !self.retired.contains(&pool) {
            self.retired.push(pool);
        }
        Some(pool)
    }

    fn deed(&mut self, deed: Deed) {
        if self.mismatch.is_some() {
            return;
        }
        let is_same = self.next().is_some_and(|event| {
            let stream = self.snapshot.events.context(event.context).stream;
            event.action == deed.action
                && (event.addr == deed.addr || event.action == Action::Oom)
                && event.size.0 == deed.size
                && stream == deed.stream
        });
        if is_same {
            self.cursor += 1;
            self.asked = None;
        } else {
            let asked = self.asked.filter(|(at, _)| *at == self.cursor).map(|(_, size)| size);
            self.mismatch = Some(Mismatch { event: self.cursor, deed, asked });
        }
    }
}
