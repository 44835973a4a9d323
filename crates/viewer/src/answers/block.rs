//! One block in full.

use super::overview::first_moment;
use super::{hex, pool_name};
use crate::question::ExportPart;
use crate::question::Question;
use crate::run::groups::GroupBy;
use crate::run::shapes::StackFrame;
use crate::run::view::DeviceView;
use crate::{Problem, Viewer};
use analysis::words::counted;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Blocks that have details in an exported page.
const MAX_EXPORTED_BLOCKS: usize = 400;

/// Asks for a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct BlockQuery {
    pub(crate) run: usize,
    /// Number of the allocation.
    pub(crate) row: usize,
}

impl Question for BlockQuery {
    const NAME: &'static str = "block";
    type Answer = BlockDetails;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<BlockDetails, Problem> {
        viewer.about(self.run, |view| block(view, self.row))
    }

    fn exported(part: &ExportPart<'_>) -> Vec<BlockQuery> {
        match *part {
            ExportPart::Details { view } => {
                let mut rows = view.allocated_at(first_moment(view));
                rows.sort_by_key(|&row| Reverse(view.history().allocations[row as usize].size));
                rows.truncate(MAX_EXPORTED_BLOCKS);
                rows.into_iter().map(|row| BlockQuery { run: view.id, row: row as usize }).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// One block, from its allocation to its free.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct BlockDetails {
    /// Number of the allocation.
    row: usize,
    /// Hexadecimal.
    addr: String,
    size: u64,
    /// Bytes requested, before rounding.
    requested: u64,
    /// Event that allocated it; `null` if that was before the history.
    alloc_event: Option<usize>,
    /// Event that freed it; `null` if it was never freed.
    free_event: Option<usize>,
    /// Event at which its memory could be used again.
    free_completed_event: Option<usize>,
    /// Microseconds from the first event to its allocation.
    alloc_us: Option<u64>,
    /// Microseconds from the first event to its free.
    free_us: Option<u64>,
    alloc_step: Option<usize>,
    free_step: Option<usize>,
    /// How long it was allocated, in words: `3,120 events, 1.24 s`.
    lifetime: String,
    category: &'static str,
    /// Path of the module.
    module: Option<String>,
    /// Label of a recorder: `parameter layers.0.weight`.
    tensor: Option<String>,
    /// Group by site.
    group: u32,
    site: String,
    segment: Option<BlockSegment>,
    /// Innermost frame first.
    stack: Vec<StackFrame>,
}

/// The segment that a block lies in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct BlockSegment {
    addr: String,
    size: u64,
    stream: String,
    pool: String,
    small: bool,
    expandable: bool,
}

/// Describes the block of an allocation.
pub(crate) fn block(view: &DeviceView<'_>, row: usize) -> Result<BlockDetails, Problem> {
    let (device, history) = (view.device(), view.history());
    let allocation = history.allocations.get(row).ok_or_else(|| Problem::new("there is no such block"))?;
    let (alloc, free) = (allocation.alloc_event(), allocation.free_event());
    let group = view.groups(GroupBy::Site).of_allocation[row];
    let segment = history.regions.get(allocation.region as usize).map(|region| BlockSegment {
        addr: hex(region.addr),
        size: region.size.0,
        stream: hex(region.stream),
        pool: pool_name(region.pool),
        small: region.small,
        expandable: region.expandable,
    });
    let step = |event: Option<usize>| event.and_then(|event| device.steps.of_event(event));
    let time = |event: Option<usize>| event.map(|event| view.elapsed_us(event + 1));
    Ok(BlockDetails {
        row,
        addr: hex(allocation.addr),
        size: allocation.size.0,
        requested: allocation.requested.0,
        alloc_event: alloc,
        free_event: free,
        free_completed_event: allocation.completed_event(),
        alloc_us: time(alloc),
        free_us: time(free),
        alloc_step: step(alloc),
        free_step: step(free),
        lifetime: lifetime(view, alloc, free),
        category: view.model.categories.of(row).name(),
        module: device.module_of(row).map(|module| device.modules.path(module).to_owned()),
        tensor: device.tensor_of(row).map(|tensor| format!("{} {}", tensor.label.name(), tensor.name)),
        group,
        site: view.label(GroupBy::Site, group),
        segment,
        stack: view.stack(allocation.stack),
    })
}

/// Says how long a block was allocated: `3,120 events, 1.24 s`.
fn lifetime(view: &DeviceView<'_>, alloc: Option<usize>, free: Option<usize>) -> String {
    let events = free.unwrap_or(view.history().len()).saturating_sub(alloc.unwrap_or(0));
    let until = view.elapsed_us(free.map_or(view.history().len(), |free| free + 1));
    let elapsed = until.saturating_sub(alloc.map_or(0, |alloc| view.elapsed_us(alloc + 1)));
    let least = if alloc.is_none() || free.is_none() { "at least " } else { "" };
    match view.duration_us() {
        0 => format!("{least}{}", counted(events as u64, "event")),
        _ => format!("{least}{}, {}", counted(events as u64, "event"), duration(elapsed)),
    }
}

/// Writes microseconds in a readable unit.
fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.2} s", us as f64 / 1e6),
        _ => format!("{} min {} s", us / 60_000_000, us % 60_000_000 / 1_000_000),
    }
}
