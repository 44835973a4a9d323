//! The fast path: whole event dictionaries, straight from the bytes into the columns.
//!
//! Nearly all of a snapshot is one dictionary shape, repeated: keys and most values are references to the memo,
//! the rest are integers. This decoder knows the few opcodes that such a dictionary is made of, and expects the
//! keys in the order and spelling of the event before. Whatever else it meets (a first occurrence of a name,
//! a frame boundary, a key that is new in a later torch), it leaves the dictionary untouched for the machine,
//! which knows everything.

use super::machine::Machine;
use super::nodes::Nodes;
use super::value::{Kind, Value};
use crate::builder::Builder;
use crate::stacks::{FrameId, StackId};
use crate::tables::{Context, PoolId};
use crate::text::StrId;
use crate::words;
use std::io::Read;

/// What the decoder remembers from one event to the next.
#[derive(Default)]
pub(super) struct Habits {
    /// How each key was written last time.
    keys: [Key; KEYS.len()],
    /// Scratch for the frames of a new stack.
    frames: Vec<FrameId>,
}

/// The keys of an event, in the order in which every torch since 2.0 writes those that it has; the last two
/// may change places.
const KEYS: [StrId; 10] = [
    words::ACTION,
    words::ADDR,
    words::DEVICE_FREE,
    words::SIZE,
    words::STREAM,
    words::TIME_US,
    words::COMPILE_CONTEXT,
    words::USER_METADATA,
    words::FRAMES,
    words::POOL_ID,
];

/// A key as it stands in the file: a reference to the memo, two or five bytes long.
#[derive(Clone, Copy, Default)]
struct Key {
    bits: u64,
    mask: u64,
    length: usize,
}

impl<R: Read> Machine<R> {
    /// Takes as many events as stand at the current position, if any.
    #[inline]
    pub(super) fn take_events(&mut self) {
        let mut used = 0;
        while let [b'}', bytes @ ..] = &self.window.rest()[used..] {
            let known = self.memo.len();
            let value = Value::new(Kind::Event(self.builder.events.len() as u32));
            let decoder = Decoder {
                bytes,
                position: 0,
                memo: &mut self.memo,
                nodes: &self.nodes,
                builder: &mut self.builder,
                habits: &mut self.habits,
            };
            match decoder.event(value) {
                Some(length) => used += 1 + length,
                None => {
                    self.memo.truncate(known);
                    break;
                }
            }
            self.stack.push(value);
        }
        self.window.advance(used);
    }
}

struct Decoder<'a> {
    bytes: &'a [u8],
    position: usize,
    memo: &'a mut Vec<Value>,
    nodes: &'a Nodes,
    builder: &'a mut Builder,
    habits: &'a mut Habits,
}

