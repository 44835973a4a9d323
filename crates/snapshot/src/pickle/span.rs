//! The fast path: whole event dictionaries, straight from the bytes into columns.
//!
//! Nearly all of a snapshot is one dictionary shape, repeated. [`Template`] takes an event that is written just
//! like the one before it; [`Decoder`] one whose values are written in another way. Whatever else comes (a first
//! occurrence of a name, a key that is new in a later torch) ends the span before that event and is left to the
//! machine, which knows everything.
//!
//! A span only reads what was known before it began, and numbers its memo from its own start. So several
//! spans of one window can be decoded at the same time; [`super::events`] puts them together.

use super::decoder::{Decoder, FRAME, FRAME_HEADER, Keys};
use super::nodes::Nodes;
use super::spellings::Spellings;
use super::template::Template;
use super::value::{Kind, Value};
use crate::stacks::{FrameId, StackId, Stacks};
use crate::tables::{ContextTable, Row};
use crate::text::Strings;

/// What was known before the span: the machine's tables.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) memo: &'a [Value],
    pub(super) nodes: &'a Nodes,
    pub(super) strings: &'a Strings,
}

/// The events of a stretch of bytes, in numbers of their own.
#[derive(Default)]
pub(super) struct Span {
    pub(super) rows: Vec<Row>,
    /// What the span memoized, in order. Events and stacks are numbered within the span.
    pub(super) memo: Vec<Value>,
    /// Rows whose stack is what a memo slot holds.
    pub(super) pending: Vec<(u32, u32)>,
    /// Numbers of rows after which the writer closed one batch of a list and opened the next.
    pub(super) batches: Vec<u32>,
    /// How many bytes were decoded.
    pub(super) length: usize,
    pub(super) habits: Habits,
}

/// What stays from one window to the next: the span's tables, and how the file writes things.
#[derive(Default)]
pub(super) struct Habits {
    pub(super) stacks: Stacks,
    pub(super) contexts: ContextTable,
    pub(super) keys: Keys,
    pub(super) template: Option<Template>,
    pub(super) spellings: Spellings,
    pub(super) frames: Vec<FrameId>,
}

impl Span {
    /// The bytes that an event begins with, where each new value is memoized without a number (protocol 4
    /// and later).
    pub(super) fn event_start(&self) -> Option<Vec<u8>> {
        let action = self.habits.keys.action()?;
        Some([b"}\x94(", action.as_slice()].concat())
    }

    /// Bytes of memory that the span keeps from window to window.
    pub(super) fn footprint(&self) -> usize {
        self.habits.stacks.footprint() + self.habits.contexts.footprint()
    }

    /// Forgets what memo slots stood for: one got another value.
    pub(super) fn forget(&mut self) {
        self.habits.keys = Keys::default();
        self.habits.template = None;
        self.habits.spellings = Spellings::default();
    }

    /// Decodes events from the start of `bytes` until one begins at or after `end`, or something else comes.
    pub(super) fn decode(&mut self, bytes: &[u8], end: usize, known: Known<'_>) {
        self.rows.clear();
        self.memo.clear();
        self.pending.clear();
        self.batches.clear();
        self.length = 0;
        while self.length < end {
            match bytes[self.length..] {
                [b'}', ..] => {}
                [b'e', b'(', b'}', ..] => {
                    self.batches.push(self.rows.len() as u32);
                    self.length += 2;
                    continue;
                }
                [FRAME, _, _, _, _, _, _, _, _, b'}', ..] => {
                    self.length += FRAME_HEADER;
                    continue;
                }
                _ => break,
            }
            if let Some(length) = self.repeat(&bytes[self.length..], known) {
                self.length += length;
                continue;
            }
            let (memoized, pending) = (self.memo.len(), self.pending.len());
            match Decoder::new(bytes, self.length, self, known).event() {
                Some(position) => self.length = position,
                None => {
                    self.memo.truncate(memoized);
                    self.pending.truncate(pending);
                    break;
                }
            }
        }
    }

    /// Takes the event at the start of `bytes` if it is written like the one before; says how long it was.
    #[inline]
    fn repeat(&mut self, bytes: &[u8], known: Known<'_>) -> Option<usize> {
        let row = self.rows.len() as u32;
        let template = self.habits.template.as_ref()?;
        let event = template.decode(bytes)?;
        let mut position = event.length;
        let (stack, list) = match bytes.get(position)? {
            b'h' => {
                self.pending.push((row, u32::from(*bytes.get(position + 1)?)));
                position += 2;
                (StackId::EMPTY, false)
            }
            b'j' => {
                let slot = bytes.get(position + 1..)?.first_chunk()?;
                self.pending.push((row, u32::from_le_bytes(*slot)));
                position += 5;
                (StackId::EMPTY, false)
            }
            b']' => match bytes.get(position + 1..position + 3)? {
                [0x94, b'u'] => {
                    position += 2;
                    (StackId::EMPTY, true)
                }
                [0x94, b'('] => {
                    let list = bytes.get(position + 3..)?;
                    let length = references(list)?;
                    position += 3 + length + 1;
                    (self.habits.spellings.find(&list[..length])?, true)
                }
                _ => return None,
            },
            _ => return None,
        };
        if *bytes.get(position)? != b'u' || !self.refers_to_a_stack(row, known) {
            self.pending.pop_if(|(pending, _)| *pending == row);
            return None;
        }
        self.memo.push(Value::new(Kind::Event(row)));
        self.memo.extend_from_slice(template.memoized());
        if list {
            self.memo.push(Value::new(Kind::Stack(stack)));
        }
        self.rows.push(Row {
            action: event.action,
            addr: event.addr,
            size: event.size,
            time_us: event.time_us,
            stack,
            context: template.context(),
        });
        Some(position + 1)
    }

    /// Whether the memo slot that `row` waits for can be a stack: one from before the span must be.
    #[inline]
    fn refers_to_a_stack(&self, row: u32, known: Known<'_>) -> bool {
        match self.pending.last() {
            Some(&(pending, slot)) if pending == row => match known.memo.get(slot as usize) {
                Some(value) => matches!(known.nodes.resolve(*value).kind(), Kind::Stack(_)),
                None => true,
            },
            _ => true,
        }
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
