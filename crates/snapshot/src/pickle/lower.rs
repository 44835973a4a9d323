//! From dictionaries to rows: which dictionary is which, and what its keys mean.

use super::describe::{EXTRA_LIMIT, MOST_ITEMS, clipped, json_string};
use super::machine::Machine;
use super::nodes::{Dict, List, Nodes, Rows, row_value};
use super::number::Number;
use super::value::{Kind, Value};
use crate::builder::{BlockFields, Builder, EventFields, SegmentFields, Table};
use crate::error::Error;
use crate::snapshot::DeviceKind;
use crate::stacks::{Frame, FrameId, StackId};
use crate::tables::{Annotation, PoolId};
use crate::text::StrId;
use crate::words;
use std::io::Read;
use std::ops::Range;

/// Most settings; PyTorch has about a dozen.
const MOST_SETTINGS: usize = 200;

impl<R: Read> Machine<R> {
    /// Turns a complete dictionary into a row if it is an event, block, segment or frame.
    pub(super) fn lower_dict(&mut self, index: u32) -> Value {
        let Dict::Pairs(pairs) = self.nodes.dict(index) else {
            return self.nodes.resolve(Value::new(Kind::Dict(index)));
        };
        let has = |word: StrId| pairs.iter().any(|(key, _)| key.kind() == Kind::Str(word));
        let lower: fn(&mut Lowering<'_>, &[(Value, Value)]) -> Value = if has(words::ACTION) {
            |tables, pairs| Value::new(Kind::Event(tables.event(pairs)))
        } else if has(words::BLOCKS) {
            |tables, pairs| Value::new(Kind::Segment(tables.segment(pairs)))
        } else if has(words::STATE) {
            |tables, pairs| Value::new(Kind::Block(tables.block(pairs)))
        } else if has(words::FILENAME) {
            |tables, pairs| Value::new(Kind::Frame(tables.frame(pairs)))
        } else {
            return Value::new(Kind::Dict(index));
        };
        let pairs = self.nodes.take_pairs(index);
        let value = lower(&mut Lowering { nodes: &mut self.nodes, builder: &mut self.builder }, &pairs);
        self.nodes.became(index, value);
        value
    }
}

