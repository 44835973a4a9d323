//! Conversion of dictionaries to rows: which dictionary is which, and what its keys mean.

use super::describe::{MAX_EXTRA_BYTES, MAX_ITEMS, clipped, json_string};
use super::machine::Machine;
use super::nodes::{Nodes, PickleDict, PickleList, RowTable, row_value};
use super::number::Number;
use super::value::{PickleValue, ValueKind};
use crate::builder::{BlockFields, Builder, EventFields, SegmentFields, TableKind};
use crate::error::Error;
use crate::snapshot::DeviceKind;
use crate::stacks::{Frame, FrameId, StackId};
use crate::tables::{Annotation, PoolId};
use crate::text::StrId;
use crate::words;
use std::io::Read;
use std::ops::Range;

/// Maximum number of settings; PyTorch has about a dozen.
const MAX_SETTINGS: usize = 200;

impl<R: Read> Machine<R> {
    /// Turns a complete dictionary into a row if it is an event, block, segment or frame.
    pub(super) fn lower_dict(&mut self, index: u32) -> PickleValue {
        let PickleDict::Pairs(pairs) = self.nodes.dict(index) else {
            return self.nodes.resolve(PickleValue::new(ValueKind::Dict(index)));
        };
        let has = |word: StrId| pairs.iter().any(|(key, _)| key.kind() == ValueKind::Str(word));
        let lower: fn(&mut PickleLowering<'_>, &[(PickleValue, PickleValue)]) -> PickleValue =
            if has(words::ACTION) {
                |tables, pairs| PickleValue::new(ValueKind::Event(tables.event(pairs)))
            } else if has(words::BLOCKS) {
                |tables, pairs| PickleValue::new(ValueKind::Segment(tables.segment(pairs)))
            } else if has(words::STATE) {
                |tables, pairs| PickleValue::new(ValueKind::Block(tables.block(pairs)))
            } else if has(words::FILENAME) {
                |tables, pairs| PickleValue::new(ValueKind::Frame(tables.frame(pairs)))
            } else {
                return PickleValue::new(ValueKind::Dict(index));
            };
        let pairs = self.nodes.take_pairs(index);
        let value = lower(&mut PickleLowering { nodes: &mut self.nodes, builder: &mut self.builder }, &pairs);
        self.nodes.became(index, value);
        value
    }
}

/// Fills the tables from the outermost value after everything has been read.
pub(super) fn top_level(nodes: &mut Nodes, builder: &mut Builder, top: PickleValue) -> Result<(), Error> {
    let mut tables = PickleLowering { nodes, builder };
    match tables.nodes.resolve(top).kind() {
        ValueKind::Dict(index) => {
            let pairs = tables.nodes.take_pairs(index);
            tables.dictionary(&pairs)
        }
        ValueKind::List(_) if tables.is_segment_list(top) => {
            let segments = tables.segment_rows(top);
            tables.keep_segments(segments);
            Ok(())
        }
        _ => Err(Error::not_a_snapshot(format!(
            "expected a dictionary with the key `segments`, found {}",
            tables.describe(top)
        ))),
    }
}

/// Tables, and the values not yet converted to rows.
pub(super) struct PickleLowering<'a> {
    pub(super) nodes: &'a mut Nodes,
    pub(super) builder: &'a mut Builder,
}

