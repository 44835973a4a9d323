//! A picture at the resolution of a screen: columns of runs, as `web/src/protocol.ts` reads them.

use serde_json::{Value, json};

/// Several that are too small to be drawn one by one.
pub(crate) const MERGED: u32 = u32::MAX;
/// Reserved and not in use.
pub(crate) const FREE: u32 = u32::MAX - 1;
/// Not reserved.
pub(crate) const GAP: u32 = u32::MAX - 2;

/// Part of a column: so many bytes of one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// A group, a row of lives, or one of the constants.
    pub(crate) id: u32,
    pub(crate) bytes: u64,
    /// How many things it stands for.
    pub(crate) pieces: u32,
    /// Bytes of it that are in use.
    pub(crate) used: u64,
}

/// What a column says beside its runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The moment that is shown.
    pub(crate) position: usize,
    /// When that was, since the first event.
    pub(crate) elapsed_us: u64,
    pub(crate) lowest: u64,
    pub(crate) reserved: u64,
}

/// A tile in the making.
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
    last: Vec<Run>,
}

impl Tile {
    /// One that begins with this column.
    pub(crate) fn new(first: usize) -> Tile {
        Tile { first, ..Tile::default() }
    }

    /// Adds a column.
    pub(crate) fn push(&mut self, head: Head, runs: &[Run]) {
        let keep = self.last.iter().zip(runs).take_while(|(last, run)| last == run).count();
        let (old, new) = (&self.last[keep..], &runs[keep..]);
        let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(last, run)| last == run).count();
        let new = &new[..new.len() - tail];
        self.lowest.push(head.lowest as f64);
        self.reserved.push(head.reserved as f64);
        self.elapsed_us.push(head.elapsed_us as f64);
        self.position.push(head.position as u32);
        self.keep.push(keep as u32);
        self.count.push(new.len() as u32);
        self.tail.push(tail as u32);
        for run in new {
            self.size.push(run.bytes as f64);
            self.used.push(run.used as f64);
            self.id.push(run.id);
            self.pieces.push(run.pieces);
        }
        self.last.clear();
        self.last.extend_from_slice(runs);
    }

    /// Adds columns that look like the last one.
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

    /// Every different id, ascending.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.id.iter().copied().filter(|&id| id < GAP).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The bytes for the page. `blocks` are rows of lives with their groups; `with_used` says whether the use of runs is told.
    pub(crate) fn encode(self, groups: Vec<Value>, blocks: &[(u32, u32)], with_used: bool) -> Vec<u8> {
        let mut header = json!({
            "first": self.first,
            "columns": self.position.len(),
            "entries": self.id.len(),
            "blocks": blocks.len(),
            "used": with_used,
            "groups": groups,
        })
        .to_string();
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
