//! The table `segments`: the memory that was reserved when the snapshot was taken.

use super::dictionary::Dictionary;
use super::{ExportTable, pool_name};
use arrow_array::types::{UInt32Type, UInt64Type};
use snapshot::{Block, BlockState, Bytes, Segment, Snapshot};

pub(super) fn segments(snapshot: &Snapshot) -> anyhow::Result<ExportTable<'_>> {
    let pools = Dictionary::new(snapshot.segments.iter().map(|segment| Some(pool_name(segment.pool))))?;
    let kinds = Dictionary::new(["large", "small"].into_iter().map(Some))?;
    // The sums in the file are not used: the blocks agree with the rest of the export.
    let sum = |segment: &Segment, of: fn(&Block) -> Bytes| -> u64 {
        snapshot.blocks[segment.blocks.clone()].iter().map(of).sum::<Bytes>().0
    };
    ExportTable::new("segments", snapshot.segments.iter().enumerate(), move |columns| {
        Ok(columns
            .number::<UInt32Type>("segment_id", |(index, _)| *index as u32)
            .number::<UInt32Type>("device", |(_, segment)| segment.device)
            .number::<UInt64Type>("addr", |(_, segment)| segment.addr)
            .number::<UInt64Type>("size", |(_, segment)| segment.size.0)
            .number::<UInt64Type>("stream", |(_, segment)| segment.stream)
            .dictionary("pool", &pools, |(index, _)| *index)?
            .dictionary("kind", &kinds, |(_, segment)| usize::from(segment.small))?
            .flag("expandable", |(_, segment)| segment.expandable)
            .number::<UInt64Type>("allocated", |(_, segment)| sum(segment, allocated))
            .number::<UInt64Type>("active", |(_, segment)| sum(segment, |block| active(block, block.size)))
            .number::<UInt64Type>("requested", |(_, segment)| {
                sum(segment, |block| active(block, block.requested))
            })
            .number::<UInt32Type>("stack_id", |(_, segment)| segment.stack.0))
    })
}

fn allocated(block: &Block) -> Bytes {
    if block.state == BlockState::Allocated { block.size } else { Bytes::ZERO }
}

fn active(block: &Block, bytes: Bytes) -> Bytes {
    if block.state == BlockState::Inactive { Bytes::ZERO } else { bytes }
}
