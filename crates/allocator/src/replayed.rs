//! A replayed run as a snapshot, for every command that reads one.

use crate::addresses::Policy;
use crate::card::Card;
use crate::model::{Block, Model, State};
use crate::recorded::Recorded;
use crate::simulate::{Run, WhatIf};
use rustc_hash::FxHashMap;
use snapshot::{BlockState, Bytes, Redone, Segment, Settings, Snapshot, StackId, StrId};

impl Recorded<'_> {
    /// The snapshot that the run would have left, under `conf` as its settings string.
    pub fn replayed(&self, what: &WhatIf, conf: &str) -> Snapshot {
        self.redo(what, conf, Policy::Learned)
    }

    /// The snapshot that the same requests leave under the recorded settings, on a card that has enough and whose driver
    /// chooses addresses by a fixed rule. Runs that ask for the same get the same, whatever card they were recorded on and
    /// wherever its segments lay.
    pub fn replayed_anew(&self) -> Snapshot {
        let what = WhatIf { conf: self.conf.clone(), total: None, available: None, limit: None };
        self.redo(&what, &self.snapshot.settings.conf, Policy::Anew)
    }

    fn redo(&self, what: &WhatIf, conf: &str, policy: Policy) -> Snapshot {
        let mut run = Run::new(self, what, policy);
        run.model.world.log = Some(Vec::new());
        run.replay(self);
        let log = run.model.world.log.take().unwrap_or_default();
        let first = self.history.rows.start;
        let events = log.into_iter().map(|(event, deed)| Redone {
            action: deed.action,
            addr: deed.addr,
            size: Bytes(deed.size),
            row: first + event as usize,
            stream: deed.stream,
        });
        let settings = Settings {
            conf: conf.to_owned(),
            max_split: what.conf.max_split,
            gc_threshold: what.conf.gc_threshold,
            expandable_segments: what.conf.expandable,
            divisions: what.conf.divisions,
            ..self.snapshot.settings.clone()
        };
        // Rows of blocks are used again: the last life that had one has it still, if any has.
        let mut stacks: FxHashMap<u32, StackId> = FxHashMap::default();
        for (life, &block) in self.history.lives.iter().zip(&run.block_of) {
            stacks.insert(block, life.stack);
        }
        let segments = segments(&run.model, self.history.device, &stacks);
        self.snapshot.redone(self.history.device, events, segments, settings)
    }
}

fn segments(
    model: &Model<Card>,
    device: u32,
    stacks: &FxHashMap<u32, StackId>,
) -> Vec<(Segment, Vec<snapshot::Block>)> {
    let segment = |head: u32| {
        let blocks: Vec<(u32, &Block)> = model.segment(head).collect();
        let ((_, first), (_, last)) = (blocks.first()?, blocks.last()?);
        let segment = Segment {
            device,
            addr: first.addr,
            size: Bytes(last.addr + last.size - first.addr),
            stream: model.stream(first),
            small: model.is_small(first),
            pool: model.pool_id(first),
            expandable: first.is_expandable(),
            stack: StackId::EMPTY,
            blocks: 0..0,
            extra: StrId::EMPTY,
        };
        let blocks = blocks.into_iter().map(|(place, row)| {
            let stack = stacks.get(&place).copied().filter(|_| row.state != State::Free);
            block(row, stack.unwrap_or_default())
        });
        Some((segment, blocks.collect()))
    };
    model.heads().into_iter().filter_map(segment).collect()
}

fn block(block: &Block, stack: StackId) -> snapshot::Block {
    snapshot::Block {
        addr: block.addr,
        size: Bytes(block.size),
        requested: Bytes(block.requested),
        state: match block.state {
            State::Allocated => BlockState::Allocated,
            State::Pending => BlockState::PendingFree,
            State::Free | State::Unmapped => BlockState::Inactive,
        },
        stack,
        extra: StrId::EMPTY,
    }
}
