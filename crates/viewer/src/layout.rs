//! The segments of one moment, and what lies in them.

use crate::alive::Alive;
use crate::details::{hex, pool};
use crate::groups::By;
use crate::space::{Owner, Ranges};
use crate::tile::{FREE, MERGED};
use crate::view::View;
use serde_json::{Value, json};
use snapshot::Life;
use std::collections::BTreeSet;
use std::ops::Range;

/// Blocks that are named as those that keep a segment.
const PINS: usize = 4;

/// A reserved range with the blocks in use in it.
pub(crate) struct Segment {
    pub(crate) range: Range<u64>,
    pub(crate) owner: Owner,
    /// Rows of lives, by address.
    pub(crate) rows: Vec<u32>,
    pub(crate) used: u64,
    pub(crate) largest_free: u64,
}

impl Segment {
    pub(crate) fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The segments at a position, lowest address first.
pub(crate) fn segments(view: &View<'_>, position: usize) -> Vec<Segment> {
    let history = view.history();
    let mut ranges = Ranges::new(view.device(), view.segments());
    ranges.advance(position);
    let life = |row: &u32| &history.lives[*row as usize];
    let mut rows: Vec<u32> =
        Alive::at(history, view.index(), position).blocks.iter().map(|block| block.row).collect();
    rows.sort_by_key(|row| life(row).addr);
    let mut rows = rows.into_iter().peekable();
    ranges
        .iter()
        .map(|(range, owner)| {
            while rows.next_if(|row| life(row).addr < range.start).is_some() {}
            let mut inside = Vec::new();
            while let Some(row) = rows.next_if(|row| life(row).addr < range.end) {
                inside.push(row);
            }
            let ends =
                inside.iter().map(|row| (life(row).addr, end(life(row)))).chain([(range.end, range.end)]);
            let mut at = range.start;
            let mut largest_free = 0;
            for (start, end) in ends {
                largest_free = largest_free.max(start.saturating_sub(at));
                at = at.max(end);
            }
            let used = inside.iter().fold(0, |sum: u64, row| sum.saturating_add(life(row).size.0));
            Segment { range, owner, rows: inside, used, largest_free }
        })
        .collect()
}

fn end(life: &Life) -> u64 {
    life.addr.saturating_add(life.size.0)
}

/// The same for the page; neighbours below 2^smallest bytes are merged.
pub(crate) fn layout(view: &View<'_>, position: usize, smallest: u32) -> Value {
    let groups = view.groups(By::Site);
    let mut named: BTreeSet<u32> = BTreeSet::new();
    let segments: Vec<Value> = segments(view, position)
        .iter()
        .map(|segment| {
            let mut pins: Vec<u32> = segment.rows.clone();
            pins.sort_by_key(|&row| std::cmp::Reverse(view.history().lives[row as usize].size));
            let pins: Vec<Value> = pins
                .iter()
                .take(PINS)
                .map(|&row| {
                    let group = groups.of_life[row as usize];
                    let size = view.history().lives[row as usize].size.0;
                    json!({"row": row, "size": size, "group": group, "site": view.group_json(By::Site, group)["label"]})
                })
                .collect();
            json!({
                "addr": hex(segment.range.start),
                "offset": view.space().offset(segment.range.start),
                "size": segment.size(),
                "stream": hex(segment.owner.stream),
                "pool": pool(segment.owner.pool),
                "small": segment.owner.small,
                "expandable": segment.owner.expandable,
                "used": segment.used,
                "blocks": segment.rows.len(),
                "largestFree": segment.largest_free,
                "pins": pins,
                "cells": cells(view, segment, 1 << smallest.min(62), &mut named),
            })
        })
        .collect();
    let curve = view.curve().extremes(view.device(), position..position + 1);
    json!({
        "position": position,
        "allocated": curve.highest,
        "reserved": view.reserved().at(position),
        "segments": segments,
        "groups": named.into_iter().map(|id| view.group_json(By::Site, id)).collect::<Vec<_>>(),
    })
}

/// Five numbers for each piece: where it begins, its bytes, the block, how many blocks, and the group of its line.
fn cells(view: &View<'_>, segment: &Segment, smallest: u64, named: &mut BTreeSet<u32>) -> Vec<i64> {
    let (history, groups) = (view.history(), view.groups(By::Site));
    let mut cells: Vec<i64> = Vec::with_capacity(5 * segment.rows.len());
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut add = |start: u64, bytes: u64, id: u32, group: i64| {
        let blocks = i64::from(id != FREE);
        // What no screen shows becomes one with what lies beside it, free pieces too.
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
        let life = &history.lives[row as usize];
        if life.addr > at {
            add(at - segment.range.start, life.addr - at, FREE, -1);
        }
        let group = groups.of_life[row as usize];
        named.insert(group);
        add(life.addr - segment.range.start, life.size.0, row, i64::from(group));
        at = at.max(end(life));
    }
    if segment.range.end > at {
        add(at - segment.range.start, segment.range.end - at, FREE, -1);
    }
    cells
}
