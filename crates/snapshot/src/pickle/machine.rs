//! Restricted pickle machine.

use super::chunks::ParallelDecoding;
use super::events::EventCache;
use super::nodes::Nodes;
use super::number::{self, Number, ParsedNumber};
use super::value::{PickleValue, ValueKind};
use crate::builder::Builder;
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::window::StreamWindow;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::io::Read;

/// Memory in bytes that any pickle may use before it is refused. Real snapshots stay far below (0.6 ×
/// their size is usual), and later stages stay within three times the input.
const BASE_BUDGET_BYTES: usize = 12 << 20;
/// Distance in bytes between two checks of the budget; a power of two.
const BUDGET_CHECK_BYTES: u64 = 64 << 10;

/// First value of a file written by `torch.save` in its format before zip.
const LEGACY_TORCH_MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;

/// State of the machine: the stack and memo of the pickle language, and the tables it fills.
pub(super) struct Machine<R> {
    pub(super) window: StreamWindow<R>,
    pub(super) stack: Vec<PickleValue>,
    pub(super) marks: Vec<usize>,
    pub(super) memo: Vec<PickleValue>,
    /// Memo slots far beyond those in use, which only unusual writers create.
    sparse_memo: HashMap<u32, PickleValue, FxBuildHasher>,
    pub(super) nodes: Nodes,
    pub(super) builder: Builder,
    pub(super) cache: EventCache,
    pub(super) next_budget_check: u64,
    pub(super) parallel: Option<ParallelDecoding>,
}

impl<R: Read> Machine<R> {
    pub(super) fn new(window: StreamWindow<R>) -> Machine<R> {
        Machine {
            window,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: HashMap::default(),
            nodes: Nodes::default(),
            builder: Builder::new(),
            cache: EventCache::default(),
            next_budget_check: 0,
            parallel: None,
        }
    }