/// Fills the tables from the outermost value, once everything has been read.
pub(super) fn top_level(nodes: &mut Nodes, builder: &mut Builder, top: Value) -> Result<(), Error> {
    let mut tables = Lowering { nodes, builder };
    match tables.nodes.resolve(top).kind() {
        Kind::Dict(index) => {
            let pairs = tables.nodes.take_pairs(index);
            tables.dictionary(&pairs)
        }
        Kind::List(_) if tables.is_segment_list(top) => {
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

/// The tables, and the values that refer to each other until they are in them.
pub(super) struct Lowering<'a> {
    pub(super) nodes: &'a mut Nodes,
    pub(super) builder: &'a mut Builder,
}

impl Lowering<'_> {
    fn event(&mut self, pairs: &[(Value, Value)]) -> u32 {
        let mut fields = EventFields::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let Kind::Str(word) = key.kind() else {
                self.odd(Table::Event, words::NOTHING);
                continue;
            };
            match word {
                words::ACTION => fields.action = self.text(Table::Event, word, value),
                words::ADDR => fields.addr = self.address(Table::Event, word, value),
                words::DEVICE_FREE => fields.device_free = self.size(Table::Event, word, value),
                words::SIZE => fields.size = self.size(Table::Event, word, value),
                words::STREAM => fields.context.stream = self.address(Table::Event, word, value).unwrap_or(0),
                words::TIME_US => fields.time_us = self.int(value).and_then(|time| i64::try_from(time).ok()),
                words::FRAMES => fields.stack = self.stack(Table::Event, value),
                words::COMPILE_CONTEXT => {
                    fields.context.compile_context = self.text(Table::Event, word, value)
                }
                words::USER_METADATA => {
                    fields.context.has_user_metadata = true;
                    fields.context.user_metadata = self.text(Table::Event, word, value);
                }
                words::POOL_ID => fields.context.pool = self.pool(Table::Event, word, value),
                words::FORWARD_FRAMES => fields.context.forward_frames = self.lines(value),
                words::INTERNAL_METADATA => self.keep(word, value, &mut extra),
                _ => self.extra(Table::Event, word, value, &mut extra),
            }
        }
        fields.context.extra = self.intern_extra(extra);
        self.builder.event(&fields)
    }

    fn frame(&mut self, pairs: &[(Value, Value)]) -> FrameId {
        let mut frame = Frame::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let Kind::Str(word) = key.kind() else { continue };
            match word {
                words::NAME => frame.function = self.text(Table::Frame, word, value),
                words::FILENAME => frame.file = self.text(Table::Frame, word, value),
                words::LINE => {
                    frame.line = self.int(value).and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
                }
                _ => self.extra(Table::Frame, word, value, &mut extra),
            }
        }
        frame.extra = self.intern_extra(extra);
        self.builder.frame(frame)
    }

    fn block(&mut self, pairs: &[(Value, Value)]) -> u32 {
        let mut fields = BlockFields::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let Kind::Str(word) = key.kind() else { continue };
            match word {
                words::ADDRESS => fields.addr = self.address(Table::Block, word, value),
                words::SIZE => fields.size = self.size(Table::Block, word, value).unwrap_or(0),
                words::REQUESTED_SIZE => fields.requested = self.size(Table::Block, word, value).unwrap_or(0),
                words::STATE => fields.state = self.text(Table::Block, word, value),
                words::FRAMES => fields.stack = self.stack(Table::Block, value),
                words::HISTORY => self.block_history(value, &mut fields),
                words::FORWARD_FRAMES => self.keep(word, value, &mut extra),
                _ => self.extra(Table::Block, word, value, &mut extra),
            }
        }
        fields.extra = self.intern_extra(extra);
        self.builder.block(&fields)
    }

    /// torch 2.0 keeps the requested size and the stack of a block in a list of its past owners.
    fn block_history(&mut self, value: Value, fields: &mut BlockFields) {
        self.builder.shape.block_history = true;
        let Some(&newest) = self.items(value).last() else { return };
        for (key, value) in self.pairs(newest) {
            match key.kind() {
                Kind::Str(words::REAL_SIZE) => {
                    fields.requested = self.size(Table::Block, words::REAL_SIZE, value).unwrap_or(0);
                }
                Kind::Str(words::FRAMES) => fields.stack = self.stack(Table::Block, value),
                _ => {}
            }
        }
    }

    fn segment(&mut self, pairs: &[(Value, Value)]) -> u32 {
        let mut fields = SegmentFields::default();
        let mut extra = String::new();
        for &(key, value) in pairs {
            let Kind::Str(word) = key.kind() else { continue };
            match word {
                // Pinned host memory has device -1; it is left out once the list is known.
                words::DEVICE => fields.device = self.int(value).map_or(0, |device| device.max(0) as u64),
                words::ADDRESS => fields.addr = self.address(Table::Segment, word, value).unwrap_or(0),
                words::TOTAL_SIZE => fields.size = self.size(Table::Segment, word, value).unwrap_or(0),
                words::STREAM => fields.stream = self.address(Table::Segment, word, value).unwrap_or(0),
                words::SEGMENT_TYPE => fields.kind = self.text(Table::Segment, word, value),
                words::SEGMENT_POOL_ID => fields.pool = self.pool(Table::Segment, word, value),
                words::IS_EXPANDABLE => fields.expandable = value.kind() == Kind::Bool(true),
                words::FRAMES => fields.stack = self.stack(Table::Segment, value),
                words::BLOCKS => fields.blocks = self.block_rows(value),
                // Sums over the blocks, which are recomputed from them.
                words::ALLOCATED_SIZE | words::ACTIVE_SIZE | words::REQUESTED_SIZE => {}
                _ => self.extra(Table::Segment, word, value, &mut extra),
            }
        }
        fields.extra = self.intern_extra(extra);
        self.builder.segment(fields)
    }

    fn dictionary(&mut self, pairs: &[(Value, Value)]) -> Result<(), Error> {
        let has = |word: StrId| pairs.iter().any(|(key, _)| key.kind() == Kind::Str(word));
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
            let Kind::Str(word) = key.kind() else { continue };
            match word {
                words::SEGMENTS => segments = self.segment_rows(value),
                words::DEVICE_TRACES => self.traces(value),
                words::ALLOCATOR_SETTINGS => self.settings(value),
                words::EXTERNAL_ANNOTATIONS => self.annotations(value),
                words::HOST_SEGMENTS | words::HOST_TRACES => {
                    let count = self.count_nested(value);
                    self.builder.host_entries(count);
                }
                words::OOMPH => {
                    let is_cpu = |&(key, value): &(Value, Value)| {
                        key.kind() == Kind::Str(words::DEVICE) && value.kind() == Kind::Str(words::CPU)
                    };
                    if self.pairs(value).iter().any(is_cpu) {
                        self.builder.kind = DeviceKind::Cpu;
                    }
                }
                _ => self.builder.unknown_key(Table::TopLevel, word),
            }
        }
        self.keep_segments(segments);
        Ok(())
    }

    /// Host segments look like device segments and stand in the same table: only the listed ones stay.
    fn keep_segments(&mut self, rows: Vec<u32>) {
        let all = std::mem::take(&mut self.builder.segments);
        if rows.len() == all.len() {
            self.builder.segments = all;
        } else {
            self.builder.segments = rows.iter().map(|&row| all[row as usize].clone()).collect();
        }
    }

    fn traces(&mut self, value: Value) {
        if !matches!(value.kind(), Kind::List(_) | Kind::Tuple(_)) {
            self.odd(Table::TopLevel, words::DEVICE_TRACES);
        }
        for (device, trace) in self.items(value).into_iter().enumerate() {
            let content = match trace.kind() {
                Kind::List(list) => self.nodes.take_list(list),
                _ => List::Stack(StackId::EMPTY),
            };
            let rows = match content {
                List::Rows { table: Rows::Events, first, count } => first as usize..(first + count) as usize,
                List::Items(items) => self.gathered_events(&items),
                List::Rows { .. } | List::Stack(_) => {
                    self.odd(Table::TopLevel, words::DEVICE_TRACES);
                    0..0
                }
            };
            self.builder.trace(device as u32, rows);
        }
    }

    /// A trace whose events do not stand one after the other: a filtered or hand-made file.
    fn gathered_events(&mut self, items: &[Value]) -> Range<usize> {
        let rows: Vec<u32> = items
            .iter()
            .map(|&item| match self.nodes.resolve(item).kind() {
                Kind::Event(row) => row,
                // Without an action it was not recognised while reading; it still counts as an event.
                Kind::Dict(index) => {
                    let pairs = self.nodes.take_pairs(index);
                    self.event(&pairs)
                }
                _ => self.event(&[]),
            })
            .collect();
        self.builder.events.copy_rows(rows.into_iter())
    }

    fn settings(&mut self, value: Value) {
        self.builder.shape.settings = true;
        self.builder.settings.recorded = true;
        for (key, value) in self.pairs(value).into_iter().take(MOST_SETTINGS) {
            let Kind::Str(word) = key.kind() else { continue };
            let mut json = String::new();
            self.write_json(value, 0, &mut json);
            let json = self.builder.strings.intern(&json);
            let number = self.float(value);
            self.builder.setting(word, json, number);
            if self.builder.strings.get(word) == "roundup_power2_divisions" {
                for (mib, divisions) in self.pairs(value) {
                    let mib = match mib.kind() {
                        Kind::Str(text) => self.builder.strings.get(text).parse().ok(),
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

    fn annotations(&mut self, value: Value) {
        self.builder.shape.annotations = true;
        for item in self.items(value) {
            let mut annotation = Annotation { name: StrId::EMPTY, start: false, device: 0, time_us: 0 };
            for (key, value) in self.pairs(item) {
                let Kind::Str(word) = key.kind() else { continue };
                match word {
                    words::NAME => annotation.name = self.text(Table::Annotation, word, value),
                    words::STAGE => annotation.start = value.kind() == Kind::Str(words::START),
                    words::DEVICE => {
                        annotation.device = self.int(value).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
                    }
                    words::TIME_US => {
                        annotation.time_us = self.int(value).and_then(|n| i64::try_from(n).ok()).unwrap_or(0);
                    }
                    _ => self.builder.unknown_key(Table::Annotation, word),
                }
            }
            self.builder.annotations.push(annotation);
        }
    }

    fn is_segment_list(&self, value: Value) -> bool {
        match value.kind() {
            Kind::List(list) => match &self.nodes.lists[list as usize] {
                List::Rows { table, .. } => *table == Rows::Segments,
                List::Items(items) => {
                    items.iter().all(|item| matches!(self.nodes.resolve(*item).kind(), Kind::Segment(_)))
                }
                List::Stack(_) => false,
            },
            _ => false,
        }
    }

    fn segment_rows(&mut self, value: Value) -> Vec<u32> {
        let rows: Vec<Option<u32>> = self
            .items(value)
            .into_iter()
            .map(|item| match item.kind() {
                Kind::Segment(row) => Some(row),
                _ => None,
            })
            .collect();
        let is_list = matches!(value.kind(), Kind::List(_) | Kind::Tuple(_));
        for _ in 0..rows.iter().filter(|row| row.is_none()).count() + usize::from(!is_list) {
            self.odd(Table::TopLevel, words::SEGMENTS);
        }
        rows.into_iter().flatten().collect()
    }

    fn block_rows(&mut self, value: Value) -> Range<usize> {
        let items = match value.kind() {
            Kind::List(list) => match self.nodes.take_list(list) {
                List::Rows { table: Rows::Blocks, first, count } => {
                    return first as usize..(first + count) as usize;
                }
                List::Items(items) => items,
                List::Rows { .. } | List::Stack(_) => vec![Value::UNSET],
            },
            _ => vec![Value::UNSET],
        };
        let start = self.builder.blocks.len();
        for item in items {
            match self.nodes.resolve(item).kind() {
                Kind::Block(row) => {
                    let block = self.builder.blocks[row as usize];
                    self.builder.blocks.push(block);
                }
                _ => self.odd(Table::Segment, words::BLOCKS),
            }
        }
        start..self.builder.blocks.len()
    }

    fn stack(&mut self, table: Table, value: Value) -> StackId {
        match self.nodes.resolve(value).kind() {
            Kind::Stack(stack) => stack,
            Kind::None => StackId::EMPTY,
            Kind::List(list) => {
                let items = self.items(value);
                let frames: Vec<FrameId> = items
                    .iter()
                    .filter_map(|item| match item.kind() {
                        Kind::Frame(frame) => Some(frame),
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

    fn items(&self, value: Value) -> Vec<Value> {
        self.first_items(value, usize::MAX)
    }

    pub(super) fn first_items(&self, value: Value, most: usize) -> Vec<Value> {
        let resolved =
            |items: &[Value]| items.iter().take(most).map(|&item| self.nodes.resolve(item)).collect();
        match value.kind() {
            Kind::List(list) => match &self.nodes.lists[list as usize] {
                List::Items(items) => resolved(items),
                &List::Rows { table, first, count } => {
                    (first..first + count).take(most).map(|row| row_value(table, row)).collect()
                }
                List::Stack(_) => Vec::new(),
            },
            Kind::Tuple(tuple) => resolved(self.nodes.tuple(tuple)),
            _ => Vec::new(),
        }
    }

    pub(super) fn pairs(&self, value: Value) -> Vec<(Value, Value)> {
        match value.kind() {
            Kind::Dict(index) => match self.nodes.dict(index) {
                Dict::Pairs(pairs) => pairs.clone(),
                Dict::Became(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn count_nested(&self, value: Value) -> u64 {
        let entries = |value: Value| match value.kind() {
            Kind::List(list) => match &self.nodes.lists[list as usize] {
                List::Items(items) => items.len() as u64,
                List::Rows { count, .. } => u64::from(*count),
                List::Stack(_) => 0,
            },
            _ => 1,
        };
        match value.kind() {
            Kind::List(list) => match &self.nodes.lists[list as usize] {
                List::Items(items) => items.iter().map(|&item| entries(item)).sum(),
                List::Rows { count, .. } => u64::from(*count),
                List::Stack(_) => 0,
            },
            _ => 0,
        }
    }

    #[cold]
    fn odd(&mut self, table: Table, key: StrId) {
        self.builder.odd_value(table, key);
    }

    fn int(&self, value: Value) -> Option<i128> {
        match value.kind() {
            Kind::Int(int) => Some(i128::from(int)),
            Kind::Bool(bool) => Some(i128::from(bool)),
            Kind::Number(index) => match self.nodes.numbers[index as usize] {
                Number::Wide(wide) => Some(wide),
                Number::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => Some(float as i128),
                _ => None,
            },
            _ => None,
        }
    }

    fn float(&self, value: Value) -> Option<f64> {
        match value.kind() {
            Kind::Number(index) => match self.nodes.numbers[index as usize] {
                Number::Float(float) => Some(float),
                _ => self.int(value).map(|int| int as f64),
            },
            _ => self.int(value).map(|int| int as f64),
        }
    }

    /// An address or handle: PyTorch writes pointers with the top bit set as negative numbers.
    fn address(&mut self, table: Table, key: StrId, value: Value) -> Option<u64> {
        let int = self.int(value);
        let address =
            int.and_then(|int| u64::try_from(int).ok().or(i64::try_from(int).ok().map(|int| int as u64)));
        if address.is_none() {
            self.odd(table, key);
        }
        address
    }

    fn size(&mut self, table: Table, key: StrId, value: Value) -> Option<u64> {
        let size = self.int(value).and_then(|int| u64::try_from(int).ok());
        if size.is_none() {
            self.odd(table, key);
        }
        size
    }

    fn text(&mut self, table: Table, key: StrId, value: Value) -> StrId {
        match value.kind() {
            Kind::Str(text) => text,
            Kind::None => StrId::EMPTY,
            _ => {
                self.odd(table, key);
                StrId::EMPTY
            }
        }
    }

    /// A list of strings as one text.
    fn lines(&mut self, value: Value) -> StrId {
        let lines: Vec<&str> = self
            .first_items(value, MOST_ITEMS)
            .into_iter()
            .filter_map(|item| match item.kind() {
                Kind::Str(text) => Some(self.builder.strings.get(text)),
                _ => None,
            })
            .collect();
        let mut text = String::new();
        for line in lines {
            if text.len() + line.len() > EXTRA_LIMIT {
                text.push('…');
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        self.builder.strings.intern(text.trim_end_matches('\n'))
    }

    fn pool(&mut self, table: Table, key: StrId, value: Value) -> Option<PoolId> {
        let pool = match value.kind() {
            Kind::Pair(a, b) => Some(PoolId(u64::from(a), u64::from(b))),
            Kind::Tuple(_) | Kind::List(_) => match self.items(value)[..] {
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
    fn extra(&mut self, table: Table, key: StrId, value: Value, into: &mut String) {
        self.builder.unknown_key(table, key);
        self.keep(key, value, into);
    }

    /// Keeps a value that has no column.
    fn keep(&mut self, key: StrId, value: Value, into: &mut String) {
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
