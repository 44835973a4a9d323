//! Fills the tables of a [`Snapshot`] from any input format and counts unusual content for the caveats.

use crate::bytes::Bytes;
use crate::settings::{Settings, Shape};
use crate::snapshot::{DeviceKind, PinnedTables, Snapshot};
use crate::stacks::{Frame, FrameId, StackId, Stacks};
use crate::tables::{
    Annotation, Block, BlockState, Context, EventColumns, EventRow, Events, PoolId, Segment, Trace,
};
use crate::text::{StrId, Strings};
use crate::words;
use std::collections::BTreeMap;
use std::ops::Range;

/// Table of a snapshot that unknown keys are reported for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum TableKind {
    TopLevel,
    Event,
    Frame,
    Segment,
    Block,
    Annotation,
}

impl TableKind {
    fn plural(self) -> &'static str {
        match self {
            TableKind::TopLevel => "top level",
            TableKind::Event => "events",
            TableKind::Frame => "frames",
            TableKind::Segment => "segments",
            TableKind::Block => "blocks",
            TableKind::Annotation => "annotations",
        }
    }
}

/// Maximum number of unknown keys and actions named individually in the caveats.
const MAX_NAMED_KEYS: usize = 20;
/// Devices with this ordinal or a higher one come from a damaged file.
const MAX_DEVICES: u32 = 256;

/// Fields of one event as decoded; missing keys are `None` or empty.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct EventFields {
    pub(crate) action: StrId,
    pub(crate) addr: Option<u64>,
    pub(crate) device_free: Option<u64>,
    pub(crate) size: Option<u64>,
    pub(crate) time_us: Option<i64>,
    pub(crate) stack: StackId,
    pub(crate) context: Context,
}

/// Fields of one block as decoded.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct BlockFields {
    pub(crate) addr: Option<u64>,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) state: StrId,
    pub(crate) stack: StackId,
    pub(crate) extra: StrId,
}

/// Fields of one segment as decoded.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFields {
    pub(crate) device: u64,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) kind: StrId,
    pub(crate) pool: Option<PoolId>,
    pub(crate) expandable: bool,
    pub(crate) stack: StackId,
    pub(crate) blocks: Range<usize>,
    pub(crate) extra: StrId,
}

impl Default for SegmentFields {
    fn default() -> Self {
        SegmentFields {
            device: 0,
            addr: 0,
            size: 0,
            stream: 0,
            kind: StrId::EMPTY,
            pool: None,
            expandable: false,
            stack: StackId::EMPTY,
            blocks: 0..0,
            extra: StrId::EMPTY,
        }
    }
}

/// Tables under construction.
pub(crate) struct Builder {
    pub(crate) strings: Strings,
    pub(crate) stacks: Stacks,
    pub(crate) events: Events,
    pub(crate) blocks: Vec<Block>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) annotations: Vec<Annotation>,
    pub(crate) settings: Settings,
    pub(crate) shape: Shape,
    pub(crate) traces: Vec<Trace>,
    pub(crate) kind: DeviceKind,
    unknown_keys: BTreeMap<(TableKind, StrId), u64>,
    missing: BTreeMap<(TableKind, &'static str), u64>,
    odd_values: BTreeMap<(TableKind, StrId), u64>,
    pub(crate) pinned: PinnedTables,
}

