//! Events that change what is allocated, and the highest and lowest allocated bytes of any interval.

use analysis::Device;
use snapshot::Action;
use std::ops::Range;

/// Calls `change(event, row, is_alloc)` for each of `events` that allocates or frees a block, in order.
pub(crate) fn changes(device: &Device<'_>, events: Range<usize>, mut change: impl FnMut(usize, usize, bool)) {
    let history = &device.history;
    let implied = history.implied_ends();
    let first = implied.partition_point(|&(event, _)| (event as usize) < events.start);
    let mut implied = implied[first..].iter().peekable();
    let rows = history.rows.start + events.start..history.rows.start + events.end;
    for (event, (action, _)) in events.zip(device.snapshot.events.actions(rows)) {
        // The free of this block was not recorded; the event shows that it had happened.
        while let Some(&(_, row)) = implied.next_if(|&&(at, _)| at as usize == event) {
            if history.allocations[row as usize].free_event() == Some(event) {
                change(event, row as usize, false);
            }
        }
        let Some(row) = history.allocation_of(event, action) else { continue };
        match action {
            Action::Alloc => change(event, row, true),
            _ if history.allocations[row].free_event() == Some(event) => change(event, row, false),
            _ => {}
        }
    }
}

/// Positions that one [`Granule`] of a [`Curve`] covers.
const GRANULE_POSITIONS: usize = 64;

/// Allocated bytes over all positions, with the extremes of each granule of [`GRANULE_POSITIONS`], so that
/// the extremes of an interval are found without a pass over its events.
pub(crate) struct Curve {
    granules: Vec<Granule>,
    positions: usize,
}

/// [`GRANULE_POSITIONS`] positions.
#[derive(Clone, Copy)]
struct Granule {
    /// Bytes at its first position.
    start: u64,
    extremes: Extremes,
}

/// The highest and the lowest allocated bytes of an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extremes {
    pub(crate) highest: u64,
    /// First position with the highest.
    pub(crate) position: usize,
    pub(crate) lowest: u64,
}

impl Extremes {
    fn of(bytes: u64, position: usize) -> Extremes {
        Extremes { highest: bytes, position, lowest: bytes }
    }

    fn add(&mut self, other: Extremes) {
        if other.highest > self.highest {
            (self.highest, self.position) = (other.highest, other.position);
        }
        self.lowest = self.lowest.min(other.lowest);
    }
}

impl Curve {
    pub(crate) fn new(device: &Device<'_>) -> Curve {
        let (history, positions) = (&device.history, device.history.len() + 1);
        let mut granules = Vec::with_capacity(positions / GRANULE_POSITIONS + 1);
        let mut allocated = history.start.0;
        let mut open = Granule::of(allocated, 0);
        changes(device, 0..history.len(), |event, row, is_alloc| {
            let position = event + 1;
            while granules.len() < position / GRANULE_POSITIONS {
                granules.push(open);
                open = Granule::of(allocated, granules.len() * GRANULE_POSITIONS);
            }
            allocated = shifted(allocated, history.allocations[row].size.0, is_alloc);
            if position % GRANULE_POSITIONS == 0 {
                open = Granule::of(allocated, position);
            } else {
                open.extremes.add(Extremes::of(allocated, position));
            }
        });
        while granules.len() * GRANULE_POSITIONS < positions {
            granules.push(open);
            open = Granule::of(allocated, granules.len() * GRANULE_POSITIONS);
        }
        Curve { granules, positions }
    }

    /// Returns the extremes of an interval of positions; an empty one counts as its first position.
    pub(crate) fn extremes(&self, device: &Device<'_>, positions: Range<usize>) -> Extremes {
        let start = positions.start.min(self.positions - 1);
        let end = positions.end.clamp(start + 1, self.positions);
        let mut all = self.part(device, start, end);
        let mut at = (start / GRANULE_POSITIONS + 1) * GRANULE_POSITIONS;
        while at < end {
            all.add(self.part(device, at, end));
            at += GRANULE_POSITIONS;
        }
        all
    }

    /// Returns the extremes from `start` to the end of its granule, or to `end`.
    fn part(&self, device: &Device<'_>, start: usize, end: usize) -> Extremes {
        let granule = &self.granules[start / GRANULE_POSITIONS];
        let first = start / GRANULE_POSITIONS * GRANULE_POSITIONS;
        let next = (first + GRANULE_POSITIONS).min(self.positions);
        if start == first && end >= next {
            return granule.extremes;
        }
        let mut allocated = granule.start;
        let mut part: Option<Extremes> = (start == first).then(|| Extremes::of(allocated, start));
        changes(device, first..end.min(next) - 1, |event, row, is_alloc| {
            if event >= start {
                part.get_or_insert(Extremes::of(allocated, start));
            }
            allocated = shifted(allocated, device.history.allocations[row].size.0, is_alloc);
            if let Some(part) = &mut part {
                part.add(Extremes::of(allocated, event + 1));
            }
        });
        part.unwrap_or(Extremes::of(allocated, start))
    }
}

impl Granule {
    fn of(bytes: u64, position: usize) -> Granule {
        Granule { start: bytes, extremes: Extremes::of(bytes, position) }
    }
}

/// Adds or subtracts bytes. Wraps around, as the history does, where a damaged file has impossible sizes.
pub(crate) fn shifted(bytes: u64, by: u64, up: bool) -> u64 {
    if up { bytes.wrapping_add(by) } else { bytes.wrapping_sub(by) }
}
