//! Reader for snapshots written as JSON, one row at a time.
//!
//! The visitors mirror the nesting of a snapshot; each fills the fields of one row and hands them to the
//! builder, so the file is never in memory as a tree.

use crate::builder::{BlockFields, Builder, EventFields, SegmentFields, TableKind};
use crate::error::Error;
use crate::snapshot::{DeviceKind, Snapshot};
use crate::stacks::{Frame, FrameId, StackId};
use crate::tables::{Annotation, PoolId};
use crate::text::StrId;
use crate::words;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::rc::Rc;

/// Reads a snapshot from JSON text.
pub(crate) fn read(stream: impl Read) -> Result<Snapshot, Error> {
    let consumed = Rc::new(Cell::new(0));
    let last_row = Rc::new(Cell::new(0));
    let counted = CountingReader { stream, consumed: Rc::clone(&consumed), last_row: Rc::clone(&last_row) };
    let mut reader =
        Reader { builder: Builder::new(), consumed, last_row, found: TopLevelContent::default() };
    let mut json = serde_json::Deserializer::from_reader(counted);
    let result = TopLevel(&mut reader).deserialize(&mut json);
    let offset = reader.consumed.get();
    match result {
        Err(_) if reader.found.over_budget => Err(Error::too_large(offset)),
        Err(error) if error.io_error_kind() == Some(io::ErrorKind::FileTooLarge) => {
            Err(Error::too_large(offset))
        }
        Err(error) if error.is_io() => Err(Error::io(error.into())),
        Err(error) if error.is_eof() => Err(Error::truncated(offset)),
        Err(error) if error.is_data() => {
            Err(Error::not_a_snapshot(format!("its JSON has the wrong structure: {error}")))
        }
        Err(error) => Err(Error::not_a_snapshot(format!("it is not valid JSON: {error}"))),
        Ok(()) if !reader.found.snapshot => Err(Error::not_a_snapshot(reader.found.describe())),
        Ok(()) => Ok(reader.builder.finish()),
    }
}

/// Maximum length of the text kept for a value without a column, in bytes.
const MAX_EXTRA_BYTES: usize = 4 << 10;
/// Maximum number of settings; PyTorch has about a dozen.
const MAX_SETTINGS: usize = 200;
/// Maximum distance between two rows, in bytes. No snapshot has a longer value, but a compressed file
/// could hold one of a thousand times its own size.
const MAX_VALUE_BYTES: u64 = 8 << 20;

/// Reader that counts the bytes the parser has consumed in total and at the last row.
struct CountingReader<R> {
    stream: R,
    consumed: Rc<Cell<u64>>,
    last_row: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.consumed.get() - self.last_row.get() > MAX_VALUE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a single value is too long"));
        }
        let count = self.stream.read(into)?;
        self.consumed.set(self.consumed.get() + count as u64);
        Ok(count)
    }
}

/// Structure found at the top level.
#[derive(Default)]
struct TopLevelContent {
    snapshot: bool,
    keys: Vec<String>,
    over_budget: bool,
}

impl TopLevelContent {
    fn describe(&self) -> String {
        match self.keys.len() {
            0 => "expected a dictionary with the key `segments`, found an empty one".to_owned(),
            n => {
                let shown: Vec<String> = self.keys.iter().take(5).map(|key| format!("`{key}`")).collect();
                let more = if n > 5 { ", …" } else { "" };
                format!(
                    "expected a dictionary with the key `segments`, found one with {}{more}",
                    shown.join(", ")
                )
            }
        }
    }
}

struct Reader {
    builder: Builder,
    consumed: Rc<Cell<u64>>,
    last_row: Rc<Cell<u64>>,
    found: TopLevelContent,
}

impl Reader {
    /// Checks the memory of the tables against the text read. JSON is verbose: rows that take more memory
    /// than their text are not from PyTorch.
    fn check_budget<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.last_row.set(self.consumed.get());
        let allowed = (12 << 20) + self.consumed.get() as usize;
        if self.builder.footprint() > allowed {
            self.found.over_budget = true;
            return Err(E::custom("too large"));
        }
        Ok(())
    }

    /// Keeps the value of a key that has no column; most of these keys are unknown to this version.
    fn extra(&mut self, table: TableKind, key: &str, value: &RawValue, into: &mut String) {
        if !matches!(key, "forward_frames" | "internal_metadata") {
            self.unknown_key(table, key);
        }
        if into.len() > MAX_EXTRA_BYTES {
            return;
        }
        let key = &key[..key.floor_char_boundary(200)];
        let text = value.get();
        into.push(if into.is_empty() { '{' } else { ',' });
        into.push_str(&serde_json::to_string(key).unwrap_or_default());
        into.push(':');
        into.push_str(if text.len() <= MAX_EXTRA_BYTES { text } else { "\"…\"" });
    }

    fn unknown_key(&mut self, table: TableKind, key: &str) {
        let word = self.builder.strings.intern(&key[..key.floor_char_boundary(200)]);
        self.builder.unknown_key(table, word);
    }

    fn intern_extra(&mut self, mut extra: String) -> StrId {
        if extra.is_empty() {
            return StrId::EMPTY;
        }
        extra.push('}');
        self.builder.strings.intern(&extra)
    }
}

