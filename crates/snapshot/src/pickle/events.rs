//! Fast path: decodes whole event dictionaries from the bytes into the columns.
//!
//! Nearly all of a snapshot is one dictionary shape, repeated. [`Template`] decodes an event that is
//! encoded like the one before it; [`Decoder`] one whose values are encoded differently. Everything else
//! (the first occurrence of a name, a key added by a later torch) is left to the machine.

use super::decoder::{Decoder, FRAME_HEADER_BYTES, FRAME_OPCODE};
use super::machine::Machine;
use super::nodes::Nodes;
use super::stack_cache::StackCache;
use super::template::Template;
use super::value::{PickleValue, ValueKind};
use crate::builder::Builder;
use crate::error::Error;
use crate::stacks::{FrameId, StackId};
use crate::tables::EventRow;
use std::io::Read;

/// What is remembered from one event to the next about how the file encodes them.
#[derive(Default)]
pub(super) struct EventCache {
    pub(super) template: Option<Template>,
    pub(super) stack_cache: StackCache,
    /// Scratch space for the frames of a new stack.
    pub(super) frames: Vec<FrameId>,
}

/// Parts of the machine that events are written to.
pub(super) struct Tables<'a> {
    pub(super) memo: &'a mut Vec<PickleValue>,
    pub(super) nodes: &'a Nodes,
    pub(super) builder: &'a mut Builder,
    pub(super) cache: &'a mut EventCache,
}

impl<R: Read> Machine<R> {
    /// Decodes as many events as follow at the current position, if any.
    #[inline]
    pub(super) fn take_events(&mut self) -> Result<(), Error> {
        while self.window.rest().first() == Some(&b'}') {
            let first = self.builder.events.len() as u32;
            let mut tables = Tables {
                memo: &mut self.memo,
                nodes: &self.nodes,
                builder: &mut self.builder,
                cache: &mut self.cache,
            };
            let length = tables.take_run(self.window.rest());
            self.window.advance(length);
            self.push_events(first);
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
        Ok(())
    }

    /// Pushes the events since `first` onto the stack.
    fn push_events(&mut self, first: u32) {
        self.stack.extend(
            (first..self.builder.events.len() as u32).map(|row| PickleValue::new(ValueKind::Event(row))),
        );
    }

    /// Executes the opcodes `e(`: appends the values above the mark to the list below it, and sets a new
    /// mark.
    fn close_batch(&mut self) -> Result<(), Error> {
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

impl Tables<'_> {
    /// Decodes events from the start of `bytes` while they have the usual shape; returns the bytes
    /// consumed.
    fn take_run(&mut self, bytes: &[u8]) -> usize {
        let mut length = 0;
        loop {
            match bytes[length..] {
                [b'}', ..] => {}
                [FRAME_OPCODE, _, _, _, _, _, _, _, _, b'}', ..] => {
                    length += FRAME_HEADER_BYTES;
                    continue;
                }
                _ => return length,
            }
            if let Some(taken) = self.repeat(&bytes[length..]) {
                length += taken;
                continue;
            }
            let memoized = self.memo.len();
            match Decoder::new(&bytes[length..], self).event() {
                Some(taken) => length += taken,
                None => {
                    self.memo.truncate(memoized);
                    return length;
                }
            }
        }
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
                recalled_stack(self.memo, self.nodes, slot)?
            }
            b'j' => {
                let slot = u32::from_le_bytes(*bytes.get(position + 1..)?.first_chunk()?) as usize;
                position += 5;
                recalled_stack(self.memo, self.nodes, slot)?
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
        self.memo.push(PickleValue::new(ValueKind::Event(self.builder.events.len() as u32)));
        self.memo.extend_from_slice(template.memoized());
        if new_list {
            self.memo.push(PickleValue::new(ValueKind::Stack(stack)));
        }
        self.builder.events.push(EventRow {
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

/// Returns the stack in a memo slot.
#[inline]
pub(super) fn recalled_stack(memo: &[PickleValue], nodes: &Nodes, slot: usize) -> Option<StackId> {
    match nodes.resolve(*memo.get(slot)?).kind() {
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
