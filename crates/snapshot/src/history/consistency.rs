//! End of a replay: the final counters, and caveats about events that contradict the state.

use super::replay::Replay;
use super::{Allocation, Counters, NONE};
use crate::bytes::Bytes;
use crate::tables::BlockState;

/// Counts of events that contradict the state, for the caveats.
#[derive(Default)]
pub(super) struct Inconsistencies {
    pub(super) unknown_frees: u64,
    pub(super) unplaced: u64,
    pub(super) overlaps: u64,
    pub(super) segments: u64,
    pub(super) active_mismatches: u64,
}

impl Replay<'_> {
    /// Returns the current counters of each region.
    pub(super) fn region_ends(&self) -> Vec<Counters> {
        let mut ends: Vec<Counters> = self
            .reserved
            .iter()
            .map(|&reserved| Counters { reserved: Bytes(reserved), ..Counters::default() })
            .collect();
        for piece in self.pieces.iter().filter(|piece| !piece.is_free()) {
            let allocation = &self.allocations[piece.allocation as usize];
            let Some(end) = ends.get_mut(allocation.region as usize) else { continue };
            end.active += allocation.size;
            end.requested += allocation.requested;
            if allocation.free_event == NONE {
                end.allocated += allocation.size;
            }
        }
        for (end, region) in ends.iter_mut().zip(&self.regions) {
            if !region.expandable && end.active > Bytes::ZERO {
                end.inactive_split = end.reserved - end.active;
            }
        }
        ends
    }

    /// Adds the caveats about contradictions, and compares the end of the replay with the final segments.
    pub(super) fn report(&self, complete: bool, caveats: &mut Vec<String>) {
        let rows = self.snapshot.rows(self.device);
        let mut say = |count: u64, text: &str| {
            if count > 0 {
                caveats.push(format!("{count} {text}"));
            }
        };
        let inconsistencies = &self.inconsistencies;
        say(inconsistencies.unknown_frees, "frees of blocks that were not in use: those events were skipped");
        say(
            inconsistencies.unplaced,
            "allocations outside every known segment (were segment events not recorded?): counted with \
             their rounded size",
        );
        say(
            inconsistencies.overlaps,
            "allocations over blocks that no event had freed (were free events not recorded?): those \
             blocks are treated as freed at that moment",
        );
        say(inconsistencies.segments, "segment events that do not fit the state: reserved bytes may be off");
        say(
            inconsistencies.active_mismatches,
            "snapshots in the history recorded other active bytes than the replay: sizes may be off",
        );
        let reserved = self.stats.counters().reserved;
        let segments: Bytes = self.snapshot.segments_of(self.device).map(|segment| segment.size).sum();
        if reserved != segments && inconsistencies.segments == 0 {
            caveats.push(format!(
                "the segment events lead to {reserved} reserved at the end, the final segments have \
                 {segments}"
            ));
        }
        let (blocks, bytes) = self.differences_at_the_end();
        if blocks > 0 {
            caveats.push(format!(
                "{blocks} blocks ({bytes}) of the final segments differ from the replay: settings were \
                 probably changed while recording"
            ));
        }
        if rows.is_empty() {
            caveats.insert(0, "no history was recorded: only the state at the end is known".to_owned());
        } else if !complete {
            caveats.insert(
                0,
                format!(
                    "the history is truncated: {} was already allocated when it begins; peaks and totals \
                     count from there",
                    self.at_start
                ),
            );
        }
    }

    /// Counts the blocks of the final segments that differ from the replay, and their bytes.
    fn differences_at_the_end(&self) -> (u64, Bytes) {
        let (mut count, mut bytes) = (0, Bytes::ZERO);
        for segment in self.snapshot.segments_of(self.device) {
            for block in &self.snapshot.blocks[segment.blocks.clone()] {
                let replayed = self
                    .pieces
                    .find(block.addr)
                    .map(|place| self.pieces.get(place))
                    .filter(|piece| !piece.is_free())
                    .map(|piece| &self.allocations[piece.allocation as usize]);
                let state = |allocation: &Allocation| match allocation.free_event {
                    NONE => BlockState::Allocated,
                    _ => BlockState::PendingFree,
                };
                let equal = match (block.state, replayed) {
                    (BlockState::Inactive, None) => true,
                    (BlockState::Inactive, Some(_)) | (_, None) => false,
                    (expected, Some(allocation)) => {
                        allocation.size == block.size && state(allocation) == expected
                    }
                };
                if !equal {
                    count += 1;
                    bytes += block.size;
                }
            }
        }
        (count, bytes)
    }
}
