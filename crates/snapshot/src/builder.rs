//! Fills the tables of a [`Snapshot`] from whatever format a decoder reads, and keeps count of the unusual.

use crate::bytes::Bytes;
use crate::settings::{Settings, Shape};
use crate::snapshot::{DeviceKind, Snapshot};
use crate::stacks::{Frame, FrameId, StackId, Stacks};
use crate::tables::{Annotation, Block, BlockState, Context, Events, PoolId, Row, Segment, Trace};
use crate::text::{StrId, Strings};
use crate::words;
use std::collections::BTreeMap;
use std::ops::Range;

/// The tables that keys can be unknown in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Table {
    TopLevel,
    Event,
    Frame,
    Segment,
    Block,
    Annotation,
}

impl Table {
    fn plural(self) -> &'static str {
        match self {
            Table::TopLevel => "top level",
            Table::Event => "events",
            Table::Frame => "frames",
            Table::Segment => "segments",
            Table::Block => "blocks",
            Table::Annotation => "annotations",
        }
    }
}

/// Most keys and actions that are named one by one.
const MOST_NAMED: usize = 20;
const MOST_DEVICES: u32 = 256;

/// One event as its decoder found it: missing keys are `None` or empty.
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

/// One block as its decoder found it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct BlockFields {
    pub(crate) addr: Option<u64>,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) state: StrId,
    pub(crate) stack: StackId,
    pub(crate) extra: StrId,
}

/// One segment as its decoder found it.
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

/// The tables under construction.
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
    unknown_keys: BTreeMap<(Table, StrId), u64>,
    missing: BTreeMap<(Table, &'static str), u64>,
    odd_values: BTreeMap<(Table, StrId), u64>,
    host_entries: u64,
}