impl PickleLowering<'_> {
    fn event(&mut self, pairs: &[(PickleValue, PickleValue)]) -> u32 {
        let mut fields = EventFields::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let ValueKind::Str(word) = key.kind() else {
                self.odd(TableKind::Event, words::NOTHING);
                continue;
            };
            match word {
                words::ACTION => fields.action = self.text(TableKind::Event, word, value),
                words::ADDR => fields.addr = self.address(TableKind::Event, word, value),
                words::DEVICE_FREE => fields.device_free = self.size(TableKind::Event, word, value),
                words::SIZE => fields.size = self.size(TableKind::Event, word, value),
                words::STREAM => {
                    fields.context.stream = self.address(TableKind::Event, word, value).unwrap_or(0)
                }
                words::TIME_US => fields.time_us = self.int(value).and_then(|time| i64::try_from(time).ok()),
                words::FRAMES => fields.stack = self.stack(TableKind::Event, value),
                words::COMPILE_CONTEXT => {
                    fields.context.compile_context = self.text(TableKind::Event, word, value)
                }
                words::USER_METADATA => {
                    fields.context.has_user_metadata = true;
                    fields.context.user_metadata = self.text(TableKind::Event, word, value);
                }
                words::POOL_ID => fields.context.pool = self.pool(TableKind::Event, word, value),
                words::FORWARD_FRAMES => fields.context.forward_frames = self.lines(value),
                words::INTERNAL_METADATA => self.keep(word, value, &mut extra),
                _ => self.extra(TableKind::Event, word, value, &mut extra),
            }
        }
        fields.context.extra = self.intern_extra(extra);
        self.builder.event(&fields)
    }

    fn frame(&mut self, pairs: &[(PickleValue, PickleValue)]) -> FrameId {
        let mut frame = Frame::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let ValueKind::Str(word) = key.kind() else { continue };
            match word {
                words::NAME => frame.function = self.text(TableKind::Frame, word, value),
                words::FILENAME => frame.file = self.text(TableKind::Frame, word, value),
                words::LINE => {
                    frame.line = self.int(value).and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
                }
                _ => self.extra(TableKind::Frame, word, value, &mut extra),
            }
        }
        frame.extra = self.intern_extra(extra);
        self.builder.frame(frame)
    }

    fn block(&mut self, pairs: &[(PickleValue, PickleValue)]) -> u32 {
        let mut fields = BlockFields::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let ValueKind::Str(word) = key.kind() else { continue };
            match word {
                words::ADDRESS => fields.addr = self.address(TableKind::Block, word, value),
                words::SIZE => fields.size = self.size(TableKind::Block, word, value).unwrap_or(0),
                words::REQUESTED_SIZE => {
                    fields.requested = self.size(TableKind::Block, word, value).unwrap_or(0)
                }
                words::STATE => fields.state = self.text(TableKind::Block, word, value),
                words::FRAMES => fields.stack = self.stack(TableKind::Block, value),
                words::HISTORY => self.block_history(value, &mut fields),
                words::FORWARD_FRAMES => self.keep(word, value, &mut extra),
                _ => self.extra(TableKind::Block, word, value, &mut extra),
            }
        }
        fields.extra = self.intern_extra(extra);
        self.builder.block(&fields)
    }

    /// Reads the list of past owners, in which torch 2.0 keeps the requested size and the stack of a
    /// block.
    fn block_history(&mut self, value: PickleValue, fields: &mut BlockFields) {
        self.builder.shape.block_history = true;
        let Some(&newest) = self.items(value).last() else { return };
        for (key, value) in self.pairs(newest) {
            match key.kind() {
                ValueKind::Str(words::REAL_SIZE) => {
                    fields.requested = self.size(TableKind::Block, words::REAL_SIZE, value).unwrap_or(0);
                }
                ValueKind::Str(words::FRAMES) => fields.stack = self.stack(TableKind::Block, value),
                _ => {}
            }
        }
    }

    fn segment(&mut self, pairs: &[(PickleValue, PickleValue)]) -> u32 {
        let mut fields = SegmentFields::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let ValueKind::Str(word) = key.kind() else { continue };
            match word {
                // Pinned host memory has device -1.
                words::DEVICE => fields.device = self.int(value).map_or(0, |device| device.max(0) as u64),
                words::ADDRESS => fields.addr = self.address(TableKind::Segment, word, value).unwrap_or(0),
                words::TOTAL_SIZE => fields.size = self.size(TableKind::Segment, word, value).unwrap_or(0),
                words::STREAM => fields.stream = self.address(TableKind::Segment, word, value).unwrap_or(0),
                words::SEGMENT_TYPE => fields.kind = self.text(TableKind::Segment, word, value),
                words::SEGMENT_POOL_ID => fields.pool = self.pool(TableKind::Segment, word, value),
                words::IS_EXPANDABLE => fields.expandable = value.kind() == ValueKind::Bool(true),
                words::FRAMES => fields.stack = self.stack(TableKind::Segment, value),
                words::BLOCKS => fields.blocks = self.block_rows(value),
                // Sums over the blocks, which are recomputed.
                words::ALLOCATED_SIZE | words::ACTIVE_SIZE | words::REQUESTED_SIZE => {}
                _ => self.extra(TableKind::Segment, word, value, &mut extra),
            }
        }
        fields.extra = self.intern_extra(extra);
        self.builder.segment(fields)
    }

    fn dictionary(&mut self, pairs: &[(PickleValue, PickleValue)]) -> Result<(), Error> {
        let has = |word: StrId| pairs.iter().any(|(key, _)| key.kind() == ValueKind::Str(word));
        if !has(words::SEGMENTS) && !has(words::DEVICE_TRACES) {
            let keys: Vec<String> = pairs.iter().take(5).map(|&(key, _)| self.describe(key)).collect();
            let more = if pairs.len() > 5 { ", …" } else { "" };
            return Err(Error::not_a_snapshot(if keys.is_empty() {
                "expected a dictionary with the key `segments`, found an empty one".to_owned()
            } else {
                format!(
                    "expected a dictionary with the key `segments`, found one with {}{more}",
                    keys.join(", ")
                )
            }));
        }
        self.builder.shape.has_top_level = true;
        let mut segments = Vec::new();
        for &(key, value) in pairs {
            let ValueKind::Str(word) = key.kind() else { continue };
            match word {
                words::SEGMENTS => segments = self.segment_rows(value),
                words::DEVICE_TRACES => self.traces(value),
                words::ALLOCATOR_SETTINGS => self.settings(value),
                words::EXTERNAL_ANNOTATIONS => self.annotations(value),
                words::HOST_SEGMENTS => {
                    self.builder.shape.host_segments = true;
                    let rows = self.segment_rows(value);
                    let all = &self.builder.segments;
                    self.builder.pinned.segments =
                        rows.iter().map(|&row| all[row as usize].clone()).collect();
                }
                words::HOST_TRACES => self.builder.pinned.rows = self.event_rows(word, value),
                words::OOMPH => {
                    let is_cpu = |&(key, value): &(PickleValue, PickleValue)| {
                        key.kind() == ValueKind::Str(words::DEVICE)
                            && value.kind() == ValueKind::Str(words::CPU)
                    };
                    if self.pairs(value).iter().any(is_cpu) {
                        self.builder.kind = DeviceKind::Cpu;
                    }
                }
                _ => self.builder.unknown_key(TableKind::TopLevel, word),
            }
        }
        self.keep_segments(segments);
        Ok(())
    }

    /// Keeps only the listed segments. Segments of pinned host memory are in the same table.
    fn keep_segments(&mut self, rows: Vec<u32>) {
        let all = std::mem::take(&mut self.builder.segments);
        if rows.len() == all.len() {
            self.builder.segments = all;
        } else {
            self.builder.segments = rows.iter().map(|&row| all[row as usize].clone()).collect();
        }
    }

    fn traces(&mut self, value: PickleValue) {
        if !matches!(value.kind(), ValueKind::List(_) | ValueKind::Tuple(_)) {
            self.odd(TableKind::TopLevel, words::DEVICE_TRACES);
        }
        for (device, trace) in self.items(value).into_iter().enumerate() {
            let rows = self.event_rows(words::DEVICE_TRACES, trace);
            self.builder.trace(device as u32, rows);
        }
    }

    /// Rows of a list of events; `key` names the list in the caveats.
    fn event_rows(&mut self, key: StrId, value: PickleValue) -> Range<usize> {
        let content = match value.kind() {
            ValueKind::List(list) => self.nodes.take_list(list),
            _ => PickleList::Stack(StackId::EMPTY),
        };
        match content {
            PickleList::Rows { table: RowTable::Events, first, count } => {
                first as usize..(first + count) as usize
            }
            PickleList::Items(items) => self.gathered_events(&items),
            PickleList::Rows { .. } | PickleList::Stack(_) => {
                self.odd(TableKind::TopLevel, key);
                0..0
            }
        }
    }

    /// Copies the events of a trace whose rows are not consecutive: a filtered or hand-made file.
    fn gathered_events(&mut self, items: &[PickleValue]) -> Range<usize> {
        let rows: Vec<u32> = items
            .iter()
            .map(|&item| match self.nodes.resolve(item).kind() {
                ValueKind::Event(row) => row,
                // Not recognised as an event while reading, because it has no action; it still counts as
                // one.
                ValueKind::Dict(index) => {
                    let pairs = self.nodes.take_pairs(index);
                    self.event(&pairs)
                }
                _ => self.event(&[]),
            })
            .collect();
        self.builder.events.copy_rows(rows.into_iter())
    }

    fn settings(&mut self, value: PickleValue) {
        self.builder.shape.settings = true;
        self.builder.settings.recorded = true;
        for (key, value) in self.pairs(value).into_iter().take(MAX_SETTINGS) {
            let ValueKind::Str(word) = key.kind() else { continue };
            let mut json = String::new();
            self.write_json(value, 0, &mut json);
            let json = self.builder.strings.intern(&json);
            let number = self.float(value);
            self.builder.setting(word, json, number);
            if self.builder.strings.get(word) == "roundup_power2_divisions" {
                for (mib, divisions) in self.pairs(value) {
                    let mib = match mib.kind() {
                        ValueKind::Str(text) => self.builder.strings.get(text).parse().ok(),
                        _ => self.int(mib).and_then(|mib| u64::try_from(mib).ok()),
                    };
                    let divisions = self.int(divisions).and_then(|count| u64::try_from(count).ok());
                    if let (Some(mib), Some(divisions)) = (mib, divisions) {
                        self.builder.division(mib, divisions);
                    }
                }
            }
        }
    }

    fn annotations(&mut self, value: PickleValue) {
        self.builder.shape.annotations = true;
        for item in self.items(value) {
            let mut annotation = Annotation { name: StrId::EMPTY, start: false, device: 0, time_us: 0 };
            for (key, value) in self.pairs(item) {
                let ValueKind::Str(word) = key.kind() else { continue };
                match word {
                    words::NAME => annotation.name = self.text(TableKind::Annotation, word, value),
                    words::STAGE => annotation.start = value.kind() == ValueKind::Str(words::START),
                    words::DEVICE => {
                        annotation.device = self.int(value).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
                    }
                    words::TIME_US => {
                        annotation.time_us = self.int(value).and_then(|n| i64::try_from(n).ok()).unwrap_or(0);
                    }
                    _ => self.builder.unknown_key(TableKind::Annotation, word),
                }
            }
            self.builder.annotations.push(annotation);
        }
    }

    fn is_segment_list(&self, value: PickleValue) -> bool {
        match value.kind() {
            ValueKind::List(list) => match &self.nodes.lists[list as usize] {
                PickleList::Rows { table, .. } => *table == RowTable::Segments,
                PickleList::Items(items) => {
                    items.iter().all(|item| matches!(self.nodes.resolve(*item).kind(), ValueKind::Segment(_)))
                }
                PickleList::Stack(_) => false,
            },
            _ => false,
        }
    }

    fn segment_rows(&mut self, value: PickleValue) -> Vec<u32> {
        let rows: Vec<Option<u32>> = self
            .items(value)
            .into_iter()
            .map(|item| match item.kind() {
                ValueKind::Segment(row) => Some(row),
                _ => None,
            })
            .collect();
        let is_list = matches!(value.kind(), ValueKind::List(_) | ValueKind::Tuple(_));
        for _ in 0..rows.iter().filter(|row| row.is_none()).count() + usize::from(!is_list) {
            self.odd(TableKind::TopLevel, words::SEGMENTS);
        }
        rows.into_iter().flatten().collect()
    }

    fn block_rows(&mut self, value: PickleValue) -> Range<usize> {
        let items = match value.kind() {
            ValueKind::List(list) => match self.nodes.take_list(list) {
                PickleList::Rows { table: RowTable::Blocks, first, count } => {
                    return first as usize..(first + count) as usize;
                }
                PickleList::Items(items) => items,
                PickleList::Rows { .. } | PickleList::Stack(_) => vec![PickleValue::UNSET],
            },
            _ => vec![PickleValue::UNSET],
        };
        let start = self.builder.blocks.len();
        for item in items {
            match self.nodes.resolve(item).kind() {
                ValueKind::Block(row) => {
                    let block = self.builder.blocks[row as usize];
                    self.builder.blocks.push(block);
                }
                _ => self.odd(TableKind::Segment, words::BLOCKS),
            }
        }
        start..self.builder.blocks.len()
    }

    fn stack(&mut self, table: TableKind, value: PickleValue) -> StackId {
        match self.nodes.resolve(value).kind() {
            ValueKind::Stack(stack) => stack,
            ValueKind::None => StackId::EMPTY,
            ValueKind::List(list) => {
                let items = self.items(value);
                let frames: Vec<FrameId> = items
                    .iter()
                    .filter_map(|item| match item.kind() {
                        ValueKind::Frame(frame) => Some(frame),
                        _ => None,
                    })
                    .collect();
                if frames.len() < items.len() {
                    self.odd(table, words::FRAMES);
                }
                let stack = self.builder.stacks.intern(&frames);
                self.nodes.became_stack(list, stack);
                stack
            }
            _ => {
                self.odd(table, words::FRAMES);
                StackId::EMPTY
            }
        }
    }

    fn items(&self, value: PickleValue) -> Vec<PickleValue> {
        self.first_items(value, usize::MAX)
    }

    pub(super) fn first_items(&self, value: PickleValue, most: usize) -> Vec<PickleValue> {
        let resolved =
            |items: &[PickleValue]| items.iter().take(most).map(|&item| self.nodes.resolve(item)).collect();
        match value.kind() {
            ValueKind::List(list) => match &self.nodes.lists[list as usize] {
                PickleList::Items(items) => resolved(items),
                &PickleList::Rows { table, first, count } => {
                    (first..first + count).take(most).map(|row| row_value(table, row)).collect()
                }
                PickleList::Stack(_) => Vec::new(),
            },
            ValueKind::Tuple(tuple) => resolved(self.nodes.tuple(tuple)),
            _ => Vec::new(),
        }
    }

    pub(super) fn pairs(&self, value: PickleValue) -> Vec<(PickleValue, PickleValue)> {
        match value.kind() {
            ValueKind::Dict(index) => match self.nodes.dict(index) {
                PickleDict::Pairs(pairs) => pairs.clone(),
                PickleDict::Became(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    #[cold]
    fn odd(&mut self, table: TableKind, key: StrId) {
        self.builder.odd_value(table, key);
    }

    fn int(&self, value: PickleValue) -> Option<i128> {
        match value.kind() {
            ValueKind::Int(int) => Some(i128::from(int)),
            ValueKind::Bool(bool) => Some(i128::from(bool)),
            ValueKind::Number(index) => match self.nodes.numbers[index as usize] {
                Number::Wide(wide) => Some(wide),
                Number::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => Some(float as i128),
                _ => None,
            },
            _ => None,
        }
    }

    fn float(&self, value: PickleValue) -> Option<f64> {
        match value.kind() {
            ValueKind::Number(index) => match self.nodes.numbers[index as usize] {
                Number::Float(float) => Some(float),
                _ => self.int(value).map(|int| int as f64),
            },
            _ => self.int(value).map(|int| int as f64),
        }
    }

    /// Reads an address or handle: PyTorch writes pointers with the top bit set as negative numbers.
    fn address(&mut self, table: TableKind, key: StrId, value: PickleValue) -> Option<u64> {
        let int = self.int(value);
        let address =
            int.and_then(|int| u64::try_from(int).ok().or(i64::try_from(int).ok().map(|int| int as u64)));
        if address.is_none() {
            self.odd(table, key);
        }
        address
    }

    fn size(&mut self, table: TableKind, key: StrId, value: PickleValue) -> Option<u64> {
        let size = self.int(value).and_then(|int| u64::try_from(int).ok());
        if size.is_none() {
            self.odd(table, key);
        }
        size
    }

    fn text(&mut self, table: TableKind, key: StrId, value: PickleValue) -> StrId {
        match value.kind() {
            ValueKind::Str(text) => text,
            ValueKind::None => StrId::EMPTY,
            _ => {
                self.odd(table, key);
                StrId::EMPTY
            }
        }
    }

    /// Joins a list of strings into one text.
    fn lines(&mut self, value: PickleValue) -> StrId {
        let lines: Vec<&str> = self
            .first_items(value, MAX_ITEMS)
            .into_iter()
            .filter_map(|item| match item.kind() {
                ValueKind::Str(text) => Some(self.builder.strings.get(text)),
                _ => None,
            })
            .collect();
        let mut text = String::new();
        for line in lines {
            if text.len() + line.len() > MAX_EXTRA_BYTES {
                text.push('…');
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        self.builder.strings.intern(text.trim_end_matches('\n'))
    }

    fn pool(&mut self, table: TableKind, key: StrId, value: PickleValue) -> Option<PoolId> {
        let pool = match value.kind() {
            ValueKind::Pair(a, b) => Some(PoolId(u64::from(a), u64::from(b))),
            ValueKind::Tuple(_) | ValueKind::List(_) => match self.items(value)[..] {
                [a, b] => {
                    let part = |value| self.int(value).and_then(|int| u64::try_from(int).ok());
                    part(a).zip(part(b)).map(|(a, b)| PoolId(a, b))
                }
                _ => None,
            },
            _ => None,
        };
        if pool.is_none() {
            self.odd(table, key);
        }
        pool
    }

    /// Keeps the value of a key that this version does not know.
    fn extra(&mut self, table: TableKind, key: StrId, value: PickleValue, into: &mut String) {
        self.builder.unknown_key(table, key);
        self.keep(key, value, into);
    }

    /// Keeps the value of a key that has no column.
    fn keep(&mut self, key: StrId, value: PickleValue, into: &mut String) {
        into.push(if into.is_empty() { '{' } else { ',' });
        into.push_str(&json_string(clipped(self.builder.strings.get(key), 200)));
        into.push(':');
        self.write_json(value, 0, into);
    }

    fn intern_extra(&mut self, mut extra: String) -> StrId {
        if extra.is_empty() {
            return StrId::EMPTY;
        }
        extra.push('}');
        self.builder.strings.intern(&extra)
    }
}
