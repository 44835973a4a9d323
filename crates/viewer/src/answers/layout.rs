//! The segments at a position, and the blocks in them.

use super::{hex, pool_name};
use crate::picture::tile::{FREE, MERGED};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::groups::GroupBy;
use crate::run::live::LiveBlocks;
use crate::run::shapes::BlockGroup;
use crate::run::space::{Owner, ReservedRanges};
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use serde::{Deserialize, Serialize};
use snapshot::Allocation;
use std::collections::BTreeSet;
use std::ops::Range;

/// Blocks that are named as keeping a segment from being released.
const MAX_PINS: usize = 4;

/// Asks for the segments.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
pub(crate) struct LayoutQuery {
    pub(crate) run: usize,
    /// The position.
    pub(crate) at: usize,
    /// Neighbouring blocks below 2^smallest bytes are merged; none if absent.
    pub(crate) smallest: Option<u32>,
}

impl Question for LayoutQuery {
    const NAME: &'static str = "layout";
    type Answer = Layout;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<Layout, Problem> {
        viewer.about(self.run, |view| Ok(layout(view, self)))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<LayoutQuery> {
        match *part {
            ExportPart::Moment { view, at } => vec![LayoutQuery { run: view.id, at, smallest: None }],
            _ => Vec::new(),
        }
    }
}

/// The segments at a position, lowest address first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct Layout {
    position: usize,
    /// Bytes allocated.
    allocated: u64,
    /// Bytes reserved.
    reserved: u64,
    segments: Vec<LaidSegment>,
    /// The sites of the blocks.
    groups: Vec<BlockGroup>,
}

/// A segment, and what lies in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct LaidSegment {
    addr: String,
    /// Offset in the memory map.
    offset: u64,
    size: u64,
    stream: String,
    pool: String,
    small: bool,
    expandable: bool,
    /// Bytes in use.
    used: u64,
    /// Blocks in use.
    blocks: usize,
    largest_free: u64,
    /// The largest blocks, which keep it from being released.
    pins: Vec<PinningBlock>,
    /// Five numbers per piece: offset in the segment, bytes, row of the block (or MERGED or FREE), blocks,
    /// and group by site (or -1).
    cells: Vec<i64>,
}

/// A block that keeps a segment from being released.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct PinningBlock {
    /// Number of the allocation.
    row: u32,
    size: u64,
    /// Group by site.
    group: u32,
    site: String,
}

/// A reserved range and the blocks in use in it.
pub(crate) struct OccupiedSegment {
    pub(crate) range: Range<u64>,
    pub(crate) owner: Owner,
    /// Rows of allocations, by address.
    pub(crate) rows: Vec<u32>,
    pub(crate) used: u64,
    pub(crate) largest_free: u64,
}

