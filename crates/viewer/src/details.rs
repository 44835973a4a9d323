//! One block, or one group, in full.

use crate::groups::{By, named_categories};
use crate::view::View;
use analysis::words::{counted, grouped};
use analysis::{ByCategory, Origin};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use snapshot::{Bytes, PoolId, StackId};
use std::cmp::Reverse;

/// Stacks of a group that are shown.
const STACKS: usize = 8;

/// A block: its birth, its death, and what it is.
pub(crate) fn block(view: &View<'_>, row: usize) -> Option<Value> {
    let (device, history) = (view.device(), view.history());
    let life = history.lives.get(row)?;
    let group = view.groups(By::Site).of_life[row];
    let module = view.device().module_of(row).map(|module| device.modules.path(module).to_owned());
    let tensor = device.tensor_of(row).map(|tensor| format!("{} {}", tensor.label.name(), tensor.name));
    let segment = history.regions.get(life.region as usize).map(|region| {
        json!({
            "addr": hex(region.addr), "size": region.size.0, "stream": hex(region.stream), "pool": pool(region.pool),
            "small": region.small, "expandable": region.expandable,
        })
    });
    let step = |event: Option<usize>| event.and_then(|event| device.steps.of_event(event));
    let time = |event: Option<usize>| event.map(|event| view.elapsed_us(event + 1));
    Some(json!({
        "row": row,
        "addr": hex(life.addr),
        "size": life.size.0,
        "requested": life.requested.0,
        "born": life.born(),
        "freed": life.freed(),
        "completed": life.completed(),
        "bornUs": time(life.born()),
        "freedUs": time(life.freed()),
        "bornStep": step(life.born()),
        "freedStep": step(life.freed()),
        "lived": lived(view, life.born(), life.freed()),
        "category": view.outline.categories.of(row).name(),
        "module": module,
        "tensor": tensor,
        "group": group,
        "site": view.group_json(By::Site, group)["label"],
        "segment": segment,
        "stack": view.stack_json(life.stack),
    }))
}

/// `3,120 events, 1.24 s`
fn lived(view: &View<'_>, born: Option<usize>, freed: Option<usize>) -> String {
    let events = freed.unwrap_or(view.history().len()).saturating_sub(born.unwrap_or(0));
    let until = view.elapsed_us(freed.map_or(view.history().len(), |freed| freed + 1));
    let elapsed = until.saturating_sub(born.map_or(0, |born| view.elapsed_us(born + 1)));
    let least = if born.is_none() || freed.is_none() { "at least " } else { "" };
    match view.duration_us() {
        0 => format!("{least}{}", counted(events as u64, "event")),
        _ => format!("{least}{}, {}", counted(events as u64, "event"), duration(elapsed)),
    }
}

/// Microseconds as people read them.
fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.2} s", us as f64 / 1e6),
        _ => format!("{} min {} s", us / 60_000_000, us % 60_000_000 / 1_000_000),
    }
}

/// A group at a position.
pub(crate) fn group(view: &View<'_>, by: By, id: u32, position: usize) -> Option<Value> {
    let (history, groups) = (view.history(), view.groups(by));
    let group = groups.all.get(id as usize)?;
    let (mut bytes, mut count) = (Bytes::ZERO, 0u64);
    let mut categories = ByCategory::default();
    let mut stacks: FxHashMap<StackId, (Bytes, u64)> = FxHashMap::default();
    for row in view.allocated_at(position).into_iter().map(|row| row as usize) {
        if groups.of_life[row] != id {
            continue;
        }
        let life = &history.lives[row];
        bytes += life.size;
        count += 1;
        categories.0[view.outline.categories.of(row) as usize] += life.size;
        let of_stack = stacks.entry(life.stack).or_default();
        of_stack.0 += life.size;
        of_stack.1 += 1;
    }
    // Where it holds nothing at the moment, its stacks are those of all its blocks.
    if stacks.is_empty() {
        let rows = groups.of_life.iter().zip(&history.lives).filter(|(of, _)| **of == id);
        for (_, life) in rows.take(100_000) {
            stacks.entry(life.stack).or_default();
        }
    }
    let mut stacks: Vec<(StackId, (Bytes, u64))> = stacks.into_iter().collect();
    stacks.sort_by_key(|&(stack, (bytes, _))| (Reverse(bytes), stack));
    let stacks: Vec<Value> = stacks
        .into_iter()
        .take(STACKS)
        .map(|(stack, (bytes, count))| {
            json!({"bytes": bytes.0, "count": count, "frames": view.stack_json(stack)})
        })
        .collect();
    Some(json!({
        "group": view.group_json(by, id),
        "by": by.name(),
        "bytes": bytes.0,
        "count": count,
        "highest": {"bytes": group.highest, "position": group.position},
        "made": group.blocks,
        "stacks": stacks,
        "categories": named_categories(&categories),
    }))
}

/// The group of a finding's line.
pub(crate) fn group_of_line(view: &View<'_>, frame: snapshot::FrameId) -> Option<u32> {
    view.groups(By::Site)
        .number_of(|origin| matches!(origin, Origin::Site(site) if site.frame() == Some(frame)))
}

/// An address or a stream, as PyTorch prints them.
pub(crate) fn hex(number: u64) -> String {
    format!("0x{number:x}")
}

/// The name of a pool.
pub(crate) fn pool(pool: PoolId) -> String {
    if pool == PoolId::DEFAULT {
        "default".to_owned()
    } else {
        format!("({}, {})", grouped(pool.0), grouped(pool.1))
    }
}