/// Estimated memory per noted key, in bytes: one entry of a half-filled tree.
const NOTED_KEY_BYTES: usize = 32;

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            strings: Strings::with(words::WORDS),
            stacks: Stacks::default(),
            events: Events::default(),
            blocks: Vec::new(),
            segments: Vec::new(),
            annotations: Vec::new(),
            settings: Settings::default(),
            shape: Shape::default(),
            traces: Vec::new(),
            kind: DeviceKind::default(),
            unknown_keys: BTreeMap::new(),
            missing: BTreeMap::new(),
            odd_values: BTreeMap::new(),
            pinned: PinnedTables::default(),
        }
    }

    /// Counts a key that this version does not know; the caller keeps its value.
    pub(crate) fn unknown_key(&mut self, table: TableKind, key: StrId) {
        *self.unknown_keys.entry((table, key)).or_default() += 1;
    }

    /// Counts a known key whose value has an unexpected type.
    pub(crate) fn odd_value(&mut self, table: TableKind, key: StrId) {
        *self.odd_values.entry((table, key)).or_default() += 1;
    }

    pub(crate) fn frame(&mut self, frame: Frame) -> FrameId {
        self.stacks.intern_frame(frame)
    }

    /// Adds an event row. The decoder assigns rows to a device's trace later.
    pub(crate) fn event(&mut self, fields: &EventFields) -> u32 {
        let addr =
            fields.addr.or(fields.device_free).unwrap_or_else(|| self.missing_key(TableKind::Event, "addr"));
        let size = fields.size.unwrap_or_else(|| self.missing_key(TableKind::Event, "size"));
        if fields.action == StrId::EMPTY {
            self.missing_key(TableKind::Event, "action");
        }
        let code = self.events.action_code(fields.action);
        // An event without a time gets the time of the event before it, so it keeps its position.
        self.shape.time_us |= fields.time_us.is_some();
        let time_us = fields.time_us.unwrap_or_else(|| self.events.last_time());
        let context = self.context(fields.context);
        self.events.push(EventRow { action: code, addr, size, time_us, stack: fields.stack, context })
    }

    /// Adds a row that has all of its keys, time included.
    pub(crate) fn timed_event(&mut self, row: EventRow) {
        self.shape.time_us = true;
        self.events.push(row);
    }

    /// Moves rows that have all of their keys, time included, to the events.
    pub(crate) fn append_events(&mut self, rows: &mut EventColumns) {
        self.shape.time_us |= rows.len() > 0;
        self.events.append(rows);
    }

    /// Returns the number of a context, interning it if it is new.
    pub(crate) fn context(&mut self, context: Context) -> u32 {
        self.shape.compile_context |= context.compile_context != StrId::EMPTY;
        self.shape.user_metadata |= context.has_user_metadata;
        self.shape.event_pool |= context.pool.is_some();
        self.events.intern_context(context)
    }

    #[cold]
    fn missing_key(&mut self, table: TableKind, key: &'static str) -> u64 {
        *self.missing.entry((table, key)).or_default() += 1;
        0
    }

    pub(crate) fn block(&mut self, fields: &BlockFields) -> u32 {
        let state = match fields.state {
            words::ACTIVE_ALLOCATED => BlockState::Allocated,
            words::ACTIVE_PENDING_FREE | words::ACTIVE_AWAITING_FREE => BlockState::PendingFree,
            words::INACTIVE => BlockState::Inactive,
            _ => {
                self.odd_value(TableKind::Block, words::STATE);
                BlockState::Inactive
            }
        };
        self.shape.block_address |= fields.addr.is_some();
        let row = self.blocks.len() as u32;
        self.blocks.push(Block {
            // torch 2.0 records no addresses; `segment` derives them from the sizes.
            addr: fields.addr.unwrap_or(u64::MAX),
            size: Bytes(fields.size),
            requested: Bytes(fields.requested),
            state,
            stack: fields.stack,
            extra: fields.extra,
        });
        row
    }

    pub(crate) fn segment(&mut self, fields: SegmentFields) -> u32 {
        let mut addr = fields.addr;
        for block in &mut self.blocks[fields.blocks.clone()] {
            if block.addr == u64::MAX {
                block.addr = addr;
            }
            addr = block.addr.saturating_add(block.size.0);
        }
        if !matches!(fields.kind, words::SMALL | words::LARGE) {
            self.odd_value(TableKind::Segment, words::SEGMENT_TYPE);
        }
        self.shape.segment_pool |= fields.pool.is_some();
        let row = self.segments.len() as u32;
        self.segments.push(Segment {
            device: u32::try_from(fields.device).unwrap_or(u32::MAX),
            addr: fields.addr,
            size: Bytes(fields.size),
            stream: fields.stream,
            small: fields.kind == words::SMALL,
            pool: fields.pool.unwrap_or_default(),
            expandable: fields.expandable,
            stack: fields.stack,
            blocks: fields.blocks,
            extra: fields.extra,
        });
        row
    }

    /// Declares that `rows` are the history of `device`.
    pub(crate) fn trace(&mut self, device: u32, rows: Range<usize>) {
        if !rows.is_empty() {
            self.shape.has_events = true;
            self.traces.push(Trace { device, rows });
        }
    }

    /// Adds a setting, with its value as a number if it is one.
    pub(crate) fn setting(&mut self, key: StrId, json: StrId, number: Option<f64>) {
        let settings = &mut self.settings;
        settings.pairs.push((key, json));
        let text = self.strings.get(json);
        match self.strings.get(key) {
            "PYTORCH_CUDA_ALLOC_CONF" => settings.conf = text.trim_matches('"').to_owned(),
            "max_split_size" => settings.max_split = number.filter(|&n| n >= 0.0).map(|n| n as u64),
            "garbage_collection_threshold" => settings.gc_threshold = number.unwrap_or(0.0),
            "expandable_segments" => settings.expandable_segments = text == "true",
            "graph_capture_record_stream_reuse" => self.shape.record_stream_reuse = true,
            "max_round_threshold" | "max_cached_size" => self.shape.host_cache_settings = true,
            _ => {}
        }
    }

    /// Adds one entry of `roundup_power2_divisions`: requests from `mib` MiB on are rounded in
    /// `divisions` steps.
    pub(crate) fn division(&mut self, mib: u64, divisions: u64) {
        if mib.is_power_of_two() && mib.ilog2() < 16 {
            self.settings.divisions[mib.ilog2() as usize] = divisions;
        }
    }

    /// Drops devices with ordinals that no machine has; damaged files can name them.
    fn drop_excess_devices(&mut self, caveats: &mut Vec<String>) {
        let before = self.segments.len() + self.traces.len();
        self.segments.retain(|segment| segment.device < MAX_DEVICES);
        self.traces.retain(|trace| trace.device < MAX_DEVICES);
        let dropped = before - self.segments.len() - self.traces.len();
        if dropped > 0 {
            caveats
                .push(format!("{dropped} segments or traces of devices beyond {MAX_DEVICES} were skipped"));
        }
    }

    /// Memory taken by the tables, in bytes, for the reader's budget.
    pub(crate) fn footprint(&self) -> usize {
        self.strings.footprint()
            + self.stacks.footprint()
            + self.events.footprint()
            + self.blocks.len() * size_of::<Block>()
            + self.segments.len() * size_of::<Segment>()
            + self.annotations.len() * size_of::<Annotation>()
            + self.settings.pairs.len() * 8
            + (self.unknown_keys.len() + self.odd_values.len()) * NOTED_KEY_BYTES
    }

    pub(crate) fn finish(mut self) -> Snapshot {
        let mut caveats = Vec::new();
        self.drop_excess_devices(&mut caveats);
        for trace in self.traces.clone() {
            if self.events.sort_by_time(trace.rows) {
                caveats.push(format!(
                    "the history of device {} was out of order and has been sorted by time (max_entries \
                     was changed while recording)",
                    trace.device
                ));
            }
        }
        self.segments.sort_by_key(|segment| (segment.device, segment.addr));
        let name = |id: StrId| {
            let text = self.strings.get(id);
            &text[..text.floor_char_boundary(60)]
        };
        for (&(table, key), count) in self.unknown_keys.iter().take(MAX_NAMED_KEYS) {
            caveats.push(format!(
                "{count} × the key `{}` in {}: unknown to this version, kept unchanged",
                name(key),
                table.plural()
            ));
        }
        if self.unknown_keys.len() > MAX_NAMED_KEYS {
            caveats.push(format!(
                "{} more keys are unknown to this version",
                self.unknown_keys.len() - MAX_NAMED_KEYS
            ));
        }
        for action in self.events.other_actions().iter().take(MAX_NAMED_KEYS) {
            caveats.push(format!(
                "events with the action `{}`: unknown to this version, kept and counted but not replayed",
                name(*action)
            ));
        }
        for (&(table, key), count) in &self.missing {
            caveats.push(format!("{count} {} without `{key}`; 0 was used", table.plural()));
        }
        for (&(table, key), count) in &self.odd_values {
            caveats.push(format!(
                "{count} × an unexpected value of `{}` in {}; the default was used",
                name(key),
                table.plural()
            ));
        }
        Snapshot {
            strings: self.strings,
            stacks: self.stacks,
            events: self.events,
            traces: self.traces,
            segments: self.segments,
            blocks: self.blocks,
            annotations: self.annotations,
            torch: self.shape.torch(),
            settings: self.settings,
            earlier_settings: Vec::new(),
            kind: self.kind,
            pinned: self.pinned,
            caveats,
        }
    }
}
