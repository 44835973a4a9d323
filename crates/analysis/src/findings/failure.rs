//! The last allocation that failed: the state that it met, and what its step would have needed.

use crate::findings::finding::OomCause;
use crate::findings::layout::{Free, free_for, layout};
use crate::run::model::RunModel;
use crate::words::share;
use recording::Shortage;
use snapshot::{Bytes, FrameId, History};

pub(crate) const MIB: u64 = 1 << 20;
/// Less room than this share of the usable memory is none.
const MIN_ROOM_SHARE: f64 = 0.1;

/// A failed allocation.
pub(crate) struct OomFailure {
    pub(crate) event: usize,
    /// Failed allocations in all.
    pub(crate) count: u64,
    pub(crate) requested: Bytes,
    /// What CUDA reported as free.
    pub(crate) device_free: Bytes,
    pub(crate) reserved: Bytes,
    pub(crate) active: Bytes,
    pub(crate) allocated: Bytes,
    /// Free memory as this request could see it.
    pub(crate) free: Free,
    /// The line that made the request.
    pub(crate) line: Option<FrameId>,
    pub(crate) projection: Option<Projection>,
    /// What the driver said, if a recorder queried it.
    pub(crate) shortage: Option<Shortage>,
    /// What would have been reserved for the request.
    segment: Bytes,
    /// The most that had ever been reserved by then.
    reserved_before: Bytes,
}

impl OomFailure {
    pub(crate) fn new(model: &RunModel<'_>) -> Option<OomFailure> {
        let (snapshot, history) = (model.device.snapshot, &model.device.history);
        let event = *model.step_peaks.ooms.last()?;
        let record = snapshot.events.get(history.rows.start + event);
        let regions = layout(history, &model.step_peaks, event);
        let allocated = history.allocated_at(event).map(|allocation| allocation.size).sum();
        let line = model.device.site_of_event(event).frame().or_else(|| {
            // Inside `backward()` there is no stack; the block just before it knows the call.
            let row = history.first_allocated_from(event).checked_sub(1)?;
            let is_engine = model.device.roles.of(history.allocations[row].stack).without_python;
            if is_engine { model.frame_of_allocation(row) } else { None }
        });
        let mut failure = OomFailure {
            event,
            count: history.stats.ooms,
            requested: record.size,
            device_free: Bytes(record.addr),
            reserved: regions.iter().map(|now| now.reserved).sum(),
            // Blocks whose segment was not recorded are in use all the same.
            active: regions.iter().map(|now| now.active).sum::<Bytes>().max(allocated),
            allocated,
            free: free_for(history, &regions, record.size, snapshot.events.context(record.context).stream),
            line,
            shortage: model.device.recording.shortage.clone().filter(|said| said.device == history.device),
            projection: None,
            segment: segment_size(record.size),
            reserved_before: most_reserved(model, history, event),
        };
        failure.projection = project(model, &failure).filter(|step| step.needed > failure.usable());
        Some(failure)
    }

    /// Whether a limit refused what the device had.
    pub(crate) fn is_limited(&self) -> bool {
        match self.limit() {
            Some(limit) => self.reserved + self.segment > limit && self.device_free >= self.segment,
            None => self.device_free >= self.segment,
        }
    }

    /// The most that the process may have, where a recorder knew it. What is below the memory in use is
    /// not the limit.
    fn limit(&self) -> Option<Bytes> {
        self.shortage.as_ref().and_then(|said| said.limit).filter(|&limit| limit >= self.reserved)
    }

    /// Bytes of the device that other processes held.
    pub(crate) fn non_pytorch(&self) -> Bytes {
        self.shortage.iter().flat_map(|said| &said.others).map(|process| process.bytes).sum()
    }

    /// Whether the request would have succeeded without them.
    pub(crate) fn is_crowded_out(&self) -> bool {
        !self.is_limited()
            && self.cause() == OomCause::Capacity
            && self.non_pytorch() > Bytes::ZERO
            && self.device_free + self.non_pytorch() >= self.segment
    }

    /// What could still have been reserved, for certain.
    pub(crate) fn room_for_segments(&self) -> Bytes {
        if self.is_limited() { self.usable().saturating_sub(self.reserved) } else { self.device_free }
    }

    /// What PyTorch could have had in all: exact where the device was full, otherwise at least this.
    pub(crate) fn usable(&self) -> Bytes {
        if self.is_limited() {
            self.limit().unwrap_or(Bytes::ZERO).max(self.reserved).max(self.reserved_before)
        } else {
            self.reserved + self.device_free
        }
    }

    /// What PyTorch could have had in all, at most: one more segment was refused.
    pub(crate) fn usable_at_most(&self) -> Bytes {
        let is_guess = self.is_limited() && self.limit().is_none();
        if is_guess { (self.reserved + self.segment).max(self.usable()) } else { self.usable() }
    }