/// What a key takes that is noted as unknown or odd: an entry of a half-filled tree.
const BYTES_OF_A_KEY: usize = 32;

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
            host_entries: 0,
        }
    }

    /// Notes a key that this version does not know; its value is kept by the caller.
    pub(crate) fn unknown_key(&mut self, table: Table, key: StrId) {
        *self.unknown_keys.entry((table, key)).or_default() += 1;
    }

    /// Notes a known key whose value has a type that it should not have.
    pub(crate) fn odd_value(&mut self, table: Table, key: StrId) {
        *self.odd_values.entry((table, key)).or_default() += 1;
    }

    pub(crate) fn host_entries(&mut self, count: u64) {
        self.shape.host_segments = true;
        self.host_entries += count;
    }

    pub(crate) fn frame(&mut self, frame: Frame) -> FrameId {
        self.stacks.intern_frame(frame)
    }

    /// Adds a row to the events; the decoder says later which rows make a device's trace.
    pub(crate) fn event(&mut self, fields: &EventFields) -> u32 {
        let addr =
            fields.addr.or(fields.device_free).unwrap_or_else(|| self.missing_key(Table::Event, "addr"));
        let size = fields.size.unwrap_or_else(|| self.missing_key(Table::Event, "size"));
        if fields.action == StrId::EMPTY {
            self.missing_key(Table::Event, "action");
        }
        let code = self.events.action_code(fields.action);
        // An event without a time keeps its place: it happened when the one before it did.
        self.shape.time_us |= fields.time_us.is_some();
        let time_us = fields.time_us.unwrap_or_else(|| self.events.last_time());
        let context = self.context(fields.context);
        self.events.push(Row { action: code, addr, size, time_us, stack: fields.stack, context })
    }

    /// Adds a row whose keys were all there, time included.
    pub(crate) fn timed_event(&mut self, row: Row) {
        self.shape.time_us = true;
        self.events.push(row);
    }

    /// The number of a context, new or known.
    pub(crate) fn context(&mut self, context: Context) -> u32 {
        self.shape.compile_context |= context.compile_context != StrId::EMPTY;
        self.shape.user_metadata |= context.has_user_metadata;
        self.shape.event_pool |= context.pool.is_some();
        self.events.intern_context(context)
    }

    #[cold]
    fn missing_key(&mut self, table: Table, key: &'static str) -> u64 {
        *self.missing.entry((table, key)).or_default() += 1;
        0
    }

    pub(crate) fn block(&mut self, fields: &BlockFields) -> u32 {
        let state = match fields.state {
            words::ACTIVE_ALLOCATED => BlockState::Allocated,
            words::ACTIVE_PENDING_FREE | words::ACTIVE_AWAITING_FREE => BlockState::PendingFree,
            words::INACTIVE => BlockState::Inactive,
            _ => {
                self.odd_value(Table::Block, words::STATE);
                BlockState::Inactive
            }
        };
        self.shape.block_address |= fields.addr.is_some();
        let row = self.blocks.len() as u32;
        self.blocks.push(Block {
            // 2.0 gives no addresses; `segment` fills them in from the sizes.
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
            self.odd_value(Table::Segment, words::SEGMENT_TYPE);
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

    /// Declares that these rows are the history of `device`.
    pub(crate) fn trace(&mut self, device: u32, rows: Range<usize>) {
        if !rows.is_empty() {
            self.shape.has_events = true;
            self.traces.push(Trace { device, rows });
        }
    }

    /// A setting, with its value as a number where it is one.
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

    /// One entry of `roundup_power2_divisions`: requests from `mib` MiB on are rounded in `divisions` steps.
    pub(crate) fn division(&mut self, mib: u64, divisions: u64) {
        if mib.is_power_of_two() && mib.ilog2() < 16 {
            self.settings.divisions[mib.ilog2() as usize] = divisions;
        }
    }

    /// No machine has as many devices as a damaged file can name.
    fn drop_excess_devices(&mut self, caveats: &mut Vec<String>) {
        let before = self.segments.len() + self.traces.len();
        self.segments.retain(|segment| segment.device < MOST_DEVICES);
        self.traces.retain(|trace| trace.device < MOST_DEVICES);
        let dropped = before - self.segments.len() - self.traces.len();
        if dropped > 0 {
            caveats.push(format!(
                "{dropped} segments or traces of devices beyond {MOST_DEVICES} were passed over"
            ));
        }
    }

    /// Bytes that the tables take, for the reader's budget.
    pub(crate) fn footprint(&self) -> usize {
        self.strings.footprint()
            + self.stacks.footprint()
            + self.events.footprint()
            + self.blocks.len() * size_of::<Block>()
            + self.segments.len() * size_of::<Segment>()
            + self.annotations.len() * size_of::<Annotation>()
            + self.settings.pairs.len() * 8
            + (self.unknown_keys.len() + self.odd_values.len()) * BYTES_OF_A_KEY
    }

    pub(crate) fn finish(mut self) -> Snapshot {
        let mut caveats = Vec::new();
        self.drop_excess_devices(&mut caveats);
        for trace in self.traces.clone() {
            if self.events.sort_by_time(trace.rows) {
                caveats.push(format!(
                    "the history of device {} was out of order and has been sorted by time \
                     (max_entries was changed while recording)",
                    trace.device
                ));
            }
        }
        self.segments.sort_by_key(|segment| (segment.device, segment.addr));
        let name = |id: StrId| {
            let text = self.strings.get(id);
            &text[..text.floor_char_boundary(60)]
        };
        for (&(table, key), count) in self.unknown_keys.iter().take(MOST_NAMED) {
            caveats.push(format!(
                "{count} × the key `{}` in {}: unknown to this version, kept as it is",
                name(key),
                table.plural()
            ));
        }
        if self.unknown_keys.len() > MOST_NAMED {
            caveats.push(format!(
                "{} more keys are unknown to this version",
                self.unknown_keys.len() - MOST_NAMED
            ));
        }
        for action in self.events.other_actions().iter().take(MOST_NAMED) {
            caveats.push(format!(
                "events with the action `{}`: unknown to this version, kept and counted, not replayed",
                name(*action)
            ));
        }
        for (&(table, key), count) in &self.missing {
            caveats.push(format!("{count} {} without `{key}`; taken as 0", table.plural()));
        }
        for (&(table, key), count) in &self.odd_values {
            caveats.push(format!(
                "{count} × an unexpected value of `{}` in {}; the default was used",
                name(key),
                table.plural()
            ));
        }
        if self.host_entries > 0 {
            caveats.push(format!(
                "{} entries about pinned host memory were passed over: they are not device memory",
                self.host_entries
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
            kind: self.kind,
            caveats,
        }
    }
}
