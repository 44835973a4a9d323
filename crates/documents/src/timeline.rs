//! The memory timeline of each device in a few columns, for a small picture.

use crate::amounts::{BytesByCategory, by_category};
use analysis::{ByCategory, Category, Device, RunModel};
use serde::Serialize;
use snapshot::Bytes;

/// Memory timeline of one device.
#[derive(Serialize)]
pub struct DeviceTimeline {
    device: u32,
    /// Each stands for equally many positions.
    columns: Vec<TimelineColumn>,
}

/// The first position of a column's interval with the most allocated bytes.
#[derive(Serialize)]
struct TimelineColumn {
    /// Number of events applied.
    position: usize,
    /// Bytes from before the first event that are not known to belong to a model or its optimizer.
    before: u64,
    /// Other allocated bytes by category: with `before`, they add up to what was allocated.
    categories: BytesByCategory,
}

/// Blocks that begin or cease to be allocated at a position.
struct TimelineChange {
    position: usize,
    row: usize,
    is_alloc: bool,
}

impl DeviceTimeline {
    /// Draws the history of a device in at most `most` columns.
    pub fn new(device: &Device<'_>, most: usize) -> DeviceTimeline {
        let model = RunModel::new(device);
        let history = &device.history;
        let positions = history.len() + 1;
        let changes = changes(device, positions);
        let mut changes = changes.iter().peekable();
        let mut held = TimelineHeld::default();
        let mut apply = |until: usize, held: &mut TimelineHeld| {
            while let Some(change) = changes.next_if(|change| change.position <= until) {
                let allocation = &history.allocations[change.row];
                let category = model.categories.of(change.row);
                let is_before = allocation.alloc_event().is_none() && !is_labelled(category);
                let sum = if is_before { &mut held.before } else { &mut held.later.0[category as usize] };
                let changed = |sum: Bytes| match change.is_alloc {
                    true => sum + allocation.size,
                    false => sum.saturating_sub(allocation.size),
                };
                (*sum, held.total) = (changed(*sum), changed(held.total));
            }
            changes.peek().map(|next| next.position)
        };
        let count = most.min(positions);
        let columns = (0..count).map(|column| {
            let (first, end) = (column * positions / count, (column + 1) * positions / count);
            let mut next = apply(first, &mut held);
            let mut highest = (first, held);
            while let Some(position) = next.filter(|&position| position < end) {
                next = apply(position, &mut held);
                if held.total > highest.1.total {
                    highest = (position, held);
                }
            }
            let (position, TimelineHeld { before, later, .. }) = highest;
            TimelineColumn { position, before: before.0, categories: by_category(&later) }
        });
        DeviceTimeline { device: history.device, columns: columns.collect() }
    }
}

/// Whether what a block is used for can be known without its allocation.
fn is_labelled(category: Category) -> bool {
    matches!(category, Category::Parameter | Category::Buffer | Category::Gradient | Category::Optimizer)
}

/// What is allocated at a position.
#[derive(Clone, Copy, Default)]
struct TimelineHeld {
    before: Bytes,
    later: ByCategory,
    total: Bytes,
}

/// Returns all changes, in order.
fn changes(device: &Device<'_>, positions: usize) -> Vec<TimelineChange> {
    let mut changes = Vec::new();
    for (row, allocation) in device.history.allocations.iter().enumerate() {
        let allocated = allocation.allocated_within(0..positions);
        if !allocated.is_empty() {
            changes.push(TimelineChange { position: allocated.start, row, is_alloc: true });
            changes.push(TimelineChange { position: allocated.end, row, is_alloc: false });
        }
    }
    changes.sort_by_key(|change| change.position);
    changes
}
