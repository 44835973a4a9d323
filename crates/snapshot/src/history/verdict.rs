//! The end of a replay: the counters that it leads to, and what did not fit on the way.

use super::replay::Replay;
use super::{Counters, Life, NONE};
use crate::bytes::Bytes;
use crate::tables::BlockState;

/// What did not fit, for the caveats.
#[derive(Default)]
pub(super) struct Surprises {
    pub(super) unknown_frees: u64,
    pub(super) unplaced: u64,
    pub(super) overlaps: u64,
    pub(super) segments: u64,
    pub(super) active_mismatches: u64,
}

impl Replay<'_> {
    /// The counters of each region now.
    pub(super) fn region_ends(&self) -> Vec<Counters> {
        let mut ends: Vec<Counters> = self
            .reserved
            .iter()
            .map(|&reserved| Counters { reserved: Bytes(reserved), ..Counters::default() })
            .collect();
        for piece in self.pieces.iter().filter(|piece| !piece.is_free()) {
            let life = &self.lives[piece.life as usize];
            let Some(end) = ends.get_mut(life.region as usize) else { continue };
            end.active += life.size;
            end.requested += life.requested;
            if life.freed == NONE {
                end.allocated += life.size;
            }
        }
        for (end, region) in ends.iter_mut().zip(&self.regions) {
            if !region.expandable && end.active > Bytes::ZERO {
                end.inactive_split = end.reserved - end.active;
            }
        }
        ends
    }

    /// What was surprising, in words; also holds the end of the replay against the final segments.
    pub(super) fn report(&self, complete: bool, caveats: &mut Vec<String>) {
        let rows = self.snapshot.rows(self.device);
        let mut say = |count: u64, text: &str| {
            if count > 0 {
                caveats.push(format!("{count} {text}"));
            }
        };
        let surprises = &self.surprises;
        say(surprises.unknown_frees, "frees of blocks that were not in use: those events were passed over");
        say(
            surprises.unplaced,
            "allocations outside every known segment (segment events were not recorded?): counted with their \
             rounded size",
        );
        say(
            surprises.overlaps,
            "allocations over blocks that no event had freed (free events were not recorded?): those blocks are \
             taken as freed at that moment",
        );
        say(surprises.segments, "segment events that do not fit the state: reserved bytes may be off");
        say(
            surprises.active_mismatches,
            "snapshots in the history noted other active bytes than the replay: sizes may be off",
        );
        let reserved = self.stats.counters().reserved;
        let segments: Bytes = self.snapshot.segments_of(self.device).map(|segment| segment.size).sum();
        if reserved != segments && surprises.segments == 0 {
            caveats.push(format!(
                "the segment events lead to {reserved} reserved at the end, the final segments have {segments}"
            ));
        }
        let (blocks, bytes) = self.differences_at_the_end();
        if blocks > 0 {
            caveats.push(format!(
                "{blocks} blocks ({bytes}) of the final segments differ from the replay: settings were probably \
                 changed while recording"
            ));
        }
        if rows.is_empty() {
            caveats.insert(0, "no history was recorded: only the state at the end is known".to_owned());
        } else if !complete {
            caveats.insert(
                0,
                format!(
                    "the history is truncated: {} were already allocated when it begins; peaks and totals count \
                     from there",
                    self.at_start
                ),
            );
        }
    }

    fn differences_at_the_end(&self) -> (u64, Bytes) {
        let (mut count, mut bytes) = (0, Bytes::ZERO);
        for segment in self.snapshot.segments_of(self.device) {
            for block in &self.snapshot.blocks[segment.blocks.clone()] {
                let replayed = self
                    .pieces
                    .find(block.addr)
                    .map(|place| self.pieces.get(place))
                    .filter(|piece| !piece.is_free())
                    .map(|piece| &self.lives[piece.life as usize]);
                let state = |life: &Life| match life.freed {
                    NONE => BlockState::Allocated,
                    _ => BlockState::PendingFree,
                };
                let equal = match (block.state, replayed) {
                    (BlockState::Inactive, None) => true,
                    (BlockState::Inactive, Some(_)) | (_, None) => false,
                    (expected, Some(life)) => life.size == block.size && state(life) == expected,
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