impl Decoder<'_> {
    /// Decodes the event after `}` into a new row and says how long it was; `None` leaves it to the machine
    /// (the caller takes back what was memoized).
    #[inline]
    fn event(mut self, value: Value) -> Option<usize> {
        self.memoize(value)?;
        if self.byte()? != b'(' || !self.key::<0>()? {
            return None;
        }
        let action = self.text()?;
        let addr = if self.key::<1>()? {
            self.int()? as u64
        } else if self.key::<2>()? {
            u64::try_from(self.int()?).ok()?
        } else {
            return None;
        };
        if !self.key::<3>()? {
            return None;
        }
        let size = u64::try_from(self.int()?).ok()?;
        let mut context = Context::default();
        if self.key::<4>()? {
            context.stream = self.int()? as u64;
        }
        let time_us = if self.key::<5>()? { Some(self.int()?) } else { None };
        if self.key::<6>()? {
            context.compile_context = self.text()?;
        }
        if self.key::<7>()? {
            self.builder.shape.user_metadata = true;
            context.user_metadata = self.text()?;
        }
        let mut stack = StackId::EMPTY;
        while self.peek()? != b'u' {
            if self.key::<8>()? {
                stack = self.stack()?;
            } else if self.key::<9>()? {
                context.pool = Some(self.pool()?);
            } else {
                return None;
            }
        }
        self.builder.complete_event(action, addr, size, time_us, stack, context);
        Some(self.position + 1)
    }

    /// Whether the next key is `KEYS[PLACE]`; if so, it is consumed.
    #[inline(always)]
    fn key<const PLACE: usize>(&mut self) -> Option<bool> {
        let usual = &mut self.habits.keys[PLACE];
        let next = u64::from_le_bytes(*self.bytes.get(self.position..)?.first_chunk()?);
        if next & usual.mask == usual.bits && usual.length > 0 {
            self.position += usual.length;
            return Some(true);
        }
        self.new_key(PLACE, next)
    }

    /// A key that is written in another way than last time, or another key.
    #[inline(never)]
    fn new_key(&mut self, place: usize, next: u64) -> Option<bool> {
        let (slot, length) = match next as u8 {
            b'h' => ((next >> 8) as u8 as usize, 2),
            b'j' => ((next >> 8) as u32 as usize, 5),
            b'u' => return Some(false),
            _ => return None,
        };
        if self.memo.get(slot)?.kind() != Kind::Str(KEYS[place]) {
            return Some(false);
        }
        let mask = (1 << (8 * length)) - 1;
        self.habits.keys[place] = Key { bits: next & mask, mask, length };
        self.position += length;
        Some(true)
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.position += 1;
        Some(byte)
    }

    /// The next eight bytes as a number, without consuming them.
    #[inline]
    fn word(&self) -> Option<u64> {
        self.bytes.get(self.position..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// An integer of up to 64 bits.
    #[inline]
    fn int(&mut self) -> Option<i64> {
        let word = self.word()?;
        let (value, length) = match word as u8 {
            b'K' => (i64::from((word >> 8) as u8), 2),
            b'M' => (i64::from((word >> 8) as u16), 3),
            b'J' => (i64::from((word >> 8) as i32), 5),
            0x8a => {
                self.position += 2;
                let length = usize::from((word >> 8) as u8);
                if !(1..=8).contains(&length) {
                    return None;
                }
                // Eight bytes at once; then what lies beyond the number is shifted out.
                let beyond = 64 - 8 * length as u32;
                ((self.word()? as i64) << beyond >> beyond, length)
            }
            _ => return None,
        };
        self.position += length;
        Some(value)
    }

    /// The value that a reference to the memo stands for.
    #[inline]
    fn recall(&mut self) -> Option<Value> {
        let (slot, length) = match self.peek()? {
            b'h' => (usize::from(*self.bytes.get(self.position + 1)?), 2),
            b'j' => {
                let slot = self.bytes.get(self.position + 1..)?.first_chunk()?;
                (u32::from_le_bytes(*slot) as usize, 5)
            }
            _ => return None,
        };
        self.position += length;
        let value = self.memo.get_mut(slot)?;
        if let Kind::Dict(_) | Kind::List(_) = value.kind() {
            // Memoized when it was new and empty: from now on the slot says what has become of it.
            *value = self.nodes.resolve(*value);
        }
        Some(*value)
    }

    /// The optional memo instruction after a new value: MEMOIZE, or BINPUT with the next free number.
    #[inline]
    fn memoize(&mut self, value: Value) -> Option<()> {
        let (slot, length) = match self.peek()? {
            0x94 => (self.memo.len(), 1),
            b'q' => (usize::from(*self.bytes.get(self.position + 1)?), 2),
            b'r' => {
                let slot = self.bytes.get(self.position + 1..)?.first_chunk()?;
                (u32::from_le_bytes(*slot) as usize, 5)
            }
            _ => return Some(()),
        };
        if slot != self.memo.len() {
            return None;
        }
        self.position += length;
        self.memo.push(value);
        Some(())
    }

    #[inline]
    fn text(&mut self) -> Option<StrId> {
        // That no compiled region is active is spelled out in every event.
        const NOT_COMPILED: u64 = u64::from_le_bytes(*b"\x8c\x03N/A\0\0\0");
        let word = self.word()?;
        if word & 0xff_ffff_ffff == NOT_COMPILED {
            self.position += 5;
            self.memoize(Value::new(Kind::Str(words::NOT_COMPILED)))?;
            return Some(words::NOT_COMPILED);
        }
        let length = match word as u8 {
            0x8c => {
                self.position += 2;
                usize::from((word >> 8) as u8)
            }
            b'X' => {
                self.position += 5;
                (word >> 8) as u32 as usize
            }
            _ => match self.recall()?.kind() {
                Kind::Str(text) => return Some(text),
                _ => return None,
            },
        };
        let bytes = self.bytes.get(self.position..)?.get(..length)?;
        let text = self.builder.strings.intern(std::str::from_utf8(bytes).ok()?);
        self.position += length;
        self.memoize(Value::new(Kind::Str(text)))?;
        Some(text)
    }

    #[inline]
    fn stack(&mut self) -> Option<StackId> {
        if self.peek()? != b']' {
            return match self.recall()?.kind() {
                Kind::Stack(stack) => Some(stack),
                _ => None,
            };
        }
        self.position += 1;
        let slot = self.memo.len();
        self.memoize(Value::new(Kind::Stack(StackId::EMPTY)))?;
        match self.peek()? {
            b'(' => {
                self.position += 1;
                self.new_stack(slot)
            }
            // The next key, or the end of the event: the list stays empty.
            b'h' | b'j' | b'u' => Some(StackId::EMPTY),
            _ => None,
        }
    }

    /// A list of known frames.
    fn new_stack(&mut self, slot: usize) -> Option<StackId> {
        self.habits.frames.clear();
        while self.peek()? != b'e' {
            match self.recall()?.kind() {
                Kind::Frame(frame) => self.habits.frames.push(frame),
                _ => return None,
            }
        }
        self.position += 1;
        let stack = self.builder.stacks.intern(&self.habits.frames);
        if let Some(memoized) = self.memo.get_mut(slot) {
            *memoized = Value::new(Kind::Stack(stack));
        }
        Some(stack)
    }

    fn pool(&mut self) -> Option<PoolId> {
        if self.peek()? != b'K' {
            return match self.recall()?.kind() {
                Kind::Pair(a, b) => Some(PoolId(u64::from(a), u64::from(b))),
                _ => None,
            };
        }
        let [_, a, second, b, tuple] = *self.bytes.get(self.position..)?.first_chunk()?;
        if (second, tuple) != (b'K', 0x86) {
            return None;
        }
        self.position += 5;
        self.memoize(Value::inline_pair(i64::from(a), i64::from(b))?)?;
        Some(PoolId(u64::from(a), u64::from(b)))
    }
}
