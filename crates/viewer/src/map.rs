//! The memory map: addresses over time. Each column is the address space at its moment, at the resolution of a screen.

use crate::columns::Window;
use crate::space::{Ranges, Space};
use crate::tile::{FREE, GAP, MERGED, Run, Tile};
use crate::timeline::{encode_blocks, for_each_moment};
use crate::view::View;
use snapshot::History;
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
    let mut offsets_of: Vec<(u32, u64)> = Vec::new();
    let mut is_new = true;
    for_each_moment(view, window, SHARED, |alive, head, times| {
        if ranges.advance(head.position) || is_new {
            picture.reserve(&ranges, space);
            is_new = false;
        }
        follow(history, space, &alive.rows, &mut offsets_of);
        picture.clear();
        for &(row, offset) in &offsets_of {
            picture.paint(row, offset..offset.saturating_add(history.lives[row as usize].size.0));
        }
        tile.push(head, picture.runs());
        tile.repeat(times - 1);
    });
    encode_blocks(view, tile, true)
}

/// Looks up the offsets of rows that were not there before. Both lists are ascending.
fn follow(history: &History, space: &Space, rows: &[u32], known: &mut Vec<(u32, u64)>) {
    let mut before = std::mem::take(known).into_iter().peekable();
    known.reserve(rows.len());
    for &row in rows {
        while before.next_if(|&(old, _)| old < row).is_some() {}
        let offset = match before.next_if(|&(old, _)| old == row) {
            Some((_, offset)) => Some(offset),
            None => space.offset(history.lives[row as usize].addr),
        };
        known.extend(offset.map(|offset| (row, offset)));
    }
}

/// One column of the map in the making.
struct Picture {
    low: u64,
    /// Bytes of a cell.
    cell: u64,
    /// What is reserved: [`FREE`] or [`GAP`].
    ground: Vec<u32>,
    cells: Vec<Cell>,
    runs: Vec<Run>,
}

#[derive(Clone, Copy)]
struct Cell {
    id: u32,
    pieces: u32,
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
        Picture { low: offsets.start, cell, ground: vec![GAP; count], cells: Vec::new(), runs: Vec::new() }
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

    fn clear(&mut self) {
        self.cells.clear();
        self.cells.extend(self.ground.iter().map(|&id| Cell { id, pieces: 0, used: 0 }));
    }

    fn paint(&mut self, row: u32, range: Range<u64>) {
        let Some((cells, range)) = self.touched(&range) else { return };
        for place in cells {
            let start = self.low + place as u64 * self.cell;
            let here = range.end.min(start.saturating_add(self.cell)) - range.start.max(start);
            let cell = &mut self.cells[place];
            cell.id = if cell.pieces == 0 { row } else { MERGED };
            cell.pieces += 1;
            cell.used = cell.used.saturating_add(here);
        }
    }

    fn runs(&mut self) -> &[Run] {
        self.runs.clear();
        for cell in &self.cells {
            match self.runs.last_mut() {
                Some(last) if last.id == cell.id => {
                    last.bytes = last.bytes.saturating_add(self.cell);
                    last.used = last.used.saturating_add(cell.used);
                    last.pieces = if cell.id == MERGED { last.pieces + cell.pieces } else { last.pieces };
                }
                _ => self.runs.push(Run {
                    id: cell.id,
                    bytes: self.cell,
                    pieces: cell.pieces.max(1),
                    used: cell.used,
                }),
            }
        }
        &self.runs
    }
}