/// Declares a visitor that borrows the reader: `$name` reads `$expecting` into `$value`.
macro_rules! visitor {
    ($name:ident, $value:ty, $expecting:literal, { $($method:item)* }) => {
        struct $name<'a>(&'a mut Reader);

        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = $value;
            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<$value, D::Error> {
                deserializer.deserialize_any(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = $value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }
            $($method)*
        }
    };
}

visitor!(TopLevel, (), "a snapshot or a list of segments", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "segments" => {
                    reader.found.snapshot = true;
                    map.next_value_seed(Segments(reader))?;
                }
                "device_traces" => {
                    reader.found.snapshot = true;
                    map.next_value_seed(Traces(reader))?;
                }
                "allocator_settings" => map.next_value_seed(AllocatorSettings(reader))?,
                "external_annotations" => map.next_value_seed(Annotations(reader))?,
                "oomph" => {
                    let own = map.next_value::<Box<RawValue>>()?;
                    let own: Option<serde_json::Value> = serde_json::from_str(own.get()).ok();
                    if own.is_some_and(|own| own["device"] == "cpu") {
                        reader.builder.kind = DeviceKind::Cpu;
                    }
                }
                "host_segments" => {
                    let start = reader.builder.segments.len();
                    map.next_value_seed(Segments(reader))?;
                    reader.builder.shape.host_segments = true;
                    reader.builder.pinned.segments = reader.builder.segments.split_off(start);
                }
                "host_traces" => {
                    let start = reader.builder.events.len();
                    map.next_value_seed(Events(reader))?;
                    reader.builder.pinned.rows = start..reader.builder.events.len();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    reader.unknown_key(TableKind::TopLevel, &key);
                    if reader.found.keys.len() < 6 {
                        reader.found.keys.push(key[..key.floor_char_boundary(60)].to_owned());
                    }
                    reader.check_budget()?;
                }
            }
        }
        reader.builder.shape.has_top_level = true;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.found.snapshot = true;
        while list.next_element_seed(SegmentRow(self.0))?.is_some() {}
        Ok(())
    }
});

visitor!(Segments, (), "a list of segments", {
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(SegmentRow(self.0))?.is_some() {}
        Ok(())
    }
});

visitor!(SegmentRow, (), "a segment: a dictionary with `address`, `total_size` and `blocks`", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut fields = SegmentFields::default();
        let mut extra = String::new();
        let mut is_segment = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "device" => fields.device = map.next_value::<LooseNumber>()?.size(),
                "address" => fields.addr = map.next_value::<LooseNumber>()?.address(),
                "total_size" => {
                    is_segment = true;
                    fields.size = map.next_value::<LooseNumber>()?.size();
                }
                "stream" => fields.stream = map.next_value::<LooseNumber>()?.address(),
                "segment_type" => fields.kind = map.next_value_seed(Text(reader))?,
                "segment_pool_id" => {
                    fields.pool = map.next_value::<(u64, u64)>().map(|(a, b)| Some(PoolId(a, b)))?
                }
                "is_expandable" => fields.expandable = map.next_value()?,
                "frames" => fields.stack = map.next_value_seed(StackOf(reader))?,
                "blocks" => {
                    is_segment = true;
                    let start = reader.builder.blocks.len();
                    map.next_value_seed(Blocks(reader))?;
                    fields.blocks = start..reader.builder.blocks.len();
                }
                "allocated_size" | "active_size" | "requested_size" => {
                    map.next_value::<IgnoredAny>()?;
                }
                _ => reader.extra(TableKind::Segment, &key, &map.next_value::<Box<RawValue>>()?, &mut extra),
            }
        }
        if !is_segment {
            return Err(serde::de::Error::custom("a list of something other than segments"));
        }
        fields.extra = reader.intern_extra(extra);
        reader.builder.segment(fields);
        reader.check_budget()
    }
});

