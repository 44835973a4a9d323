//! State before the first event, reconstructed from the final segments and the events.
//!
//! An address that is freed before it is allocated was in use before the recording began; so was
//! everything in the final segments that no event explains. The same holds for segments; mapped pages are
//! traced backwards from the final ones.

use super::SegmentAtStart;
use crate::snapshot::Snapshot;
use crate::stacks::StackId;
use crate::tables::{Action, BlockState};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use std::collections::BTreeMap;

/// Smallest remainder that PyTorch splits off a block of the large pool, in bytes.
pub(super) const SPLIT_THRESHOLD: u64 = 1 << 20;

/// Block in use before the first event.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartBlock {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stack: StackId,
    /// Whether the program had freed it already and it was waiting for another stream.
    pub(super) pending: bool,
    /// Index into `segments`, if one contains it.
    pub(super) segment: Option<usize>,
}

/// State before the first event.
#[derive(Default, Debug)]
pub(super) struct StartState {
    /// Sorted by address.
    pub(super) segments: Vec<SegmentAtStart>,
    /// Sorted by address.
    pub(super) blocks: Vec<StartBlock>,
    /// Segments allocated during the recording that still exist at its end: the event that allocated
    /// each, by address.
    pub(super) made: HashMap<u64, usize, FxBuildHasher>,
    pub(super) caveats: Vec<String>,
}

pub(super) fn start(snapshot: &Snapshot, device: u32) -> StartState {
    let mut start = StartState::default();
    segments(snapshot, device, &mut start);
    blocks(snapshot, device, &mut start);
    start
}

fn segments(snapshot: &Snapshot, device: u32, start: &mut StartState) {
    let mut mappings = Vec::new();
    let rows = snapshot.rows(device);
    for (index, (action, addr)) in snapshot.events.actions(rows.clone()).enumerate() {
        let event = || snapshot.events.get(rows.start + index);
        match action {
            Action::SegmentAlloc => {
                start.made.insert(addr, index);
            }
            Action::SegmentFree if start.made.remove(&addr).is_none() => {
                let event = event();
                let context = snapshot.events.context(event.context);
                start.segments.push(SegmentAtStart {
                    addr: event.addr,
                    size: event.size.0,
                    stream: context.stream,
                    pool: context.pool.unwrap_or_default(),
                    small: event.size.0 == SMALL_SEGMENT,
                    expandable: false,
                });
            }
            Action::SegmentMap | Action::SegmentUnmap => mappings.push(event()),
            _ => {}
        }
    }
    let finals: Vec<SegmentAtStart> = snapshot
        .segments_of(device)
        .map(|segment| SegmentAtStart {
            addr: segment.addr,
            size: segment.size.0,
            stream: segment.stream,
            pool: segment.pool,
            small: segment.small,
            expandable: segment.expandable,
        })
        .collect();
    let made = &start.made;
    start
        .segments
        .extend(finals.iter().filter(|segment| !segment.expandable && !made.contains_key(&segment.addr)));

    let mut mapped = AddressRuns::default();
    for segment in finals.iter().filter(|segment| segment.expandable) {
        mapped.add(segment.addr, segment.size);
    }
    for event in mappings.iter().rev() {
        match event.action {
            Action::SegmentMap => mapped.remove(event.addr, event.size.0),
            _ => mapped.add(event.addr, event.size.0),
        }
    }
    for (addr, end) in mapped.0 {
        let size = end - addr;
        // The first event about these addresses, or the final segment over them, may still name the
        // owner.
        let about = mappings.iter().find(|event| (addr..end).contains(&event.addr));
        let about = about.map(|event| snapshot.events.context(event.context));
        let stream = about.map(|context| context.stream);
        let pool = about.and_then(|context| context.pool);
        let like = finals.iter().find(|segment| {
            segment.expandable
                && segment.addr < end
                && addr < segment.addr.saturating_add(segment.size)
                && stream.is_none_or(|stream| stream == segment.stream)
                && pool.is_none_or(|pool| pool == segment.pool)
        });
        start.segments.push(SegmentAtStart {
            addr,
            size,
            stream: stream.or(like.map(|segment| segment.stream)).unwrap_or(0),
            pool: pool.or(like.map(|segment| segment.pool)).unwrap_or_default(),
            small: like.map_or(!size.is_multiple_of(snapshot.settings.large_page()), |segment| segment.small),
            expandable: true,
        });
    }
    start.segments.sort_by_key(|segment| segment.addr);
}

pub(super) const SMALL_SEGMENT: u64 = 2 << 20;

/// Set of addresses as runs: start → end.
#[derive(Default)]
struct AddressRuns(BTreeMap<u64, u64>);

