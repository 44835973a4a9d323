//! Fast path: decodes whole event dictionaries from the bytes into the columns.
//!
//! Nearly all of a snapshot is one dictionary shape, repeated. [`Template`] decodes an event that is
//! encoded like the one before it; [`Decoder`] one whose values are encoded differently. Everything else
//! (the first occurrence of a name, a key added by a later torch) is left to the machine.

use super::decoder::{Decoder, FRAME_HEADER_BYTES, FRAME_OPCODE};
use super::machine::{Machine, WINDOW_BYTES};
use super::nodes::Nodes;
use super::stack_cache::StackCache;
use super::template::Template;
use super::value::{PickleValue, ValueKind};
use crate::builder::Builder;
use crate::error::Error;
use crate::stacks::{FrameId, StackId};
use crate::tables::{Context, EventRow};
use crate::text::StrId;
use std::io::Read;
use std::ops::Range;

/// What is remembered from one event to the next about how the file encodes them.
#[derive(Default)]
pub(super) struct EventCache {
    pub(super) template: Option<Template>,
    pub(super) stack_cache: StackCache,
    /// Scratch space for the frames of a new stack.
    pub(super) frames: Vec<FrameId>,
}

/// Tables that decoded events go into: those of the machine, or those of a chunk. A method that returns
/// `None` leaves the event to the machine.
pub(super) trait EventTables {
    /// Starts an event and returns the length of the memo, for [`EventTables::abandon_event`].
    fn begin_event(&mut self) -> usize;
    /// Removes what an event that cannot be decoded has added to the memo.
    fn abandon_event(&mut self, begun: usize);
    /// Returns the row of the next event.
    fn next_row(&self) -> u32;
    /// Adds a row that has all of its keys, time included.
    fn push_event(&mut self, row: EventRow);
    /// Returns the memo slot of the next value, if it is known.
    fn next_slot(&self) -> Option<usize>;
    /// Returns the value in a memo slot.
    fn memoized(&self, slot: usize) -> Option<PickleValue>;
    /// Returns the stack in a memo slot.
    fn recalled_stack(&mut self, slot: usize) -> Option<StackId>;
    /// Values that were memoized here, which grow with each event.
    fn new_values(&mut self) -> &mut Vec<PickleValue>;
    fn nodes(&self) -> &Nodes;
    fn text(&mut self, text: &str) -> Option<StrId>;
    fn stack(&mut self, frames: &[FrameId]) -> Option<StackId>;
    fn context(&mut self, context: Context) -> Option<u32>;
}

/// Tables of the machine.
struct MachineTables<'a> {
    memo: &'a mut Vec<PickleValue>,
    nodes: &'a Nodes,
    builder: &'a mut Builder,
}

impl EventTables for MachineTables<'_> {
    #[inline]
    fn begin_event(&mut self) -> usize {
        self.memo.len()
    }

    fn abandon_event(&mut self, begun: usize) {
        self.memo.truncate(begun);
    }

    #[inline]
    fn next_row(&self) -> u32 {
        self.builder.events.len() as u32
    }

    #[inline]
    fn push_event(&mut self, row: EventRow) {
        self.builder.timed_event(row);
    }

    fn next_slot(&self) -> Option<usize> {
        Some(self.memo.len())
    }

    #[inline]
    fn memoized(&self, slot: usize) -> Option<PickleValue> {
        self.memo.get(slot).copied()
    }

    #[inline]
    fn recalled_stack(&mut self, slot: usize) -> Option<StackId> {
        stack_in(self.nodes, self.memoized(slot)?)
    }

    #[inline]
    fn new_values(&mut self) -> &mut Vec<PickleValue> {
        self.memo
    }

    fn nodes(&self) -> &Nodes {
        self.nodes
    }

    fn text(&mut self, text: &str) -> Option<StrId> {
        Some(self.builder.strings.intern(text))
    }

    fn stack(&mut self, frames: &[FrameId]) -> Option<StackId> {
        Some(self.builder.stacks.intern(frames))
    }

    fn context(&mut self, context: Context) -> Option<u32> {
        Some(self.builder.context(context))
    }
}

/// Decoder for a run of events.
pub(super) struct RunDecoder<'a, T> {
    pub(super) tables: T,
    pub(super) cache: &'a mut EventCache,
}

impl<R: Read> Machine<R> {
    /// Decodes as many events as follow at the current position; returns whether there were any.
    #[inline]
    pub(super) fn take_events(&mut self) -> Result<bool, Error> {
        let start = self.window.offset();
        while self.window.rest().first() == Some(&b'}') && self.window.offset() < self.next_budget_check {
            if self.take_chunks()? {
                continue;
            }
            let first = self.builder.events.len() as u32;
            let tables =
                MachineTables { memo: &mut self.memo, nodes: &self.nodes, builder: &mut self.builder };
            let limit = (self.next_budget_check - self.window.offset()) as usize;
            let length = RunDecoder { tables, cache: &mut self.cache }.take_run(self.window.rest(), limit);
            self.window.advance(length);
            self.push_events(first..self.builder.events.len() as u32);
            // The writer closes one batch of a list and opens the next: handled here because it is
            // frequent.
            match self.window.rest() {
                [b'e', b'(', b'}', ..] => {
                    self.close_batch()?;
                    self.window.advance(2);
                }
                _ => break,
            }
        }
        Ok(self.window.offset() > start)
    }