impl OccupiedSegment {
    pub(crate) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Returns the segments at a position, lowest address first.
pub(crate) fn segments(view: &DeviceView<'_>, position: usize) -> Vec<OccupiedSegment> {
    let history = view.history();
    let mut ranges = ReservedRanges::new(view.device(), view.segments());
    ranges.advance(position);
    let allocation = |row: &u32| &history.allocations[*row as usize];
    let mut rows: Vec<u32> =
        LiveBlocks::at(history, view.index(), position).blocks.iter().map(|block| block.row).collect();
    rows.sort_by_key(|row| allocation(row).addr);
    let mut rows = rows.into_iter().peekable();
    ranges
        .iter()
        .map(|(range, owner)| {
            while rows.next_if(|row| allocation(row).addr < range.start).is_some() {}
            let mut inside = Vec::new();
            while let Some(row) = rows.next_if(|row| allocation(row).addr < range.end) {
                inside.push(row);
            }
            let ends = inside
                .iter()
                .map(|row| (allocation(row).addr, end(allocation(row))))
                .chain([(range.end, range.end)]);
            let mut at = range.start;
            let mut largest_free = 0;
            for (start, end) in ends {
                largest_free = largest_free.max(start.saturating_sub(at));
                at = at.max(end);
            }
            let used = inside.iter().fold(0, |sum: u64, row| sum.saturating_add(allocation(row).size.0));
            OccupiedSegment { range, owner, rows: inside, used, largest_free }
        })
        .collect()
}

fn end(allocation: &Allocation) -> u64 {
    allocation.addr.saturating_add(allocation.size.0)
}

/// Lays out the segments at a position; neighbours below 2^smallest bytes are merged.
pub(crate) fn layout(view: &DeviceView<'_>, query: &LayoutQuery) -> Layout {
    let position = view.clamped(query.at);
    let smallest = 1 << query.smallest.unwrap_or(0).min(62);
    let mut named: BTreeSet<u32> = BTreeSet::new();
    let segments: Vec<LaidSegment> = segments(view, position)
        .iter()
        .map(|segment| LaidSegment {
            addr: hex(segment.range.start),
            offset: view.space().offset(segment.range.start).unwrap_or_default(),
            size: segment.size(),
            stream: hex(segment.owner.stream),
            pool: pool_name(segment.owner.pool),
            small: segment.owner.small,
            expandable: segment.owner.expandable,
            used: segment.used,
            blocks: segment.rows.len(),
            largest_free: segment.largest_free,
            pins: pins(view, segment),
            cells: cells(view, segment, smallest, &mut named),
        })
        .collect();
    let curve = view.curve().extremes(view.device(), position..position + 1);
    Layout {
        position,
        allocated: curve.highest,
        reserved: view.reserved().at(position),
        segments,
        groups: named.into_iter().filter_map(|id| view.group(GroupBy::Site, id)).collect(),
    }
}

/// Returns the largest blocks of a segment, which keep it from being released.
fn pins(view: &DeviceView<'_>, segment: &OccupiedSegment) -> Vec<PinningBlock> {
    let size_of = |row: u32| view.history().allocations[row as usize].size;
    let mut rows: Vec<u32> = segment.rows.clone();
    rows.sort_by_key(|&row| std::cmp::Reverse(size_of(row)));
    let largest = rows.into_iter().take(MAX_PINS);
    largest
        .map(|row| {
            let group = view.groups(GroupBy::Site).of_allocation[row as usize];
            PinningBlock { row, size: size_of(row).0, group, site: view.label(GroupBy::Site, group) }
        })
        .collect()
}

/// Returns the pieces of a segment as five numbers each (see [`LaidSegment::cells`]), and notes their sites
/// in `named`.
fn cells(
    view: &DeviceView<'_>,
    segment: &OccupiedSegment,
    smallest: u64,
    named: &mut BTreeSet<u32>,
) -> Vec<i64> {
    let (history, groups) = (view.history(), view.groups(GroupBy::Site));
    let mut cells: Vec<i64> = Vec::with_capacity(5 * segment.rows.len());
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut add = |start: u64, bytes: u64, id: u32, group: i64| {
        let blocks = i64::from(id != FREE);
        // Pieces too small for a screen are merged with their neighbours, free ones too.
        if let Some([.., last_bytes, last_id, last_blocks, last_group]) = cells.last_chunk_mut::<5>()
            && bytes < smallest
            && (*last_id == i64::from(MERGED) || *last_bytes < number(smallest))
        {
            *last_bytes = last_bytes.saturating_add(number(bytes));
            *last_blocks += blocks;
            (*last_id, *last_group) = (i64::from(MERGED), -1);
        } else {
            cells.extend([number(start), number(bytes), i64::from(id), blocks, group]);
        }
    };
    let mut at = segment.range.start;
    for &row in &segment.rows {
        let allocation = &history.allocations[row as usize];
        if allocation.addr > at {
            add(at - segment.range.start, allocation.addr - at, FREE, -1);
        }
        let group = groups.of_allocation[row as usize];
        named.insert(group);
        add(allocation.addr - segment.range.start, allocation.size.0, row, i64::from(group));
        at = at.max(end(allocation));
    }
    if segment.range.end > at {
        add(at - segment.range.start, segment.range.end - at, FREE, -1);
    }
    cells
}