visitor!(Blocks, (), "a list of blocks", {
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(BlockRow(self.0))?.is_some() {}
        Ok(())
    }
});

visitor!(BlockRow, (), "a block", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut fields = BlockFields::default();
        let mut extra = String::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "address" => fields.addr = Some(map.next_value::<LooseNumber>()?.address()),
                "size" => fields.size = map.next_value::<LooseNumber>()?.size(),
                "requested_size" => fields.requested = map.next_value::<LooseNumber>()?.size(),
                "state" => fields.state = map.next_value_seed(Text(reader))?,
                "frames" => fields.stack = map.next_value_seed(StackOf(reader))?,
                "history" => {
                    reader.builder.shape.block_history = true;
                    if let Some((requested, stack)) = map.next_value_seed(BlockHistory(reader))? {
                        (fields.requested, fields.stack) = (requested, stack);
                    }
                }
                _ => reader.extra(TableKind::Block, &key, &map.next_value::<Box<RawValue>>()?, &mut extra),
            }
        }
        fields.extra = reader.intern_extra(extra);
        reader.builder.block(&fields);
        reader.check_budget()
    }
});

visitor!(BlockHistory, Option<(u64, StackId)>, "the past owners of a block", {
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Option<(u64, StackId)>, A::Error> {
        let mut newest = None;
        while let Some(owner) = list.next_element_seed(Owner(self.0))? {
            newest = Some(owner);
        }
        Ok(newest)
    }
});

visitor!(Owner, (u64, StackId), "a past owner of a block", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(u64, StackId), A::Error> {
        let mut owner = (0, StackId::EMPTY);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "real_size" => owner.0 = map.next_value::<LooseNumber>()?.size(),
                "frames" => owner.1 = map.next_value_seed(StackOf(self.0))?,
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(owner)
    }
});

visitor!(Traces, (), "a list of traces, one per device", {
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut device = 0;
        loop {
            let start = self.0.builder.events.len();
            if list.next_element_seed(Events(self.0))?.is_none() {
                return Ok(());
            }
            let rows = start..self.0.builder.events.len();
            self.0.builder.trace(device, rows);
            device += 1;
        }
    }
});

visitor!(Events, (), "a list of events", {
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(EventRow(self.0))?.is_some() {}
        Ok(())
    }
});

visitor!(EventRow, (), "an event", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut fields = EventFields::default();
        let mut extra = String::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "action" => fields.action = map.next_value_seed(Text(reader))?,
                "addr" => fields.addr = Some(map.next_value::<LooseNumber>()?.address()),
                "device_free" => fields.device_free = Some(map.next_value::<LooseNumber>()?.size()),
                "size" => fields.size = Some(map.next_value::<LooseNumber>()?.size()),
                "stream" => fields.context.stream = map.next_value::<LooseNumber>()?.address(),
                "time_us" => fields.time_us = Some(map.next_value::<LooseNumber>()?.address() as i64),
                "frames" => fields.stack = map.next_value_seed(StackOf(reader))?,
                "compile_context" => fields.context.compile_context = map.next_value_seed(Text(reader))?,
                "user_metadata" => {
                    fields.context.has_user_metadata = true;
                    fields.context.user_metadata = map.next_value_seed(Text(reader))?;
                }
                "pool_id" => {
                    fields.context.pool = map.next_value::<(u64, u64)>().map(|(a, b)| Some(PoolId(a, b)))?;
                }
                "forward_frames" => {
                    fields.context.forward_frames = map.next_value_seed(Lines(reader))?;
                }
                _ => reader.extra(TableKind::Event, &key, &map.next_value::<Box<RawValue>>()?, &mut extra),
            }
        }
        fields.context.extra = reader.intern_extra(extra);
        reader.builder.event(&fields);
        reader.check_budget()
    }
});

visitor!(StackOf, StackId, "a list of frames", {
    fn visit_unit<E>(self) -> Result<StackId, E> {
        Ok(StackId::EMPTY)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StackId, A::Error> {
        let mut frames = Vec::new();
        while let Some(frame) = list.next_element_seed(FrameOf(self.0))? {
            frames.push(frame);
            self.0.check_budget()?;
        }
        Ok(self.0.builder.stacks.intern(&frames))
    }
});

visitor!(FrameOf, FrameId, "a frame", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FrameId, A::Error> {
        let reader = self.0;
        let mut frame = Frame::default();
        let mut extra = String::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "name" => frame.function = map.next_value_seed(Text(reader))?,
                "filename" => frame.file = map.next_value_seed(Text(reader))?,
                "line" => frame.line = u32::try_from(map.next_value::<LooseNumber>()?.size()).unwrap_or(0),
                _ => reader.extra(TableKind::Frame, &key, &map.next_value::<Box<RawValue>>()?, &mut extra),
            }
        }
        frame.extra = reader.intern_extra(extra);
        Ok(reader.builder.frame(frame))
    }
});

