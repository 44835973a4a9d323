//! The timeline: what is allocated in each column, by group or block by block.

use super::columns::{BAND_COLUMNS, BLOCK_COLUMNS, Window, XAxis};
use super::exported::{invisible, tiles};
use super::tile::{ColumnHead, MERGED, Slice, Tile, TileBytes};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::changes::{changes, shifted};
use crate::run::groups::GroupBy;
use crate::run::live::LiveBlocks;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Asks for a tile of the timeline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct TimelineQuery {
    pub(crate) run: usize,
    #[serde(default)]
    pub(crate) by: TimelineBy,
    #[serde(default)]
    pub(crate) x: XAxis,
    /// A column is 2^level events or microseconds wide.
    pub(crate) level: u32,
    pub(crate) tile: usize,
    /// Slices below 2^smallest bytes are merged.
    pub(crate) smallest: u32,
}

impl Question for TimelineQuery {
    const NAME: &'static str = "timeline";
    type Answer = TileBytes;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<TileBytes, Problem> {
        viewer.tile(&self.address(), self.run, |view| self.tile(view))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<TimelineQuery> {
        let ExportPart::Pictures { view, axis: x, finer } = *part else { return Vec::new() };
        let (run, smallest) = (view.id, invisible(view.history().allocated_peak.bytes.0));
        let tiles = groupings(view).into_iter().flat_map(|by| {
            tiles(view, x, by.columns(), finer).map(move |(level, tile)| TimelineQuery {
                run,
                by,
                x,
                level,
                tile,
                smallest,
            })
        });
        tiles.collect()
    }
}

/// What the timeline is split by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) enum TimelineBy {
    #[default]
    Site,
    Category,
    Module,
    Stack,
    Size,
    /// Not at all: each block is drawn.
    Block,
}

impl TimelineBy {
    pub(crate) const ALL: [TimelineBy; 6] = [
        TimelineBy::Site,
        TimelineBy::Category,
        TimelineBy::Module,
        TimelineBy::Stack,
        TimelineBy::Size,
        TimelineBy::Block,
    ];

    /// The groups that are drawn; `None` for single blocks.
    fn groups(self) -> Option<GroupBy> {
        match self {
            TimelineBy::Site => Some(GroupBy::Site),
            TimelineBy::Category => Some(GroupBy::Category),
            TimelineBy::Module => Some(GroupBy::Module),
            TimelineBy::Stack => Some(GroupBy::Stack),
            TimelineBy::Size => Some(GroupBy::Size),
            TimelineBy::Block => None,
        }
    }

    /// Columns of a tile.
    pub(crate) fn columns(self) -> usize {
        if self == TimelineBy::Block { BLOCK_COLUMNS } else { BAND_COLUMNS }
    }
}

impl TimelineQuery {
    pub(crate) fn tile(&self, view: &DeviceView<'_>) -> Vec<u8> {
        let &TimelineQuery { by, x: axis, level, tile, smallest, .. } = self;
        let window = Window { axis, level, tile, width: by.columns() };
        match by.groups() {
            Some(groups) => bands(view, groups, window, smallest),
            None => blocks(view, window, smallest),
        }
    }
}

/// Blocks that are visited for one tile of single blocks or of the memory map. Where more are in use at a
/// time, several columns share a position: the highest of them all.
const MAX_VISITS: usize = 12 << 20;
/// Visits where each event has its own column: sharing would hide blocks that are freed by the next event.
const MAX_VISITS_BY_EVENT: usize = 4 * MAX_VISITS;

/// Draws a band for each group, largest at the bottom. Bands below 2^smallest bytes are merged at the top.
fn bands(view: &DeviceView<'_>, by: GroupBy, window: Window, smallest: u32) -> Vec<u8> {
    let (history, groups) = (view.history(), view.groups(by));
    let mut tile = Tile::new(window.first());
    let heads: Vec<ColumnHead> =
        window.columns(view).into_iter().map(|positions| head(view, positions)).collect();
    let mut held = vec![0u64; groups.all.len()];
    let mut at = heads.first().map_or(0, |head| head.position);
    for row in view.allocated_at(at) {
        let held = &mut held[groups.of_allocation[row as usize] as usize];
        *held = shifted(*held, history.allocations[row as usize].size.0, true);
    }
    let mut slices = Vec::new();
    for head in heads {
        changes(view.device(), at..head.position, |_, row, is_alloc| {
            let held = &mut held[groups.of_allocation[row] as usize];
            *held = shifted(*held, history.allocations[row].size.0, is_alloc);
        });
        at = head.position;
        stack(held.iter().enumerate().map(|(id, &bytes)| (id as u32, bytes)), smallest, &mut slices);
        let (own, merged): (Vec<Slice>, Vec<Slice>) = slices.iter().partition(|slice| slice.id != MERGED);
        slices = own;
        slices.extend(merged.into_iter().reduce(|a, b| Slice {
            bytes: a.bytes.saturating_add(b.bytes),
            used: a.used.saturating_add(b.used),
            pieces: a.pieces + b.pieces,
            ..a
        }));
        tile.push(head, &slices);
    }
    let named = tile.ids().into_iter().filter_map(|id| view.group(by, id)).collect();
    tile.encode(named, &[], false)
}

