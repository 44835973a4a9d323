//! The memory map: addresses over time. Each column is the address space at one position, at the resolution
//! of a screen.

use super::columns::{BLOCK_COLUMNS, Window, XAxis};
use super::exported::{invisible, tiles};
use super::tile::{FREE, GAP, MERGED, Slice, Tile, TileBytes};
use super::timeline::{encode_blocks, for_each_column};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::changes::shifted;
use crate::run::space::{AddressSpace, ReservedRanges};
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Cells of a column.
const MAX_CELLS: u64 = 4096;
/// Columns that share a position, since single events cannot be followed through a whole address space
/// anyway.
const SHARED_COLUMNS: usize = 4;

/// Asks for a tile of the memory map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct MapQuery {
    pub(crate) run: usize,
    #[serde(default)]
    pub(crate) x: XAxis,
    /// A column is 2^level events or microseconds wide.
    pub(crate) level: u32,
    pub(crate) tile: usize,
    /// First offset in the map.
    pub(crate) low: u64,
    /// Offset after the last.
    pub(crate) high: u64,
    /// A cell is 2^smallest bytes high.
    pub(crate) smallest: u32,
}

impl Question for MapQuery {
    const NAME: &'static str = "map";
    type Answer = TileBytes;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<TileBytes, Problem> {
        viewer.tile(&self.address(), self.run, |view| self.tile(view))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<MapQuery> {
        let ExportPart::Pictures { view, axis: x, finer } = *part else { return Vec::new() };
        let (run, high) = (view.id, view.space().length);
        tiles(view, x, BLOCK_COLUMNS, finer)
            .map(|(level, tile)| MapQuery { run, x, level, tile, low: 0, high, smallest: invisible(high) })
            .collect()
    }
}

impl MapQuery {
    pub(crate) fn tile(&self, view: &DeviceView<'_>) -> Vec<u8> {
        let &MapQuery { x: axis, level, tile, low, high, smallest, .. } = self;
        map(view, Window { axis, level, tile, width: BLOCK_COLUMNS }, low..high, smallest)
    }
}

/// Draws the offsets `offsets` of the map, in cells of 2^smallest bytes.
fn map(view: &DeviceView<'_>, window: Window, offsets: Range<u64>, smallest: u32) -> Vec<u8> {
    let (history, space) = (view.history(), view.space());
    let mut tile = Tile::new(window.first());
    let mut column = MapColumn::new(offsets, smallest);
    let mut ranges = ReservedRanges::new(view.device(), view.segments());
    column.reserve(&ranges, space);
    for_each_column(view, window, SHARED_COLUMNS, |live, head, times| {
        if ranges.advance(head.position) {
            column.reserve(&ranges, space);
        }
        for (block, is_new) in &live.changes {
            if let Some(offset) = space.offset(history.allocations[block.row as usize].addr) {
                column.change(block.row, offset..offset.saturating_add(block.size), *is_new);
            }
        }
        tile.push(head, column.slices());
        tile.repeat(times - 1);
    });
    encode_blocks(view, tile, true)
}

/// One column of the map, updated from column to column.
struct MapColumn {
    low: u64,
    /// Bytes of a cell.
    cell: u64,
    /// [`FREE`] where memory is reserved, otherwise [`GAP`].
    ground: Vec<u32>,
    cells: Vec<MapCell>,
    slices: Vec<Slice>,
}

/// Blocks in a cell.
#[derive(Clone, Copy, Default)]
struct MapCell {
    /// Exclusive or of the rows of its blocks: of a single block, its row.
    rows: u32,
    blocks: u32,
    /// Blocks that begin in it.
    begin: u32,
    used: u64,
}

impl MapColumn {
    fn new(offsets: Range<u64>, smallest: u32) -> MapColumn {
        let mut cell = 1u64 << smallest.min(62);
        let length = offsets.end.saturating_sub(offsets.start);
        while length / cell >= MAX_CELLS {
            cell *= 2;
        }
        let count = length.div_ceil(cell) as usize;
        let cells = vec![MapCell::default(); count];
        MapColumn { low: offsets.start, cell, ground: vec![GAP; count], cells, slices: Vec::new() }
    }

    /// Returns the cells that a range touches, and the range clipped to the column.
    fn touched(&self, range: &Range<u64>) -> Option<(Range<usize>, Range<u64>)> {
        let end = self.low.saturating_add(self.cell.saturating_mul(self.ground.len() as u64));
        let (start, end) = (range.start.max(self.low), range.end.min(end));
        (start < end).then(|| {
            let cells = (start - self.low) / self.cell..(end - self.low).div_ceil(self.cell);
            (cells.start as usize..cells.end as usize, start..end)
        })
    }

    fn reserve(&mut self, ranges: &ReservedRanges<'_>, space: &AddressSpace) {
        self.ground.fill(GAP);
        for (range, _) in ranges.iter() {
            let Some(offset) = space.offset(range.start) else { continue };
            if let Some((cells, _)) = self.touched(&(offset..offset.saturating_add(range.end - range.start)))
            {
                self.ground[cells].fill(FREE);
            }
        }
    }

    /// Adds or removes a block.
    fn change(&mut self, row: u32, range: Range<u64>, is_new: bool) {
        let Some((cells, range)) = self.touched(&range) else { return };
        let first = cells.start;
        for number in cells {
            let start = self.low + number as u64 * self.cell;
            let here = range.end.min(start.saturating_add(self.cell)) - range.start.max(start);
            let cell = &mut self.cells[number];
            cell.rows ^= row;
            let begins = u32::from(number == first);
            if is_new {
                cell.blocks += 1;
                cell.begin += begins;
            } else {
                cell.blocks -= 1;
                cell.begin -= begins;
            }
            cell.used = shifted(cell.used, here, is_new);
        }
    }

    fn slices(&mut self) -> &[Slice] {
        self.slices.clear();
        for (cell, &ground) in self.cells.iter().zip(&self.ground) {
            let id = match cell.blocks {
                0 => ground,
                1 => cell.rows,
                _ => MERGED,
            };
            match self.slices.last_mut() {
                Some(last) if last.id == id => {
                    last.bytes = last.bytes.saturating_add(self.cell);
                    last.used = last.used.saturating_add(cell.used);
                    // A single block continues; a merged slice counts the blocks that begin here.
                    last.pieces =
                        if id == MERGED { last.pieces.saturating_add(cell.begin) } else { last.pieces };
                }
                _ => self.slices.push(Slice {
                    id,
                    bytes: self.cell,
                    pieces: cell.blocks.max(1),
                    used: cell.used,
                }),
            }
        }
        &self.slices
    }
}