visitor!(AllocatorSettings, (), "a dictionary of settings", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let builder = &mut self.0.builder;
        builder.shape.settings = true;
        builder.settings.recorded = true;
        while let Some(key) = map.next_key::<String>()? {
            let value: Box<RawValue> = map.next_value()?;
            if builder.settings.pairs.len() == MAX_SETTINGS
                || value.get().len() > MAX_EXTRA_BYTES
                || key.len() > 200
            {
                continue;
            }
            let (word, json) = (builder.strings.intern(&key), builder.strings.intern(value.get()));
            builder.setting(word, json, value.get().parse().ok());
            if key == "roundup_power2_divisions" {
                let steps: std::collections::BTreeMap<String, u64> =
                    serde_json::from_str(value.get()).unwrap_or_default();
                for (mib, divisions) in steps {
                    builder.division(mib.parse().unwrap_or(0), divisions);
                }
            }
        }
        Ok(())
    }
});

visitor!(Annotations, (), "a list of annotations", {
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.builder.shape.annotations = true;
        while list.next_element_seed(AnnotationRow(self.0))?.is_some() {}
        Ok(())
    }
});

visitor!(AnnotationRow, (), "an annotation", {
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut annotation = Annotation { name: StrId::EMPTY, start: false, device: 0, time_us: 0 };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "name" => annotation.name = map.next_value_seed(Text(reader))?,
                "stage" => annotation.start = map.next_value_seed(Text(reader))? == words::START,
                "device" => {
                    annotation.device = u32::try_from(map.next_value::<LooseNumber>()?.size()).unwrap_or(0)
                }
                "time_us" => annotation.time_us = map.next_value::<LooseNumber>()?.address() as i64,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    reader.unknown_key(TableKind::Annotation, &key);
                }
            }
        }
        reader.builder.annotations.push(annotation);
        reader.check_budget()
    }
});

visitor!(Lines, StrId, "a list of lines", {
    fn visit_unit<E>(self) -> Result<StrId, E> {
        Ok(StrId::EMPTY)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StrId, A::Error> {
        let mut text = String::new();
        while let Some(line) = list.next_element::<String>()? {
            if text.len() + line.len() > MAX_EXTRA_BYTES {
                text.push('…');
                while list.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
            text.push_str(&line);
            text.push('\n');
        }
        Ok(self.0.builder.strings.intern(text.trim_end_matches('\n')))
    }
});

visitor!(Text, StrId, "a string", {
    fn visit_unit<E>(self) -> Result<StrId, E> {
        Ok(StrId::EMPTY)
    }

    fn visit_str<E>(self, text: &str) -> Result<StrId, E> {
        Ok(self.0.builder.strings.intern(text))
    }
});

/// Number in any form that writers use: addresses are integers of either sign, floats from tools without
/// integers, and `null` if missing.
#[derive(Clone, Copy)]
enum LooseNumber {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Missing,
}

impl LooseNumber {
    fn size(self) -> u64 {
        match self {
            LooseNumber::Unsigned(n) => n,
            LooseNumber::Signed(n) => u64::try_from(n).unwrap_or(0),
            LooseNumber::Float(n) => n as u64,
            LooseNumber::Missing => 0,
        }
    }

    fn address(self) -> u64 {
        match self {
            LooseNumber::Signed(n) => n as u64,
            other => other.size(),
        }
    }
}

impl<'de> serde::Deserialize<'de> for LooseNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LooseNumber, D::Error> {
        struct LooseNumberVisitor;
        impl Visitor<'_> for LooseNumberVisitor {
            type Value = LooseNumber;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_u64<E>(self, n: u64) -> Result<LooseNumber, E> {
                Ok(LooseNumber::Unsigned(n))
            }
            fn visit_i64<E>(self, n: i64) -> Result<LooseNumber, E> {
                Ok(LooseNumber::Signed(n))
            }
            fn visit_f64<E>(self, n: f64) -> Result<LooseNumber, E> {
                Ok(LooseNumber::Float(n))
            }
            fn visit_unit<E>(self) -> Result<LooseNumber, E> {
                Ok(LooseNumber::Missing)
            }
        }
        deserializer.deserialize_any(LooseNumberVisitor)
    }
}