    /// Whether the limit is known well enough to calculate with.
    pub(crate) fn is_limit_known(&self) -> bool {
        self.usable_at_most().0 as f64 <= 1.25 * self.usable().0 as f64
    }

    /// Fragmentation where the request would have fitted in one piece, with room for the rest of the step. A
    /// memory that is nearly full fails sooner or later however it is arranged, and what private pools hold
    /// is not to be had.
    pub(crate) fn cause(&self) -> OomCause {
        let room = self.usable().saturating_sub(self.active).saturating_sub(self.free.private);
        let fits = room >= self.requested
            && share(room, self.usable()) >= MIN_ROOM_SHARE
            && self.largest_that_fits() < self.requested;
        if fits && self.projection.is_none() { OomCause::Fragmentation } else { OomCause::Capacity }
    }

    /// Free memory of private pools, if the request would have fitted into it.
    pub(crate) fn kept_by_pools(&self) -> Option<Bytes> {
        Some(self.free.private).filter(|&private| private >= self.requested)
    }

    /// The largest request that would have succeeded. It is less than the one that did not, whatever an upper
    /// bound says: free pages of expandable memory may be in use in part.
    pub(crate) fn largest_that_fits(&self) -> Bytes {
        let new_segment = Bytes(self.room_for_segments().0 / (2 * MIB) * (2 * MIB));
        let below = Bytes(self.requested.0.saturating_sub(1));
        if self.free.is_exact {
            self.free.largest.max(new_segment)
        } else {
            self.free.largest.max(new_segment).min(below)
        }
    }

    /// What was missing for this request alone.
    pub(crate) fn short(&self) -> Bytes {
        (self.active + self.requested).saturating_sub(self.usable())
    }
}

/// Size of the segment that PyTorch reserves to serve a request.
fn segment_size(size: Bytes) -> Bytes {
    match size.0 {
        size if size <= MIB => Bytes(2 * MIB),
        size if size < 10 * MIB => Bytes(20 * MIB),
        size => Bytes(size.div_ceil(2 * MIB).saturating_mul(2 * MIB)),
    }
}

/// The most that was reserved at any time before `event`.
fn most_reserved(model: &RunModel<'_>, history: &History, event: usize) -> Bytes {
    let start: Bytes =
        history.regions.iter().filter(|region| region.from_start).map(|region| region.size).sum();
    let (mut now, mut most) = (start, start);
    for segment in model.step_peaks.segments.iter().take_while(|segment| segment.event < event) {
        if segment.reserves {
            now += segment.bytes
        } else {
            now -= segment.bytes
        }
        most = most.max(now);
    }
    most
}

/// What the step that failed would have needed in the end, judged by the step before.
pub(crate) struct Projection {
    /// What it held, against the step before after as many allocations.
    pub(crate) times: f64,
    /// The peak of the step before.
    pub(crate) before: Bytes,
    pub(crate) needed: Bytes,
    /// What is there between steps.
    pub(crate) base: Bytes,
}

/// Compares the step that failed with the one before it, after the same number of allocations.
fn project(model: &RunModel<'_>, failure: &OomFailure) -> Option<Projection> {
    let (history, steps) = (&model.device.history, &model.device.steps);
    let begun = steps.bounds.partition_point(|&bound| bound <= failure.event);
    let (now, before) = (begun.checked_sub(1)?, begun.checked_sub(2)?);
    let (begin, previous) = (*steps.bounds.get(now)?, steps.bounds[before]);
    let begin_row = history.first_allocated_from(begin);
    let allocations = history.first_allocated_from(failure.event).checked_sub(begin_row)?;
    let same_place = history.first_allocated_from(previous) + allocations;
    let same_place = history.allocations.get(same_place).filter(|_| same_place < begin_row)?.alloc_event()?;
    let base = model.step_peaks.at_bounds.get(now).copied()?;
    let base_before = model.step_peaks.at_bounds.get(before).copied()?;
    let held: Bytes = history.allocated_at(same_place).map(|allocation| allocation.size).sum();
    let (grown, grown_before) = (failure.allocated.saturating_sub(base), held.saturating_sub(base_before));
    if grown_before.0 < MIB {
        return None;
    }
    let times = grown.0 as f64 / grown_before.0 as f64;
    let peak = model.step_peaks.steps.get(before)?.bytes;
    let needed = base + Bytes((peak.saturating_sub(base_before).0 as f64 * times) as u64);
    // A step that needs more than that already does something else than the one before.
    let is_alike = needed >= failure.active + failure.requested;
    is_alike.then_some(Projection { times, before: peak, needed, base })
}
