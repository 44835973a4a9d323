//! A picture at the resolution of a screen: columns of slices, as `web/src/protocol/tile.ts` reads them.

use crate::run::shapes::BlockGroup;
use serde::Serialize;

/// Id of a slice that stands for several pieces, each too small to be drawn.
pub(crate) const MERGED: u32 = u32::MAX;
/// Id of a slice that is reserved and not in use.
pub(crate) const FREE: u32 = u32::MAX - 1;
/// Id of a slice that is not reserved.
pub(crate) const GAP: u32 = u32::MAX - 2;

/// Part of a column: bytes of one group or block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slice {
    /// A group, a row of allocations, or one of the constants above.
    pub(crate) id: u32,
    pub(crate) bytes: u64,
    /// Number of groups or blocks that it stands for.
    pub(crate) pieces: u32,
    /// Bytes in use.
    pub(crate) used: u64,
}

/// Numbers of a column, apart from its slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ColumnHead {
    /// The position that is shown.
    pub(crate) position: usize,
    /// Microseconds from the first event to it.
    pub(crate) elapsed_us: u64,
    /// Lowest allocated bytes of all positions that the column covers.
    pub(crate) lowest: u64,
    /// Highest reserved bytes of all positions that the column covers.
    pub(crate) reserved: u64,
}

/// Beginning of a tile.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct TileHeader {
    /// Number of the first column at this level.
    first: usize,
    /// Number of columns.
    columns: usize,
    /// Number of slices that are sent.
    entries: usize,
    /// Number of blocks whose site is sent.
    blocks: usize,
    /// Whether bytes in use are sent for each slice.
    used: bool,
    groups: Vec<BlockGroup>,
}

/// An encoded tile; the page reads it as an `ArrayBuffer`.
#[cfg_attr(test, derive(ts_rs::TS), ts(type = "ArrayBuffer"))]
pub(crate) struct TileBytes(pub(crate) std::sync::Arc<Vec<u8>>);

/// A tile under construction.
#[derive(Default)]
pub(crate) struct Tile {
    first: usize,
    lowest: Vec<f64>,
    reserved: Vec<f64>,
    elapsed_us: Vec<f64>,
    position: Vec<u32>,
    keep: Vec<u32>,
    count: Vec<u32>,
    tail: Vec<u32>,
    size: Vec<f64>,
    used: Vec<f64>,
    id: Vec<u32>,
    pieces: Vec<u32>,
    last: Vec<Slice>,
}

impl Tile {
    /// Starts a tile with this column.
    pub(crate) fn new(first: usize) -> Tile {
        Tile { first, ..Tile::default() }
    }

    /// Adds a column.
    pub(crate) fn push(&mut self, head: ColumnHead, slices: &[Slice]) {
        let keep = self.last.iter().zip(slices).take_while(|(last, slice)| last == slice).count();
        let (old, new) = (&self.last[keep..], &slices[keep..]);
        let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(last, slice)| last == slice).count();
        let new = &new[..new.len() - tail];
        self.lowest.push(head.lowest as f64);
        self.reserved.push(head.reserved as f64);
        self.elapsed_us.push(head.elapsed_us as f64);
        self.position.push(head.position as u32);
        self.keep.push(keep as u32);
        self.count.push(new.len() as u32);
        self.tail.push(tail as u32);
        for slice in new {
            self.size.push(slice.bytes as f64);
            self.used.push(slice.used as f64);
            self.id.push(slice.id);
            self.pieces.push(slice.pieces);
        }
        self.last.clear();
        self.last.extend_from_slice(slices);
    }

    /// Repeats the last column.
    pub(crate) fn repeat(&mut self, times: usize) {
        for _ in 0..times {
            let last = self.position.len() - 1;
            self.lowest.push(self.lowest[last]);
            self.reserved.push(self.reserved[last]);
            self.elapsed_us.push(self.elapsed_us[last]);
            self.position.push(self.position[last]);
            self.keep.push(self.last.len() as u32);
            self.count.push(0);
            self.tail.push(0);
        }
    }

    /// Ids of groups or blocks in the tile, ascending.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.id.iter().copied().filter(|&id| id < GAP).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Encodes the tile. `blocks` are rows of allocations with their groups; `with_used` sends bytes in use.
    pub(crate) fn encode(self, groups: Vec<BlockGroup>, blocks: &[(u32, u32)], with_used: bool) -> Vec<u8> {
        let header = TileHeader {
            first: self.first,
            columns: self.position.len(),
            entries: self.id.len(),
            blocks: blocks.len(),
            used: with_used,
            groups,
        };
        let mut header = serde_json::to_value(header).unwrap_or_default().to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut bytes = Vec::with_capacity(8 + header.len() + 36 * self.position.len() + 24 * self.id.len());
        bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(header.as_bytes());
        let used: &[f64] = if with_used { &self.used } else { &[] };
        for column in [&self.lowest, &self.reserved, &self.elapsed_us, &self.size, used] {
            bytes.extend(column.iter().flat_map(|value| value.to_le_bytes()));
        }
        for column in [&self.position, &self.keep, &self.count, &self.tail, &self.id, &self.pieces] {
            bytes.extend(column.iter().flat_map(|value| value.to_le_bytes()));
        }
        bytes.extend(blocks.iter().flat_map(|(row, _)| row.to_le_bytes()));
        bytes.extend(blocks.iter().flat_map(|(_, group)| group.to_le_bytes()));
        bytes
    }
}
