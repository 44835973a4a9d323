//! The address space: what is reserved at a position, and the layout of the memory map.

use analysis::{Device, SegmentEvent};
use snapshot::PoolId;
use std::collections::BTreeMap;
use std::ops::Range;

/// The stream and pool that a reserved range belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) stream: u64,
    pub(crate) pool: PoolId,
    pub(crate) small: bool,
    pub(crate) expandable: bool,
}

/// Reserved ranges at a position that moves forward.
pub(crate) struct ReservedRanges<'a> {
    device: &'a Device<'a>,
    segments: &'a [SegmentEvent],
    /// Number of segment events applied.
    applied: usize,
    /// End and owner, by first address.
    reserved: BTreeMap<u64, (u64, Owner)>,
}

impl<'a> ReservedRanges<'a> {
    pub(crate) fn new(device: &'a Device<'a>, segments: &'a [SegmentEvent]) -> ReservedRanges<'a> {
        let mut ranges = ReservedRanges { device, segments, applied: 0, reserved: BTreeMap::new() };
        for segment in &device.history.segments_at_start {
            let &snapshot::SegmentAtStart { addr, size, stream, pool, small, expandable } = segment;
            ranges.reserve(addr..addr.saturating_add(size), Owner { stream, pool, small, expandable });
        }
        ranges
    }

    /// Moves to a later position; returns whether anything has changed.
    pub(crate) fn advance(&mut self, position: usize) -> bool {
        let before = self.applied;
        while let Some(event) = self.segments.get(self.applied).filter(|event| event.event < position) {
            self.apply(event);
            self.applied += 1;
        }
        self.applied > before
    }

    /// Reserved ranges, lowest address first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<u64>, Owner)> {
        self.reserved.iter().map(|(&start, &(end, owner))| (start..end, owner))
    }

    fn apply(&mut self, event: &SegmentEvent) {
        let history = &self.device.history;
        let Some(region) = event.region.map(|region| &history.regions[region]) else { return };
        let addr = self.device.snapshot.events.get(history.rows.start + event.event).addr;
        let range = addr..addr.saturating_add(event.bytes.0);
        let &snapshot::Region { stream, pool, small, expandable, .. } = region;
        if event.reserves {
            self.reserve(range, Owner { stream, pool, small, expandable });
        } else {
            self.release(range);
        }
    }

    /// Reserves a range; neighbouring pages of an expandable segment become one range.
    fn reserve(&mut self, range: Range<u64>, owner: Owner) {
        if range.is_empty() {
            return;
        }
        self.release(range.clone());
        let mut range = range;
        if owner.expandable {
            let before = self.reserved.range(..range.start).next_back();
            if let Some((&start, _)) = before.filter(|(_, held)| **held == (range.start, owner)) {
                range.start = start;
            }
            let after = self.reserved.get(&range.end).copied();
            if let Some((end, _)) = after.filter(|(_, held)| *held == owner) {
                self.reserved.remove(&range.end);
                range.end = end;
            }
        }
        self.reserved.insert(range.start, (range.end, owner));
    }

    fn release(&mut self, range: Range<u64>) {
        let touched: Vec<(u64, (u64, Owner))> = self
            .reserved
            .range(..range.end)
            .rev()
            .take_while(|(_, (end, _))| *end > range.start)
            .map(|(&start, &held)| (start, held))
            .collect();
        for (start, (end, owner)) in touched {
            self.reserved.remove(&start);
            if start < range.start {
                self.reserved.insert(start, (range.start, owner));
            }
            if end > range.end {
                self.reserved.insert(range.end, (end, owner));
            }
        }
    }
}

/// All addresses that were ever reserved, without the gaps between them.
pub(crate) struct AddressSpace {
    /// First address, end, and the offset of the first address; ascending.
    spans: Vec<(u64, u64, u64)>,
    /// The sum of their lengths.
    pub(crate) length: u64,
}

impl AddressSpace {
    pub(crate) fn new(device: &Device<'_>, segments: &[SegmentEvent]) -> AddressSpace {
        let history = &device.history;
        let at_start = history.segments_at_start.iter().map(|segment| (segment.addr, segment.size));
        let later = segments
            .iter()
            .filter(|event| event.reserves && event.region.is_some())
            .map(|event| (device.snapshot.events.get(history.rows.start + event.event).addr, event.bytes.0));
        let mut ranges: Vec<(u64, u64)> =
            at_start.chain(later).map(|(addr, size)| (addr, addr.saturating_add(size))).collect();
        ranges.sort_unstable();
        let (mut spans, mut length): (Vec<(u64, u64, u64)>, u64) = (Vec::new(), 0);
        for (start, end) in ranges {
            match spans.last_mut() {
                Some(last) if start <= last.1 => {
                    length = length.saturating_add(end.saturating_sub(last.1));
                    last.1 = last.1.max(end);
                }
                _ => {
                    spans.push((start, end, length));
                    length = length.saturating_add(end - start);
                }
            }
        }
        // The page counts in doubles, which are exact up to 2^53.
        AddressSpace { spans, length: length.min(1 << 53) }
    }

    /// Returns the offset of an address in the map; `None` if it was never reserved.
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        let span = self.spans.partition_point(|span| span.0 <= addr).checked_sub(1)?;
        let (start, end, offset) = self.spans[span];
        (addr < end).then(|| offset + (addr - start))
    }
}

/// Reserved bytes over all positions.
pub(crate) struct ReservedCurve {
    /// Reserved bytes from each position on, ascending; the first position is 0.
    changes: Vec<(usize, u64)>,
}

impl ReservedCurve {
    pub(crate) fn new(device: &Device<'_>, segments: &[SegmentEvent]) -> ReservedCurve {
        let from_start = device.history.regions.iter().filter(|region| region.from_start);
        let mut bytes: u64 = from_start.fold(0, |sum, region| sum.saturating_add(region.size.0));
        let mut changes = vec![(0, bytes)];
        for event in segments.iter().filter(|event| event.region.is_some()) {
            bytes = if event.reserves {
                bytes.saturating_add(event.bytes.0)
            } else {
                bytes.saturating_sub(event.bytes.0)
            };
            changes.push((event.event + 1, bytes));
        }
        ReservedCurve { changes }
    }

    /// Returns the highest reserved bytes of an interval of positions.
    pub(crate) fn highest(&self, positions: Range<usize>) -> u64 {
        let first = self.changes.partition_point(|&(from, _)| from <= positions.start).saturating_sub(1);
        let end = self.changes.partition_point(|&(from, _)| from < positions.end).max(first + 1);
        self.changes[first..end].iter().map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }

    /// Returns the reserved bytes at a position.
    pub(crate) fn at(&self, position: usize) -> u64 {
        self.highest(position..position + 1)
    }
}