    /// Reserves memory for a stream of `length` bytes, by the proportions of real files. Reserved memory
    /// is not touched, so a file that turns out to be something else costs nothing.
    pub(super) fn expect(&mut self, length: u64) {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_EXPECTED_BYTES);
        self.builder.events.reserve(length / 72);
        self.memo.reserve(length / 28);
    }

    /// Runs to the end and converts the result to a snapshot.
    pub(super) fn snapshot(mut self) -> Result<Snapshot, Error> {
        let mut top = self.run()?;
        if self.is_legacy_magic(top) {
            // Magic number, protocol version and system information precede the object.
            self.run()?;
            self.run()?;
            top = self.run()?;
        }
        let Machine { mut nodes, mut builder, memo, .. } = self;
        drop(memo);
        super::lower::top_level(&mut nodes, &mut builder, top)?;
        Ok(builder.finish())
    }

    fn is_legacy_magic(&self, value: PickleValue) -> bool {
        matches!(value.kind(), ValueKind::Number(index)
            if self.nodes.numbers[index as usize] == Number::Wide(LEGACY_TORCH_MAGIC))
    }

    /// Executes one pickle and returns its value.
    pub(super) fn run(&mut self) -> Result<PickleValue, Error> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        self.sparse_memo.clear();
        self.forget_encodings();
        loop {
            // The fast path consumes whole events; `step` handles what it leaves. An event that the end of
            // the window cuts is decoded once the window has all of it.
            self.window.fill(WINDOW_BYTES)?;
            self.check_budget()?;
            if self.take_events()? {
                continue;
            }
            let [opcode] = self.take()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn check_budget(&mut self) -> Result<(), Error> {
        let offset = self.window.offset();
        if offset < self.next_budget_check {
            return Ok(());
        }
        // The same positions however the file is read and decoded, so that the same byte is reported.
        self.next_budget_check = (offset | (BUDGET_CHECK_BYTES - 1)) + 1;
        if self.is_within_budget(0) { Ok(()) } else { Err(Error::too_large(offset)) }
    }

    /// Returns whether `more` bytes of memory are allowed at the current position.
    pub(super) fn is_within_budget(&self, more: usize) -> bool {
        let offset = self.window.offset();
        let used = self.builder.footprint()
            + self.nodes.footprint()
            + self.window.footprint()
            + (self.stack.len() + self.marks.len() + self.memo.len()) * 8
            + self.sparse_memo.capacity() * 17;
        used + more <= BASE_BUDGET_BYTES + (offset + offset / 4) as usize
    }

    /// Forgets how the file encodes events.
    fn forget_encodings(&mut self) {
        self.cache = EventCache::default();
        if let Some(parallel) = &mut self.parallel {
            parallel.forget_encodings();
        }
    }

    /// Executes one opcode: the table of the pickle language.
    pub(super) fn step(&mut self, opcode: u8) -> Result<(), Error> {
        match opcode {
            // Framing and control.
            0x80 => self.protocol(),
            0x95 => self.skip(8),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => match self.marks.last() {
                Some(&mark) if mark == self.stack.len() => {
                    self.marks.pop();
                    Ok(())
                }
                _ => self.pop().map(drop),
            },
            b'1' => self.pop_mark().map(|mark| self.stack.truncate(mark)),
            b'2' => {
                let top = self.top()?;
                self.push(top)
            }
            // Scalars.
            b'N' => self.push(PickleValue::new(ValueKind::None)),
            0x88 => self.push(PickleValue::new(ValueKind::Bool(true))),
            0x89 => self.push(PickleValue::new(ValueKind::Bool(false))),
            b'K' => {
                let [byte] = self.take()?;
                self.push(PickleValue::new(ValueKind::Int(i64::from(byte))))
            }
            b'M' => {
                let value = u16::from_le_bytes(self.take()?);
                self.push(PickleValue::new(ValueKind::Int(i64::from(value))))
            }
            b'J' => {
                let value = i32::from_le_bytes(self.take()?);
                self.push(PickleValue::new(ValueKind::Int(i64::from(value))))
            }
            0x8a => {
                let [length] = self.take()?;
                self.push_long(usize::from(length))
            }
            0x8b => {
                let length = self.take_u32()?;
                self.push_long(length as usize)
            }
            b'I' | b'L' => {
                let line = self.take_text_line()?;
                match number::parse_int(&line) {
                    Some(ParsedNumber::PickleValue(value)) => self.push(value),
                    Some(ParsedNumber::Number(number)) => self.push_number(number),
                    None => Err(self.malformed("a line that should be an integer ends")),
                }
            }
            b'F' => {
                let line = self.take_text_line()?;
                match line.trim().parse() {
                    Ok(float) => self.push_number(Number::Float(float)),
                    Err(_) => Err(self.malformed("a line that should be a float ends")),
                }
            }
            b'G' => {
                let float = f64::from_be_bytes(self.take()?);
                self.push_number(Number::Float(float))
            }
            // Text.
            0x8c | b'U' => {
                let [length] = self.take()?;
                self.push_text(usize::from(length))
            }
            b'X' | b'T' => {
                let length = self.take_u32()?;
                self.push_text(length as usize)
            }
            0x8d => {
                let length = self.take_len64()?;
                self.push_text(length)
            }
            b'V' => {
                let line = self.take_line()?;
                self.push_str(&number::raw_unicode(&line))
            }
            b'S' => {
                let line = self.take_line()?;
                match number::quoted(&line) {
                    Some(text) => self.push_str(&text),
                    None => Err(self.malformed("a string without its quotes ends")),
                }
            }
            // Bytes: plain data, but nothing in a snapshot uses them.
            b'C' => {
                let [length] = self.take()?;
                self.push_opaque(usize::from(length))
            }
            b'B' => {
                let length = self.take_u32()?;
                self.push_opaque(length as usize)
            }
            0x8e | 0x96 => {
                let length = self.take_len64()?;
                self.push_opaque(length)
            }
            // Containers.
            b']' => {
                let list = self.nodes.new_list(Vec::new());
                self.push(list)
            }
            b'l' => {
                let items = self.take_marked()?;
                let list = self.nodes.new_list(Vec::new());
                self.push(list)?;
                self.extend_list(&items)
            }
            b'a' => {
                let item = self.pop()?;
                self.extend_list(&[item])
            }
            b'e' => {
                let mark = self.pop_mark()?;
                let items = self.stack.split_off(mark);
                self.extend_list(&items)
            }
            b'}' => {
                let dict = self.nodes.new_dict(Vec::new());
                self.push(dict)
            }
            b'd' => {
                let items = self.take_marked()?;
                let dict = self.nodes.new_dict(Vec::new());
                self.push(dict)?;
                self.extend_dict(&items)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.extend_open_dict(&[key, value]).map(drop)
            }
            b'u' => {
                let items = self.take_marked()?;
                self.extend_dict(&items)
            }
            b')' => {
                let tuple = self.nodes.new_tuple(&[]);
                self.push(tuple)
            }
            b't' => {
                let items = self.take_marked()?;
                let tuple = self.nodes.new_tuple(&items);
                self.push(tuple)
            }
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let Some(start) = self.stack.len().checked_sub(count) else { return Err(self.underflow()) };
                let items = self.stack.split_off(start);
                let tuple = self.nodes.new_tuple(&items);
                self.push(tuple)
            }
            0x8f => self.push(PickleValue::new(ValueKind::Opaque)),
            0x90 => self.take_marked().map(drop),
            0x91 => {
                self.take_marked()?;
                self.push(PickleValue::new(ValueKind::Opaque))
            }
            // Memo.
            0x94 => {
                let top = self.top()?;
                self.memo.push(top);
                Ok(())
            }
            b'q' => {
                let [slot] = self.take()?;
                self.put(u32::from(slot))
            }
            b'r' => {
                let slot = self.take_u32()?;
                self.put(slot)
            }
            b'p' => {
                let slot = self.take_slot_line()?;
                self.put(slot)
            }
            b'h' => {
                let [slot] = self.take()?;
                self.get(u32::from(slot))
            }
            b'j' => {
                let slot = self.take_u32()?;
                self.get(slot)
            }
            b'g' => {
                let slot = self.take_slot_line()?;
                self.get(slot)
            }
            _ => Err(self.refuse(opcode)),
        }
    }

    fn protocol(&mut self) -> Result<(), Error> {
        let [version] = self.take()?;
        if version > 5 {
            return Err(self.malformed(format!("pickle protocol {version} (the newest known is 5)")));
        }
        Ok(())
    }

    /// Returns the error for an opcode that plain data does not need, with the name it asks for.
    #[cold]
    fn refuse(&mut self, opcode: u8) -> Error {
        let offset = self.window.offset() - 1;
        let text = |machine: &Self, value: Option<&PickleValue>| match value.map(|value| value.kind()) {
            Some(ValueKind::Str(id)) => machine.builder.strings.get(id).to_owned(),
            _ => "?".to_owned(),
        };
        let (name, label) = match opcode {
            b'c' | b'i' => {
                let (module, name) = match (self.take_line(), self.take_line()) {
                    (Ok(module), Ok(name)) => (module, name),
                    (Err(error), _) | (_, Err(error)) => return error,
                };
                let name = format!("{}.{}", String::from_utf8_lossy(&module), String::from_utf8_lossy(&name));
                (name, if opcode == b'c' { "GLOBAL" } else { "INST" })
            }
            0x93 => {
                let mut names = self.stack.iter().rev();
                let (name, module) = (text(self, names.next()), text(self, names.next()));
                (format!("{module}.{name}"), "STACK_GLOBAL")
            }
            b'R' => ("a function call".to_owned(), "REDUCE"),
            b'o' => ("an object".to_owned(), "OBJ"),
            0x81 => ("an object".to_owned(), "NEWOBJ"),
            0x92 => ("an object".to_owned(), "NEWOBJ_EX"),
            b'b' => ("an object's state".to_owned(), "BUILD"),
            0x82..=0x84 => ("a registered extension".to_owned(), "EXT"),
            b'P' => match self.take_line() {
                Ok(id) => (format!("persistent id {}", String::from_utf8_lossy(&id)), "PERSID"),
                Err(error) => return error,
            },
            b'Q' => ("a persistent id".to_owned(), "BINPERSID"),
            0x97 | 0x98 => ("an out-of-band buffer".to_owned(), "NEXT_BUFFER"),
            _ => {
                let shown = if opcode.is_ascii_graphic() {
                    format!("`{}`", char::from(opcode))
                } else {
                    format!("0x{opcode:02x}")
                };
                return Error::malformed(offset, format!("{shown} is not a pickle instruction: found"));
            }
        };
        Error::forbidden(&name, label, offset)
    }

    fn underflow(&self) -> Error {
        self.malformed("an instruction that needs more values than there are")
    }

    #[allow(clippy::unnecessary_wraps)] // ends most arms of `step`, which all return a result
    fn push(&mut self, value: PickleValue) -> Result<(), Error> {
        self.stack.push(value);
        Ok(())
    }

    fn push_number(&mut self, number: Number) -> Result<(), Error> {
        let value = self.nodes.new_number(number);
        self.push(value)
    }

    fn push_long(&mut self, length: usize) -> Result<(), Error> {
        if length > MAX_NUMBER_BYTES {
            return self.push_opaque(length);
        }
        self.need(length)?;
        let number = number::long(&self.window.rest()[..length]);
        self.window.advance(length);
        self.push_number(number)
    }

    /// Refuses a value longer than any in a snapshot: a compressed file can contain a value of a thousand
    /// times its own size. A length beyond the end of the file is reported as truncation instead.
    fn limit(&mut self, length: usize, most: usize) -> Result<(), Error> {
        if length <= most {
            return Ok(());
        }
        self.need(most)?;
        Err(Error::too_large(self.window.offset()))
    }

    fn push_str(&mut self, text: &str) -> Result<(), Error> {
        let id = self.builder.strings.intern(text);
        self.push(PickleValue::new(ValueKind::Str(id)))
    }

    fn push_text(&mut self, length: usize) -> Result<(), Error> {
        self.limit(length, MAX_TEXT_BYTES)?;
        self.need(length)?;
        let bytes = &self.window.rest()[..length];
        let id = match std::str::from_utf8(bytes) {
            Ok(text) => self.builder.strings.intern(text),
            // Python encodes lone surrogates as invalid UTF-8.
            Err(_) => self.builder.strings.intern(&String::from_utf8_lossy(bytes)),
        };
        self.window.advance(length);
        self.push(PickleValue::new(ValueKind::Str(id)))
    }

    fn push_opaque(&mut self, length: usize) -> Result<(), Error> {
        self.limit(length, MAX_TEXT_BYTES)?;
        self.skip(length)?;
        self.push(PickleValue::new(ValueKind::Opaque))
    }

    fn top(&self) -> Result<PickleValue, Error> {
        self.stack.last().copied().ok_or_else(|| self.underflow())
    }

    fn pop(&mut self) -> Result<PickleValue, Error> {
        match self.stack.pop() {
            Some(value) => Ok(self.nodes.resolve(value)),
            None => Err(self.underflow()),
        }
    }

    fn pop_mark(&mut self) -> Result<usize, Error> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(mark),
            _ => Err(self.malformed("an instruction without its mark")),
        }
    }

    fn take_marked(&mut self) -> Result<Vec<PickleValue>, Error> {
        let mark = self.pop_mark()?;
        Ok(self.stack.split_off(mark))
    }

    fn take_slot_line(&mut self) -> Result<u32, Error> {
        let line = self.take_text_line()?;
        line.trim().parse().map_err(|_| self.malformed("a line that should be a memo number ends"))
    }

    fn put(&mut self, slot: u32) -> Result<(), Error> {
        let top = self.top()?;
        let index = slot as usize;
        if index < self.memo.len() {
            self.memo[index] = top;
            // References to this slot have changed their meaning.
            self.forget_encodings();
        } else if index <= self.memo.len() + 1024 {
            self.memo.resize(index, PickleValue::UNSET);
            self.memo.push(top);
        } else {
            self.sparse_memo.insert(slot, top);
        }
        Ok(())
    }

    fn get(&mut self, slot: u32) -> Result<(), Error> {
        let dense = self.memo.get(slot as usize).copied().filter(|&value| value != PickleValue::UNSET);
        match dense.or_else(|| self.sparse_memo.get(&slot).copied()) {
            Some(value) => self.push(self.nodes.resolve(value)),
            None => Err(self.malformed(format!("a reference to memo {slot}, which was never stored,"))),
        }
    }

    /// Appends `items` to the list on top of the stack. A dictionary is complete once it is appended to a
    /// list: dictionaries that grew pair by pair become rows here.
    fn extend_list(&mut self, items: &[PickleValue]) -> Result<(), Error> {
        match self.top()?.kind() {
            ValueKind::List(list) => {
                for &item in items {
                    let item = match self.nodes.resolve(item).kind() {
                        ValueKind::Dict(dict) => self.lower_dict(dict),
                        _ => self.nodes.resolve(item),
                    };
                    if !self.nodes.append(list, item) {
                        return Err(self.malformed("a call stack that changes after its use"));
                    }
                }
                Ok(())
            }
            ValueKind::Opaque => Ok(()),
            _ => Err(self.malformed("an instruction that appends to something other than a list")),
        }
    }

    /// Adds the last pairs to the dictionary on top of the stack, which is then complete.
    fn extend_dict(&mut self, items: &[PickleValue]) -> Result<(), Error> {
        if let Some(dict) = self.extend_open_dict(items)? {
            let value = self.lower_dict(dict);
            if let Some(top) = self.stack.last_mut() {
                *top = value;
            }
        }
        Ok(())
    }

    /// Adds pairs to the dictionary on top of the stack, which may get more.
    fn extend_open_dict(&mut self, items: &[PickleValue]) -> Result<Option<u32>, Error> {
        match self.top()?.kind() {
            ValueKind::Dict(dict) if items.len().is_multiple_of(2) && self.nodes.add_pairs(dict, items) => {
                Ok(Some(dict))
            }
            ValueKind::Opaque => Ok(None),
            ValueKind::Dict(_) if !items.len().is_multiple_of(2) => {
                Err(self.malformed("a key without a value"))
            }
            _ => {
                Err(self
                    .malformed("an instruction that sets items of something other than an open dictionary"))
            }
        }
    }
}

/// Maximum length of a string, in bytes.
const MAX_TEXT_BYTES: usize = 8 << 20;
/// Maximum length of an integer, in bytes.
const MAX_NUMBER_BYTES: usize = 64 << 10;

/// Maximum stream length in bytes that memory is reserved for.
const MAX_EXPECTED_BYTES: usize = 16 << 30;

/// Bytes kept in the window: more than any event without an inline stack takes. Longer events are left to the
/// machine, wherever the window ends.
pub(super) const WINDOW_BYTES: usize = 4 << 10;
