//! The memory map: addresses over time. Each column is the address space at its moment, at the resolution of a screen.

use crate::changes::shifted;
use crate::columns::Window;
use crate::space::{Ranges, Space};
use crate::tile::{FREE, GAP, MERGED, Run, Tile};
use crate::timeline::{encode_blocks, for_each_moment};
use crate::view::View;
use std::ops::Range;

/// Most cells of a column.
const MOST_CELLS: u64 = 4096;
/// Columns that share a moment, since no eye follows single events through a whole address space.
const SHARED: usize = 4;

/// The offsets `offsets` of the map, in cells of 2^smallest bytes.
pub(crate) fn map(view: &View<'_>, window: Window, offsets: Range<u64>, smallest: u32) -> Vec<u8> {
    let (history, space) = (view.history(), view.space());
    let mut tile = Tile::new(window.first());
    let mut picture = Picture::new(offsets, smallest);
    let mut ranges = Ranges::new(view.device(), view.segments());
    picture.reserve(&ranges, space);
    for_each_moment(view, window, SHARED, |alive, head, times| {
        if ranges.advance(head.position) {
            picture.reserve(&ranges, space);
        }
        for (block, is_new) in &alive.changes {
            if let Some(offset) = space.offset(history.lives[block.row as usize].addr) {
                picture.change(block.row, offset..offset.saturating_add(block.size), *is_new);
            }
        }
        tile.push(head, picture.runs());
        tile.repeat(times - 1);
    });
    encode_blocks(view, tile, true)
}

/// One column of the map, changed into the next.
struct Picture {
    low: u64,
    /// Bytes of a cell.
    cell: u64,
    /// What is reserved: [`FREE`] or [`GAP`].
    ground: Vec<u32>,
    cells: Vec<Cell>,
    runs: Vec<Run>,
}

/// What lies in a cell.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// The rows of its blocks, exclusively or'ed: of one alone that is the row itself.
    rows: u32,
    blocks: u32,
    /// Of these, the ones that begin in it.
    begin: u32,
    used: u64,
}

impl Picture {
    fn new(offsets: Range<u64>, smallest: u32) -> Picture {
        let mut cell = 1u64 << smallest.min(62);
        let length = offsets.end.saturating_sub(offsets.start);
        while length / cell >= MOST_CELLS {
            cell *= 2;
        }
        let count = length.div_ceil(cell) as usize;
        let cells = vec![Cell::default(); count];
        Picture { low: offsets.start, cell, ground: vec![GAP; count], cells, runs: Vec::new() }
    }

    /// The cells that a range touches, and the range clipped to the picture.
    fn touched(&self, range: &Range<u64>) -> Option<(Range<usize>, Range<u64>)> {
        let end = self.low.saturating_add(self.cell.saturating_mul(self.ground.len() as u64));
        let (start, end) = (range.start.max(self.low), range.end.min(end));
        (start < end).then(|| {
            let cells = (start - self.low) / self.cell..(end - self.low).div_ceil(self.cell);
            (cells.start as usize..cells.end as usize, start..end)
        })
    }

    fn reserve(&mut self, ranges: &Ranges<'_>, space: &Space) {
        self.ground.fill(GAP);
        for (range, _) in ranges.iter() {
            let Some(offset) = space.offset(range.start) else { continue };
            if let Some((cells, _)) = self.touched(&(offset..offset.saturating_add(range.end - range.start)))
            {
                self.ground[cells].fill(FREE);
            }
        }
    }

    /// A block begins, or ends.
    fn change(&mut self, row: u32, range: Range<u64>, is_new: bool) {
        let Some((cells, range)) = self.touched(&range) else { return };
        let first = cells.start;
        for place in cells {
            let start = self.low + place as u64 * self.cell;
            let here = range.end.min(start.saturating_add(self.cell)) - range.start.max(start);
            let cell = &mut self.cells[place];
            cell.rows ^= row;
            let begins = u32::from(place == first);
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

    fn runs(&mut self) -> &[Run] {
        self.runs.clear();
        for (cell, &ground) in self.cells.iter().zip(&self.ground) {
            let id = match cell.blocks {
                0 => ground,
                1 => cell.rows,
                _ => MERGED,
            };
            match self.runs.last_mut() {
                Some(last) if last.id == id => {
                    last.bytes = last.bytes.saturating_add(self.cell);
                    last.used = last.used.saturating_add(cell.used);
                    // A block goes on; others come to those that are merged.
                    last.pieces =
                        if id == MERGED { last.pieces.saturating_add(cell.begin) } else { last.pieces };
                }
                _ => {
                    self.runs.push(Run { id, bytes: self.cell, pieces: cell.blocks.max(1), used: cell.used })
                }
            }
        }
        &self.runs
    }
}
