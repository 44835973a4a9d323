//! The table `blocks`: one row per allocation, with its alloc and free events and its line of code.

use super::dictionary::Dictionary;
use super::{ExportTable, pool_name};
use analysis::{Device, ExecutionScope, Phase, Site};
use arrow_array::types::{UInt32Type, UInt64Type};
use recording::{Label, LabeledTensor};
use snapshot::{Allocation, Frame, FrameId, Region, Snapshot, StrId};

struct BlockTableRow<'a> {
    block: usize,
    device: u32,
    allocation: &'a Allocation,
    /// Region, with its index among the regions of all devices.
    region: Option<(usize, &'a Region)>,
    /// The user's innermost frame.
    site: Option<FrameId>,
    scope: ExecutionScope,
    /// Index of the module among those of all devices.
    module: Option<usize>,
    tensor: Option<&'a LabeledTensor>,
}

pub(super) fn blocks<'a>(
    snapshot: &'a Snapshot,
    devices: &'a [Device<'a>],
) -> anyhow::Result<ExportTable<'a>> {
    let regions = devices.iter().flat_map(|device| &device.history.regions);
    let pools = Dictionary::new(regions.map(|region| Some(pool_name(region.pool))))?;
    let frames = snapshot.stacks.all_frames();
    let of_frames = |of: fn(&Frame) -> StrId| {
        Dictionary::new(frames.iter().map(|frame| Some(snapshot.strings.get(of(frame)))))
    };
    let files = of_frames(|frame| frame.file)?;
    let functions = of_frames(|frame| frame.function)?;
    let states = Dictionary::new(STATES.into_iter().map(Some))?;
    let phases = Dictionary::new(Phase::ALL.into_iter().map(|phase| Some(phase.name())))?;
    let labels = Dictionary::new(Label::ALL.into_iter().map(|label| Some(label.name())))?;
    let modules = Dictionary::new(devices.iter().flat_map(|device| device.modules.paths()).map(Some))?;

    ExportTable::new("blocks", rows(devices), move |columns| {
        let site = |row: &BlockTableRow<'_>| row.site.map(|frame| frame.0 as usize);
        columns
            .number::<UInt32Type>("block_id", |row| row.block as u32)
            .number::<UInt32Type>("device", |row| row.device)
            .number::<UInt64Type>("addr", |row| row.allocation.addr)
            .number::<UInt64Type>("size", |row| row.allocation.size.0)
            .number::<UInt64Type>("requested", |row| row.allocation.requested.0)
            .optional_number::<UInt64Type>("stream", |row| row.region.map(|(_, region)| region.stream))
            .optional_dictionary("pool", &pools, |row| row.region.map(|(index, _)| index))?
            .number::<UInt32Type>("stack_id", |row| row.allocation.stack.0)
            .optional_number::<UInt32Type>("alloc_event", |row| {
                row.allocation.alloc_event().map(|event| event as u32)
            })
            .optional_number::<UInt32Type>("free_requested_event", |row| freed(row.allocation))
            .optional_number::<UInt32Type>("free_completed_event", |row| {
                row.allocation.completed_event().map(|event| event as u32)
            })
            .optional_dictionary("site_file", &files, site)?
            .optional_number::<UInt32Type>("site_line", |row| Some(snapshot.stacks.frame(row.site?).line))
            .optional_dictionary("site_function", &functions, site)?
            .dictionary("state_at_end", &states, |row| state(row.allocation))?
            .optional_dictionary("phase", &phases, |row| row.scope.phase.map(|phase| phase as usize))?
            .optional_dictionary("module", &modules, |row| row.module)?
            .optional_dictionary("label", &labels, |row| row.tensor.map(|tensor| tensor.label as usize))?
            .optional_text("tensor", |row| row.tensor.map(|tensor| tensor.name.as_str()))
    })
}

fn rows<'a>(devices: &'a [Device<'a>]) -> impl Iterator<Item = BlockTableRow<'a>> + 'a {
    let first_regions = running_total(devices, |device| device.history.regions.len());
    let first_modules = running_total(devices, |device| device.modules.len());
    let firsts = first_regions.zip(first_modules);
    first_blocks(devices).zip(firsts).flat_map(
        |((device, first_block), ((_, first_region), (_, first_module)))| {
            let history = &device.history;
            history.allocations.iter().enumerate().map(move |(index, allocation)| BlockTableRow {
                block: first_block + index,
                device: history.device,
                allocation,
                region: history
                    .regions
                    .get(allocation.region as usize)
                    .map(|region| (first_region + allocation.region as usize, region)),
                site: match device.sites.of(allocation.stack) {
                    Site::User(frame) => Some(frame),
                    _ => None,
                },
                scope: device.scope_of(allocation),
                module: device.module_of(index).map(|module| first_module + module.0 as usize),
                tensor: device.tensor_of(index),
            })
        },
    )
}

/// Returns each device with the `block_id` of its first block. Blocks are numbered across all devices.
pub(super) fn first_blocks<'a>(
    devices: &'a [Device<'a>],
) -> impl Iterator<Item = (&'a Device<'a>, usize)> + 'a {
    running_total(devices, |device| device.history.allocations.len())
}

fn running_total<'a>(
    devices: &'a [Device<'a>],
    count: fn(&Device<'_>) -> usize,
) -> impl Iterator<Item = (&'a Device<'a>, usize)> + 'a {
    devices.iter().scan(0, move |total, device| {
        let before = *total;
        *total += count(device);
        Some((device, before))
    })
}

/// Returns the event that requested the free; `None` if that was before the start of the history.
fn freed(allocation: &Allocation) -> Option<u32> {
    let before = allocation.alloc_event().is_none() && !allocation.is_allocated_at(0);
    allocation.free_event().filter(|_| !before).map(|event| event as u32)
}

/// States, named as in PyTorch's snapshots.
const STATES: [&str; 3] = ["active_allocated", "active_pending_free", "inactive"];

fn state(allocation: &Allocation) -> usize {
    match (allocation.free_event(), allocation.completed_event()) {
        (_, Some(_)) => 2,
        (Some(_), None) => 1,
        (None, None) => 0,
    }
}
