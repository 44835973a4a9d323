//! The timeline: what is allocated in each column, by group or block by block.

use crate::alive::Alive;
use crate::changes::{changes, shifted};
use crate::columns::Window;
use crate::groups::By;
use crate::tile::{Head, MERGED, Run, Tile};
use crate::view::View;
use std::ops::Range;

/// Blocks that are looked at for one tile of single blocks or of the memory map. Where more are in use at a time, several
/// columns share a moment: the highest of them all.
const MOST_LOOKS: usize = 12 << 20;
/// The same where every event has a column of its own: sharing would hide blocks that live for one event.
const MOST_LOOKS_AT_EVENTS: usize = 4 * MOST_LOOKS;

/// The bands of a tile: one for each group, largest at the bottom. Neighbours below 2^smallest bytes are merged, at the top.
pub(crate) fn bands(view: &View<'_>, by: By, window: Window, smallest: u32) -> Vec<u8> {
    let (history, groups) = (view.history(), view.groups(by));
    let mut tile = Tile::new(window.first());
    let heads: Vec<Head> = window.columns(view).into_iter().map(|positions| head(view, positions)).collect();
    let mut held = vec![0u64; groups.all.len()];
    let mut at = heads.first().map_or(0, |head| head.position);
    for row in view.allocated_at(at) {
        let held = &mut held[groups.of_life[row as usize] as usize];
        *held = shifted(*held, history.lives[row as usize].size.0, true);
    }
    let mut runs = Vec::new();
    for head in heads {
        changes(view.device(), at..head.position, |_, row, is_birth| {
            let held = &mut held[groups.of_life[row] as usize];
            *held = shifted(*held, history.lives[row].size.0, is_birth);
        });
        at = head.position;
        stack(held.iter().enumerate().map(|(id, &bytes)| (id as u32, bytes)), smallest, &mut runs);
        let (own, merged): (Vec<Run>, Vec<Run>) = runs.iter().partition(|run| run.id != MERGED);
        runs = own;
        runs.extend(merged.into_iter().reduce(|a, b| Run {
            bytes: a.bytes.saturating_add(b.bytes),
            used: a.used.saturating_add(b.used),
            pieces: a.pieces + b.pieces,
            ..a
        }));
        tile.push(head, &runs);
    }
    let named = tile.ids().into_iter().map(|id| view.group_json(by, id)).collect();
    tile.encode(named, &[], false)
}

/// Every block by itself, oldest at the bottom; neighbours below 2^smallest bytes are merged where they lie.
pub(crate) fn blocks(view: &View<'_>, window: Window, smallest: u32) -> Vec<u8> {
    let mut tile = Tile::new(window.first());
    let mut runs = Vec::new();
    for_each_moment(view, window, 1, |alive, head, times| {
        let held = alive.blocks.iter().filter(|block| block.is_held_at(head.position));
        stack(held.map(|block| (block.row, block.size)), smallest, &mut runs);
        tile.push(head, &runs);
        tile.repeat(times - 1);
    });
    encode_blocks(view, tile, false)
}

/// A tile of blocks with the line that each comes from.
pub(crate) fn encode_blocks(view: &View<'_>, tile: Tile, with_used: bool) -> Vec<u8> {
    let of_life = &view.groups(By::Site).of_life;
    let blocks: Vec<(u32, u32)> = tile.ids().into_iter().map(|row| (row, of_life[row as usize])).collect();
    let mut sites: Vec<u32> = blocks.iter().map(|&(_, site)| site).collect();
    sites.sort_unstable();
    sites.dedup();
    let named = sites.into_iter().map(|site| view.group_json(By::Site, site)).collect();
    tile.encode(named, &blocks, with_used)
}

/// Calls `draw` with the blocks in use at the moment of each column, and for how many columns that stands: at least `shared`.
pub(crate) fn for_each_moment(
    view: &View<'_>,
    window: Window,
    shared: usize,
    mut draw: impl FnMut(&Alive<'_>, Head, usize),
) {
    let columns = window.columns(view);
    let Some(first) = columns.first() else { return };
    let mut alive = Alive::at(view.history(), view.index(), first.start);
    let mut shared = shared;
    let most = if window.is_by_event() { MOST_LOOKS_AT_EVENTS } else { MOST_LOOKS };
    while columns.len() / shared * alive.blocks.len() > most && shared < columns.len() {
        shared *= 2;
    }
    for several in columns.chunks(shared) {
        let head = head(view, several[0].start..several[several.len() - 1].end);
        alive.advance(head.position);
        draw(&alive, head, several.len());
        alive.changes.clear();
    }
}

/// The moment that stands for some positions: the first with the most allocated bytes.
fn head(view: &View<'_>, positions: Range<usize>) -> Head {
    let extremes = view.curve().extremes(view.device(), positions.clone());
    let reserved = view.reserved().highest(positions);
    let (position, lowest) = (extremes.position, extremes.lowest);
    Head { position, elapsed_us: view.elapsed_us(position), lowest, reserved }
}

/// Puts one upon the other. Neighbours that are too small become one run.
fn stack(parts: impl Iterator<Item = (u32, u64)>, smallest: u32, runs: &mut Vec<Run>) {
    let smallest = 1u64 << smallest.min(63);
    runs.clear();
    for (id, bytes) in parts.filter(|&(_, bytes)| bytes > 0) {
        match runs.last_mut() {
            Some(last) if bytes < smallest && (last.id == MERGED || last.bytes < smallest) => {
                last.id = MERGED;
                last.bytes = last.bytes.saturating_add(bytes);
                last.used = last.bytes;
                last.pieces += 1;
            }
            _ => runs.push(Run { id, bytes, pieces: 1, used: bytes }),
        }
    }
}
