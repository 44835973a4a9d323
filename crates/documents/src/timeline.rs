//! The memory timeline of each device in a few columns, for a small picture.

use crate::amounts::{BytesByCategory, by_category};
use analysis::{ByCategory, Device, RunModel};
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
    /// Allocated bytes by category: they add up to what was allocated.
    categories: BytesByCategory,
}

/// Blocks that begin or cease to be allocated at a position.
struct Change {
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
        let (mut held, mut total) = (ByCategory::default(), Bytes::ZERO);
        let mut apply = |until: usize, held: &mut ByCategory, total: &mut Bytes| {
            while let Some(change) = changes.next_if(|change| change.position <= until) {
                let size = history.allocations[change.row].size;
                let sum = &mut held.0[model.categories.of(change.row) as usize];
                if change.is_alloc {
                    (*sum, *total) = (*sum + size, *total + size);
                } else {
                    (*sum, *total) = (sum.saturating_sub(size), total.saturating_sub(size));
                }
            }
            changes.peek().map(|next| next.position)
        };
        let count = most.min(positions);
        let columns = (0..count).map(|column| {
            let (first, end) = (column * positions / count, (column + 1) * positions / count);
            let mut next = apply(first, &mut held, &mut total);
            let mut highest = (total, first, held);
            while let Some(position) = next.filter(|&position| position < end) {
                next = apply(position, &mut held, &mut total);
                if total > highest.0 {
                    highest = (total, position, held);
                }
            }
            TimelineColumn { position: highest.1, categories: by_category(&highest.2) }
        });
        DeviceTimeline { device: history.device, columns: columns.collect() }
    }
}

/// Returns all changes, in order.
fn changes(device: &Device<'_>, positions: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    for (row, allocation) in device.history.allocations.iter().enumerate() {
        let allocated = allocation.allocated_within(0..positions);
        if !allocated.is_empty() {
            changes.push(Change { position: allocated.start, row, is_alloc: true });
            changes.push(Change { position: allocated.end, row, is_alloc: false });
        }
    }
    changes.sort_by_key(|change| change.position);
    changes
}