    /// Pushes events onto the stack.
    pub(super) fn push_events(&mut self, rows: Range<u32>) {
        self.stack.extend(rows.map(|row| PickleValue::new(ValueKind::Event(row))));
    }

    /// Executes the opcodes `e(`: appends the values above the mark to the list below it, and sets a new
    /// mark.
    pub(super) fn close_batch(&mut self) -> Result<(), Error> {
        if let Some(&mark) = self.marks.last()
            && let Some(below) = mark.checked_sub(1)
            && let (Some(list), Some(first)) = (self.stack.get(below), self.stack.get(mark))
            && let (ValueKind::List(list), ValueKind::Event(first)) = (list.kind(), first.kind())
            && self.stack[mark..]
                .iter()
                .zip(first..)
                .all(|(value, row)| value.kind() == ValueKind::Event(row))
            && self.nodes.append_events(list, first, (self.stack.len() - mark) as u32)
        {
            self.stack.truncate(mark);
            return Ok(());
        }
        self.step(b'e')?;
        self.step(b'(')
    }
}

impl<T: EventTables> RunDecoder<'_, T> {
    /// Decodes events from the start of `bytes` while they have the usual shape and start before `limit`;
    /// returns the bytes consumed.
    pub(super) fn take_run(&mut self, bytes: &[u8], limit: usize) -> usize {
        let mut length = 0;
        while length < limit {
            match bytes[length..] {
                [b'}', ..] => {}
                [FRAME_OPCODE, _, _, _, _, _, _, _, _, b'}', ..] => {
                    length += FRAME_HEADER_BYTES;
                    continue;
                }
                _ => return length,
            }
            let event = &bytes[length..bytes.len().min(length + WINDOW_BYTES)];
            let begun = self.tables.begin_event();
            if let Some(taken) = self.repeat(event) {
                length += taken;
                continue;
            }
            match Decoder::new(event, self).event() {
                Some(taken) => length += taken,
                None => {
                    self.tables.abandon_event(begun);
                    return length;
                }
            }
        }
        length
    }

    /// Decodes the event at the start of `bytes` if it is encoded like the one before; returns its
    /// length.
    #[inline]
    fn repeat(&mut self, bytes: &[u8]) -> Option<usize> {
        let template = self.cache.template.as_ref()?;
        let event = template.decode(bytes)?;
        let mut position = event.length;
        let mut new_list = false;
        let stack = match *bytes.get(position)? {
            b'h' => {
                let slot = usize::from(*bytes.get(position + 1)?);
                position += 2;
                self.tables.recalled_stack(slot)?
            }
            b'j' => {
                let slot = u32::from_le_bytes(*bytes.get(position + 1..)?.first_chunk()?) as usize;
                position += 5;
                self.tables.recalled_stack(slot)?
            }
            b']' => {
                new_list = true;
                match bytes.get(position + 1..position + 3)? {
                    [0x94, b'u'] => {
                        position += 2;
                        StackId::EMPTY
                    }
                    [0x94, b'('] => {
                        let list = bytes.get(position + 3..)?;
                        let length = references(list)?;
                        position += 3 + length + 1;
                        self.cache.stack_cache.find(&list[..length])?
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        if *bytes.get(position)? != b'u' {
            return None;
        }
        let row = self.tables.next_row();
        let memo = self.tables.new_values();
        memo.push(PickleValue::new(ValueKind::Event(row)));
        memo.extend_from_slice(template.memoized());
        if new_list {
            memo.push(PickleValue::new(ValueKind::Stack(stack)));
        }
        self.tables.push_event(EventRow {
            action: event.action,
            addr: event.addr,
            size: event.size,
            time_us: event.time_us,
            stack,
            context: template.context(),
        });
        Some(position + 1)
    }
}

/// Returns the stack that a value is.
#[inline]
pub(super) fn stack_in(nodes: &Nodes, value: PickleValue) -> Option<StackId> {
    match nodes.resolve(value).kind() {
        ValueKind::Stack(stack) => Some(stack),
        _ => None,
    }
}

/// Length of the memo references at the start of `bytes`, up to the end of their list.
#[inline]
fn references(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    loop {
        match bytes.get(length)? {
            b'h' => length += 2,
            b'j' => length += 5,
            b'e' => return Some(length),
            _ => return None,
        }
    }
}
