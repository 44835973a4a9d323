//! The fast path: whole event dictionaries, straight from the bytes into the columns.
//!
//! Nearly all of a snapshot is one dictionary shape, repeated. [`Template`] takes an event that is written just
//! like the one before it; [`Decoder`] one whose values are written in another way. Whatever else comes (a first
//! occurrence of a name, a key that is new in a later torch) is left to the machine, which knows everything.

use super::decoder::{Decoder, FRAME, FRAME_HEADER};
use super::machine::Machine;
use super::nodes::Nodes;
use super::spellings::Spellings;
use super::template::Template;
use super::value::{Kind, Value};
use crate::builder::Builder;
use crate::error::Error;
use crate::stacks::{FrameId, StackId};
use crate::tables::Row;
use std::io::Read;

/// How the file writes events: what is worth remembering from one to the next.
#[derive(Default)]
pub(super) struct Habits {
    pub(super) template: Option<Template>,
    pub(super) spellings: Spellings,
    /// Scratch for the frames of a new stack.
    pub(super) frames: Vec<FrameId>,
}

/// The parts of the machine that events go into.
pub(super) struct Tables<'a> {
    pub(super) memo: &'a mut Vec<Value>,
    pub(super) nodes: &'a Nodes,
    pub(super) builder: &'a mut Builder,
    pub(super) habits: &'a mut Habits,
}

impl<R: Read> Machine<R> {
    /// Takes as many events as stand at the current position, if any.
    #[inline]
    pub(super) fn take_events(&mut self) -> Result<(), Error> {
        while self.window.rest().first() == Some(&b'}') {
            let first = self.builder.events.len() as u32;
            let mut tables = Tables {
                memo: &mut self.memo,
                nodes: &self.nodes,
                builder: &mut self.builder,
                habits: &mut self.habits,
            };
            let length = tables.take_run(self.window.rest());
            self.window.advance(length);
            self.push_events(first);
            // The writer closes one batch of a list and opens the next: not worth a way of its own.
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

    /// Puts the events since `first` onto the stack.
    fn push_events(&mut self, first: u32) {
        self.stack.extend((first..self.builder.events.len() as u32).map(|row| Value::new(Kind::Event(row))));
    }

    /// The opcodes `e(`: what stands on the mark goes into the list below it, and a new mark is set.
    fn close_batch(&mut self) -> Result<(), Error> {
        if let Some(&mark) = self.marks.last()
            && let Some(below) = mark.checked_sub(1)
            && let (Some(list), Some(first)) = (self.stack.get(below), self.stack.get(mark))
            && let (Kind::List(list), Kind::Event(first)) = (list.kind(), first.kind())
            && self.stack[mark..].iter().zip(first..).all(|(value, row)| value.kind() == Kind::Event(row))
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
    /// Takes events from the start of `bytes` while they have the usual shape; says how far it came.
    fn take_run(&mut self, bytes: &[u8]) -> usize {
        let mut length = 0;
        loop {
            match bytes[length..] {
                [b'}', ..] => {}
                [FRAME, _, _, _, _, _, _, _, _, b'}', ..] => {
                    length += FRAME_HEADER;
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

    /// Takes the event at the start of `bytes` if it is written like the one before; says how long it was.
    #[inline]
    fn repeat(&mut self, bytes: &[u8]) -> Option<usize> {
        let template = self.habits.template.as_ref()?;
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
                        self.habits.spellings.find(&list[..length])?
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        if *bytes.get(position)? != b'u' {
            return None;
        }
        self.memo.push(Value::new(Kind::Event(self.builder.events.len() as u32)));
        self.memo.extend_from_slice(template.memoized());
        if new_list {
            self.memo.push(Value::new(Kind::Stack(stack)));
        }
        self.builder.events.push(Row {
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

/// The stack in a memo slot.
#[inline]
pub(super) fn recalled_stack(memo: &[Value], nodes: &Nodes, slot: usize) -> Option<StackId> {
    match nodes.resolve(*memo.get(slot)?).kind() {
        Kind::Stack(stack) => Some(stack),
        _ => None,
    }
}

/// Length of the references to the memo that `bytes` begins with, up to the end of their list.
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
