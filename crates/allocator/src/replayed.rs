//! Conversion of a replayed run to a snapshot, for every command that reads one.

use crate::addresses::Policy;
use crate::conf::Conf;
use crate::model::{Model, ModelBlock, ModelBlockState};
use crate::recorded::RecordedRun;
use crate::simulate::{SimulatedRun, WhatIf};
use crate::simulated_device::SimulatedDevice;
use rustc_hash::FxHashMap;
use snapshot::{
    BlockState, Bytes, EarlierSettings, ReplayedEvent, Segment, Settings, Snapshot, StackId, StrId,
};

impl RecordedRun<'_> {
    /// Returns the snapshot that the run would have left, with `conf` as its settings string.
    pub fn replayed(&self, what: &WhatIf, conf: &str) -> Snapshot {
        self.replay_with(what, conf, Policy::Learned)
    }

    /// Returns the snapshot that the same requests leave under the recorded settings, on a card with enough
    /// memory whose driver chooses addresses by a fixed rule. Runs with the same requests give the same
    /// result, no matter what card they were recorded on and where its segments were.
    pub fn replayed_with_fixed_addresses(&self) -> Snapshot {
        let what = WhatIf { conf: self.conf.clone(), total: None, available: None, limit: None };
        self.replay_with(&what, &self.snapshot.settings.conf, Policy::FixedRule)
    }

    fn replay_with(&self, what: &WhatIf, conf: &str, policy: Policy) -> Snapshot {
        let mut run = SimulatedRun::new(self, what, policy);
        run.model.environment.log = Some(Vec::new());
        run.replay(self);
        let log = run.model.environment.log.take().unwrap_or_default();
        let settings = |conf: &Conf, text: &str| {
            let mut settings = Settings { conf: text.to_owned(), ..self.snapshot.settings.clone() };
            conf.replace_in(&mut settings);
            settings
        };
        let changes = what.conf.changes();
        let texts = std::iter::once(conf).chain(changes.iter().map(|change| change.text.as_str()));
        let earlier = what.conf.all().zip(texts).zip(changes).map(|((conf, text), change)| EarlierSettings {
            device: self.history.device,
            until: log.partition_point(|(event, _)| (*event as usize) < change.event),
            settings: settings(conf, text),
        });
        let earlier = earlier.collect();
        let last = settings(what.conf.last(), changes.last().map_or(conf, |change| &change.text));
        let first = self.history.rows.start;
        let events = log.into_iter().map(|(event, modeled)| ReplayedEvent {
            action: modeled.action,
            addr: modeled.addr,
            size: Bytes(modeled.size),
            row: first + event as usize,
            stream: modeled.stream,
        });
        // Rows of blocks are reused: only the last allocation of a row can still hold it.
        let mut stacks: FxHashMap<u32, StackId> = FxHashMap::default();
        for (allocation, &block) in self.history.allocations.iter().zip(&run.block_of) {
            stacks.insert(block, allocation.stack);
        }
        let segments = segments(&run.model, self.history.device, &stacks);
        self.snapshot.replayed(self.history.device, events, segments, last, earlier)
    }
}

fn segments(
    model: &Model<SimulatedDevice>,
    device: u32,
    stacks: &FxHashMap<u32, StackId>,
) -> Vec<(Segment, Vec<snapshot::Block>)> {
    let segment = |head: u32| {
        let blocks: Vec<(u32, &ModelBlock)> = model.segment(head).collect();
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
            let stack = stacks.get(&place).copied().filter(|_| row.state != ModelBlockState::Free);
            block(row, stack.unwrap_or_default())
        });
        Some((segment, blocks.collect()))
    };
    model.heads().into_iter().filter_map(segment).collect()
}

fn block(block: &ModelBlock, stack: StackId) -> snapshot::Block {
    snapshot::Block {
        addr: block.addr,
        size: Bytes(block.size),
        requested: Bytes(block.requested),
        state: match block.state {
            ModelBlockState::Allocated => BlockState::Allocated,
            ModelBlockState::Pending => BlockState::PendingFree,
            ModelBlockState::Free | ModelBlockState::Unmapped => BlockState::Inactive,
        },
        stack,
        extra: StrId::EMPTY,
    }
}
