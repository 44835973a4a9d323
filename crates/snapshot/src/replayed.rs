//! Snapshots of replayed runs: the same program under another allocator.

use crate::bytes::Bytes;
use crate::settings::{EarlierSettings, Settings};
use crate::snapshot::{PinnedTables, Snapshot};
use crate::tables::{Action, Block, Context, EventRow, Segment, Trace};
use crate::text::{StrId, Strings};

/// One event of a replayed run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayedEvent {
    /// What happened.
    pub action: Action,
    /// Block or segment address; for [`Action::Oom`] the free bytes of the device.
    pub addr: u64,
    /// Requested bytes for block events, segment or mapped bytes for segment events.
    pub size: Bytes,
    /// EventRow of the recorded [`Snapshot::events`] that it happened under, which provides its time, stack,
    /// pool and labels.
    pub row: usize,
    /// Stream of the block or segment.
    pub stream: u64,
}

impl Snapshot {
    /// Returns the snapshot of the same program under another allocator: its own strings, stacks, times
    /// and annotations, with other events and segments of one device. Other devices are left out.
    ///
    /// Segments may come in any order, each with its blocks; their ranges in [`Snapshot::blocks`] are set
    /// here. The pairs of `settings` are ignored: the result has the recorded pairs with the new values.
    pub fn replayed(
        &self,
        device: u32,
        events: impl IntoIterator<Item = ReplayedEvent>,
        mut segments: Vec<(Segment, Vec<Block>)>,
        settings: Settings,
        earlier_settings: Vec<EarlierSettings>,
    ) -> Snapshot {
        let mut strings = self.strings.clone();
        let pairs = pairs(&self.settings, &settings, &mut strings);
        let settings = Settings { pairs, recorded: self.settings.recorded, ..settings };

        let events = events.into_iter();
        let mut replayed = self.events.with_the_same_names();
        replayed.reserve(events.size_hint().0);
        for event in events {
            let recorded = self.events.get(event.row);
            let context = Context { stream: event.stream, ..*self.events.context(recorded.context) };
            let context = replayed.intern_context(context);
            replayed.push(EventRow {
                action: event.action.code(),
                addr: event.addr,
                size: event.size.0,
                time_us: recorded.time_us,
                stack: recorded.stack,
                context,
            });
        }
        let rows = 0..replayed.len();
        let traces = if rows.is_empty() { Vec::new() } else { vec![Trace { device, rows }] };

        segments.sort_by_key(|(segment, _)| segment.addr);
        let mut blocks = Vec::with_capacity(segments.iter().map(|(_, blocks)| blocks.len()).sum());
        let segments = segments.into_iter().map(|(segment, own)| {
            let start = blocks.len();
            blocks.extend(own);
            Segment { device, blocks: start..blocks.len(), ..segment }
        });
        Snapshot {
            segments: segments.collect(),
            blocks,
            strings,
            stacks: self.stacks.clone(),
            events: replayed,
            traces,
            annotations: self.annotations.clone(),
            settings,
            earlier_settings,
            kind: self.kind,
            pinned: PinnedTables::default(),
            torch: self.torch,
            caveats: self.caveats.clone(),
        }
    }
}

/// Returns the recorded pairs, with the values of `new` where they differ from the recorded ones.
fn pairs(recorded: &Settings, new: &Settings, strings: &mut Strings) -> Vec<(StrId, StrId)> {
    let mut changed = |(key, value): (StrId, StrId)| {
        let json = match strings.get(key) {
            "PYTORCH_CUDA_ALLOC_CONF" if new.conf != recorded.conf => {
                serde_json::Value::from(new.conf.as_str()).to_string()
            }
            "max_split_size" if new.max_split != recorded.max_split => {
                new.max_split.map_or("-1".to_owned(), |bytes| bytes.to_string())
            }
            "garbage_collection_threshold" if new.gc_threshold != recorded.gc_threshold => {
                format!("{:?}", new.gc_threshold)
            }
            "expandable_segments" if new.expandable_segments != recorded.expandable_segments => {
                new.expandable_segments.to_string()
            }
            "roundup_power2_divisions" if new.divisions != recorded.divisions => {
                let steps = new.divisions.iter().enumerate();
                let steps: Vec<String> =
                    steps.map(|(place, n)| format!("\"{}\":{n}", 1u32 << place)).collect();
                format!("{{{}}}", steps.join(","))
            }
            _ => return (key, value),
        };
        (key, strings.intern(&json))
    };
    recorded.pairs.iter().map(|&pair| changed(pair)).collect()
}