/// Draws each block, oldest at the bottom; neighbours below 2^smallest bytes are merged where they lie.
fn blocks(view: &DeviceView<'_>, window: Window, smallest: u32) -> Vec<u8> {
    let mut tile = Tile::new(window.first());
    let mut slices = Vec::new();
    for_each_column(view, window, 1, |live, head, times| {
        let held = live.blocks.iter().filter(|block| block.is_held_at(head.position));
        stack(held.map(|block| (block.row, block.size)), smallest, &mut slices);
        tile.push(head, &slices);
        tile.repeat(times - 1);
    });
    encode_blocks(view, tile, false)
}

/// Encodes a tile of blocks with the site of each.
pub(crate) fn encode_blocks(view: &DeviceView<'_>, tile: Tile, with_used: bool) -> Vec<u8> {
    let of_allocation = &view.groups(GroupBy::Site).of_allocation;
    let blocks: Vec<(u32, u32)> =
        tile.ids().into_iter().map(|row| (row, of_allocation[row as usize])).collect();
    let mut sites: Vec<u32> = blocks.iter().map(|&(_, site)| site).collect();
    sites.sort_unstable();
    sites.dedup();
    let named = sites.into_iter().filter_map(|site| view.group(GroupBy::Site, site)).collect();
    tile.encode(named, &blocks, with_used)
}

/// Calls `draw` with the blocks in use at the position of each column, and the number of columns that share
/// it: at least `shared`.
pub(crate) fn for_each_column(
    view: &DeviceView<'_>,
    window: Window,
    shared: usize,
    mut draw: impl FnMut(&LiveBlocks<'_>, ColumnHead, usize),
) {
    let columns = window.columns(view);
    let Some(first) = columns.first() else { return };
    let mut live = LiveBlocks::at(view.history(), view.index(), first.start);
    let mut shared = shared;
    let most = if window.is_by_event() { MAX_VISITS_BY_EVENT } else { MAX_VISITS };
    while columns.len() / shared * live.blocks.len() > most && shared < columns.len() {
        shared *= 2;
    }
    for several in columns.chunks(shared) {
        let head = head(view, several[0].start..several[several.len() - 1].end);
        live.advance(head.position);
        draw(&live, head, several.len());
        live.changes.clear();
    }
}

/// Finds the position that stands for an interval: the first with the most allocated bytes.
fn head(view: &DeviceView<'_>, positions: Range<usize>) -> ColumnHead {
    let extremes = view.curve().extremes(view.device(), positions.clone());
    let reserved = view.reserved().highest(positions);
    let (position, lowest) = (extremes.position, extremes.lowest);
    ColumnHead { position, elapsed_us: view.elapsed_us(position), lowest, reserved }
}

/// Stacks slices; neighbours that are too small are merged.
fn stack(parts: impl Iterator<Item = (u32, u64)>, smallest: u32, slices: &mut Vec<Slice>) {
    let smallest = 1u64 << smallest.min(63);
    slices.clear();
    for (id, bytes) in parts.filter(|&(_, bytes)| bytes > 0) {
        match slices.last_mut() {
            Some(last) if bytes < smallest && (last.id == MERGED || last.bytes < smallest) => {
                last.id = MERGED;
                last.bytes = last.bytes.saturating_add(bytes);
                last.used = last.bytes;
                last.pieces += 1;
            }
            _ => slices.push(Slice { id, bytes, pieces: 1, used: bytes }),
        }
    }
}

/// What the timeline of a device can be split by.
pub(crate) fn groupings(view: &DeviceView<'_>) -> Vec<TimelineBy> {
    let has_modules = !view.device().modules.is_empty();
    TimelineBy::ALL.into_iter().filter(|by| *by != TimelineBy::Module || has_modules).collect()
}