impl AddressRuns {
    fn add(&mut self, addr: u64, size: u64) {
        let (mut start, mut end) = (addr, addr.saturating_add(size));
        if start == end {
            return;
        }
        while let Some((&low, &high)) = self.0.range(..=end).next_back() {
            if high < start {
                break;
            }
            self.0.remove(&low);
            (start, end) = (start.min(low), end.max(high));
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        while let Some((&low, &high)) = self.0.range(..end).next_back() {
            if high <= addr {
                break;
            }
            self.0.remove(&low);
            if high > end {
                self.0.insert(end, high);
            }
            if low < addr {
                self.0.insert(low, addr);
            }
        }
    }
}

fn blocks(snapshot: &Snapshot, device: u32, start: &mut StartState) {
    let rows = snapshot.rows(device);
    let mut known: HashSet<u64, FxBuildHasher> = HashSet::default();
    // Blocks whose allocation is not in the trace but whose free is, with the event that freed them.
    let mut lost: Vec<(StartBlock, usize)> = Vec::new();
    let mut last_known = None;
    for (index, (action, addr)) in snapshot.events.actions(rows.clone()).enumerate() {
        match action {
            Action::Alloc => {
                known.insert(addr);
            }
            // The two free events of a block nearly always follow each other: the second adds nothing.
            Action::FreeRequested | Action::FreeCompleted if last_known.replace(addr) == Some(addr) => {}
            Action::FreeRequested | Action::FreeCompleted if known.insert(addr) => {
                let event = snapshot.events.get(rows.start + index);
                lost.push((
                    StartBlock {
                        addr: event.addr,
                        size: 0,
                        requested: event.size.0,
                        stack: StackId::EMPTY,
                        pending: event.action == Action::FreeCompleted,
                        segment: None,
                    },
                    index,
                ));
            }
            _ => {}
        }
    }
    for segment in snapshot.segments_of(device) {
        for block in &snapshot.blocks[segment.blocks.clone()] {
            if block.state != BlockState::Inactive && !known.contains(&block.addr) {
                start.blocks.push(StartBlock {
                    addr: block.addr,
                    size: block.size.0,
                    requested: block.requested.0,
                    stack: block.stack,
                    pending: block.state == BlockState::PendingFree,
                    segment: None,
                });
            }
        }
    }
    start.blocks.extend(lost.iter().map(|(block, _)| *block));
    start.blocks.sort_by_key(|block| block.addr);
    for block in &mut start.blocks {
        block.segment = segment_of(&start.segments, block.addr);
    }
    let freed: HashMap<u64, usize, FxBuildHasher> =
        lost.iter().map(|(block, event)| (block.addr, *event)).collect();
    lost_sizes(snapshot, device, start, &freed);
}

fn segment_of(segments: &[SegmentAtStart], addr: u64) -> Option<usize> {
    let place = segments.partition_point(|segment| segment.addr <= addr).checked_sub(1)?;
    (addr - segments[place].addr < segments[place].size).then_some(place)
}

/// Block that could be up to 1 MiB longer than its rounded request, because no neighbour shows its end.
struct UncertainBlock {
    block: usize,
    /// End address if the block is as long as its rounded request.
    end: u64,
    freed: usize,
}

/// Sets the sizes of blocks whose allocation was not recorded: the rounded request, plus any remainder
/// too small to split off.
fn lost_sizes(
    snapshot: &Snapshot,
    device: u32,
    start: &mut StartState,
    freed: &HashMap<u64, usize, FxBuildHasher>,
) {
    let (settings, _) = snapshot.settings_at(device, 0);
    let mut unsure = Vec::new();
    for place in 0..start.blocks.len() {
        let block = start.blocks[place];
        if block.size != 0 {
            continue;
        }
        let rounded = snapshot.round(block.requested, settings);
        let Some(index) = block.segment else {
            start.blocks[place].size = rounded;
            continue;
        };
        let segment = start.segments[index];
        let segment_end = segment.addr.saturating_add(segment.size);
        let next = start.blocks.get(place + 1).map_or(segment_end, |next| next.addr.min(segment_end));
        let room = next - block.addr;
        start.blocks[place].size = if segment.small || segment.expandable {
            rounded.min(room)
        } else if settings.max_split.is_some_and(|limit| rounded >= limit)
            || room <= rounded.saturating_add(SPLIT_THRESHOLD)
        {
            room
        } else {
            let end = block.addr.saturating_add(rounded);
            unsure.push(UncertainBlock {
                block: place,
                end,
                freed: freed.get(&block.addr).copied().unwrap_or(0),
            });
            rounded
        };
    }
    if unsure.is_empty() {
        return;
    }
    let mut decided = vec![false; unsure.len()];
    let last = unsure.iter().map(|unsure| unsure.freed).max().unwrap_or(0);
    let first_row = snapshot.rows(device).start;
    for (index, (action, addr)) in snapshot.events.actions(first_row..first_row + last).enumerate() {
        if action != Action::Alloc {
            continue;
        }
        // The last block that ends at or below this address; an allocation right behind it shows its true
        // end.
        let Some(place) = unsure.partition_point(|unsure| unsure.end <= addr).checked_sub(1) else {
            continue;
        };
        let found = &unsure[place];
        if !decided[place] && index < found.freed && addr - found.end <= SPLIT_THRESHOLD {
            decided[place] = true;
            let block = &mut start.blocks[found.block];
            block.size = addr - block.addr;
        }
    }
    let open = decided.iter().filter(|decided| !**decided).count();
    if open > 0 {
        start.caveats.push(format!(
            "{open} blocks were allocated before the history begins and freed during it; each may have \
             been up to 1 MiB larger than counted"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_runs_merge_and_split() {
        let mut runs = AddressRuns::default();
        runs.add(20, 10);
        runs.add(0, 10);
        runs.add(10, 10);
        assert_eq!(runs.0, BTreeMap::from([(0, 30)]));
        runs.remove(10, 5);
        runs.remove(25, 100);
        assert_eq!(runs.0, BTreeMap::from([(0, 10), (15, 25)]));
        runs.remove(0, 100);
        assert_eq!(runs.0, BTreeMap::new());
    }
}
