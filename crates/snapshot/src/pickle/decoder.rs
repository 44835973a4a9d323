//! Decoder for one event dictionary of the usual shape, with its values in any encoding.

use super::events::{EventTables, RunDecoder};
use super::template::{Places, Template};
use super::value::{PickleValue, ValueKind};
use crate::stacks::StackId;
use crate::tables::{Context, EventRow, PoolId, known_action};
use crate::text::StrId;
use crate::words;

/// Opcode of a frame. Protocol 4 divides the stream into frames of 64 KiB, and a frame header may appear
/// between any two opcodes.
pub(super) const FRAME_OPCODE: u8 = 0x95;
/// Length of a frame header, in bytes.
pub(super) const FRAME_HEADER_BYTES: usize = 9;

/// Keys of an event, in the order in which every torch since 2.2 writes them.
const KEYS: [StrId; 10] = [
    words::ACTION,
    words::ADDR,
    words::DEVICE_FREE,
    words::SIZE,
    words::STREAM,
    words::TIME_US,
    words::COMPILE_CONTEXT,
    words::USER_METADATA,
    words::POOL_ID,
    words::FRAMES,
];

/// Decoder for the event at the start of `bytes`.
pub(super) struct Decoder<'a, 'b, 'c, T> {
    bytes: &'a [u8],
    position: usize,
    /// Length in bytes of the last integer in the long encoding.
    last_long: usize,
    /// Whether a frame header appeared within the event.
    is_interrupted: bool,
    run: &'b mut RunDecoder<'c, T>,
}

impl<'a, 'b, 'c, T: EventTables> Decoder<'a, 'b, 'c, T> {
    /// Creates a decoder for an event that begins with `}`.
    pub(super) fn new(bytes: &'a [u8], run: &'b mut RunDecoder<'c, T>) -> Decoder<'a, 'b, 'c, T> {
        Decoder { bytes, position: 1, last_long: 0, is_interrupted: false, run }
    }

    /// Decodes the event into a new row, updates the template, and returns its length in bytes; `None`
    /// leaves the event to the machine.
    pub(super) fn event(mut self) -> Option<usize> {
        let mut places = Places::default();
        let row = self.run.tables.next_row();
        self.memoize(PickleValue::new(ValueKind::Event(row)))?;
        while self.byte()? != b'(' {
            self.position -= 1;
            self.skip_frame()?;
        }
        if !self.key(0)? {
            return None;
        }
        places.action.0 = self.position;
        let action = known_action(self.text()?)?;
        places.action.1 = self.position;
        let has_addr = self.key(1)?;
        let addr = if has_addr {
            let addr = self.int()? as u64;
            places.addr = self.long_place();
            addr
        } else if self.key(2)? {
            u64::try_from(self.int()?).ok()?
        } else {
            return None;
        };
        if !self.key(3)? {
            return None;
        }
        places.size.0 = self.position;
        let size = u64::try_from(self.int()?).ok()?;
        places.size.1 = self.position;
        let mut context = Context::default();
        if self.key(4)? {
            context.stream = self.int()? as u64;
        }
        if !self.key(5)? {
            return None;
        }
        let time_us = self.int()?;
        places.time = self.long_place();
        let memoized = self.run.tables.new_values().len();
        if self.key(6)? {
            context.compile_context = self.text()?;
        }
        if self.key(7)? {
            context.has_user_metadata = true;
            context.user_metadata = self.text()?;
        }
        if self.key(8)? {
            context.pool = Some(self.pool()?);
        }
        let memoized = memoized..self.run.tables.new_values().len();
        let has_stack = self.key(9)?;
        places.stack = self.position;
        let stack = if has_stack { self.stack()? } else { StackId::EMPTY };
        if self.peek()? == FRAME_OPCODE {
            self.skip_frame()?;
        }
        if self.byte()? != b'u' {
            return None;
        }
        let context = self.run.tables.context(context)?;
        self.run.tables.push_event(EventRow { action, addr, size, time_us, stack, context });
        // Memo instructions with a number (protocols 2 and 3) differ in every event, so they have no
        // template. Frame headers are rare and appear anywhere: the next event is like the one before.
        if has_addr && has_stack && !self.is_interrupted && self.bytes.get(1) == Some(&0x94) {
            let memoized = &self.run.tables.new_values()[memoized];
            let before = self.run.cache.template.take();
            self.run.cache.template = Template::new(self.bytes, &places, action, memoized, context, before);
        }
        Some(self.position)
    }

    /// Byte range of the integer that was just read, if it was a long one.
    fn long_place(&self) -> (usize, usize) {
        (self.position - self.last_long, self.position)
    }

    /// Consumes the next key if it is `KEYS[place]`, and returns whether it was.
    fn key(&mut self, place: usize) -> Option<bool> {
        if self.peek()? == b'u' {
            return Some(false);
        }
        let before = self.position;
        let slot = self.reference()?;
        let found = self.run.tables.memoized(slot)?.kind() == ValueKind::Str(KEYS[place]);
        if !found {
            self.position = before;
        }
        Some(found)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.position += 1;
        Some(byte)
    }

    /// Returns the next eight bytes as a number, without consuming them.
    fn word(&self) -> Option<u64> {
        self.bytes.get(self.position..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Skips a frame header, which this reader does not need. Anything else is left to the machine.
    #[cold]
    fn skip_frame(&mut self) -> Option<()> {
        if self.peek()? != FRAME_OPCODE {
            return None;
        }
        self.position += FRAME_HEADER_BYTES;
        self.is_interrupted = true;
        Some(())
    }

    /// Reads an integer of up to 64 bits.
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
                self.last_long = length;
                // Reads eight bytes at once, then shifts out the bytes behind the number.
                let beyond = 64 - 8 * length as u32;
                ((self.word()? as i64) << beyond >> beyond, length)
            }
            _ => {
                self.skip_frame()?;
                return self.int();
            }
        };
        self.position += length;
        Some(value)
    }

    /// Reads a reference and returns its memo slot.
    fn reference(&mut self) -> Option<usize> {
        let word = self.word()?;
        let (slot, length) = match word as u8 {
            b'h' => (usize::from((word >> 8) as u8), 2),
            b'j' => ((word >> 8) as u32 as usize, 5),
            _ => {
                self.skip_frame()?;
                return self.reference();
            }
        };
        self.position += length;
        Some(slot)
    }

    /// Reads a reference and returns the value in the memo.
    fn recall(&mut self) -> Option<ValueKind> {
        let slot = self.reference()?;
        let value = self.run.tables.memoized(slot)?;
        Some(self.run.tables.nodes().resolve(value).kind())
    }

    /// Consumes the optional memo instruction after a new value: MEMOIZE, or BINPUT with the next free
    /// number.
    fn memoize(&mut self, value: PickleValue) -> Option<()> {
        let next = || self.run.tables.next_slot();
        let length = match self.peek()? {
            0x94 => 1,
            b'q' if Some(usize::from((self.word()? >> 8) as u8)) == next() => 2,
            b'r' if Some((self.word()? >> 8) as u32 as usize) == next() => 5,
            b'q' | b'r' => return None,
            FRAME_OPCODE => {
                self.skip_frame()?;
                return self.memoize(value);
            }
            _ => return Some(()),
        };
        self.position += length;
        self.run.tables.new_values().push(value);
        Some(())
    }

    fn text(&mut self) -> Option<StrId> {
        let word = self.word()?;
        match word as u8 {
            b'h' | b'j' => match self.recall()? {
                ValueKind::Str(text) => Some(text),
                _ => None,
            },
            0x8c => {
                self.position += 2;
                self.inline_text(usize::from((word >> 8) as u8))
            }
            b'X' => {
                self.position += 5;
                self.inline_text((word >> 8) as u32 as usize)
            }
            _ => {
                self.skip_frame()?;
                self.text()
            }
        }
    }

    /// Reads an inline string.
    fn inline_text(&mut self, length: usize) -> Option<StrId> {
        let bytes = self.bytes.get(self.position..)?.get(..length)?;
        let text = self.run.tables.text(std::str::from_utf8(bytes).ok()?)?;
        self.position += length;
        self.memoize(PickleValue::new(ValueKind::Str(text)))?;
        Some(text)
    }

    fn stack(&mut self) -> Option<StackId> {
        match self.peek()? {
            b']' => self.position += 1,
            b'h' | b'j' => {
                let slot = self.reference()?;
                return self.run.tables.recalled_stack(slot);
            }
            _ => {
                self.skip_frame()?;
                return self.stack();
            }
        }
        let list = self.run.tables.new_values().len();
        self.memoize(PickleValue::new(ValueKind::Stack(StackId::EMPTY)))?;
        if self.peek()? == FRAME_OPCODE {
            self.skip_frame()?;
        }
        match self.peek()? {
            b'(' => {
                self.position += 1;
                self.new_stack(list)
            }
            // The end of the event: the list stays empty.
            b'u' => Some(StackId::EMPTY),
            _ => None,
        }
    }

    /// Reads a list of known frames. The same call path is encoded with the same bytes each time, so the
    /// frames are looked up only once.
    fn new_stack(&mut self, list: usize) -> Option<StackId> {
        let from = self.position;
        loop {
            match self.peek()? {
                b'h' => self.position += 2,
                b'j' => self.position += 5,
                b'e' => break,
                _ => self.skip_frame()?,
            }
        }
        let encoding = &self.bytes[from..self.position];
        let stack = match self.run.cache.stack_cache.find(encoding) {
            Some(stack) => stack,
            None => {
                let stack = self.encoded_stack(from)?;
                if !self.is_interrupted {
                    self.run.cache.stack_cache.add(encoding, stack);
                }
                stack
            }
        };
        self.position += 1;
        if let Some(memoized) = self.run.tables.new_values().get_mut(list) {
            *memoized = PickleValue::new(ValueKind::Stack(stack));
        }
        Some(stack)
    }

    /// Returns the stack encoded from `from` to the current position.
    fn encoded_stack(&mut self, from: usize) -> Option<StackId> {
        let to = std::mem::replace(&mut self.position, from);
        self.run.cache.frames.clear();
        while self.position < to {
            match self.recall()? {
                ValueKind::Frame(frame) => self.run.cache.frames.push(frame),
                _ => return None,
            }
        }
        self.run.tables.stack(&self.run.cache.frames)
    }

    fn pool(&mut self) -> Option<PoolId> {
        if self.peek()? != b'K' {
            return match self.recall()? {
                ValueKind::Pair(a, b) => Some(PoolId(u64::from(a), u64::from(b))),
                _ => None,
            };
        }
        let [_, a, second, b, tuple] = *self.bytes.get(self.position..)?.first_chunk()?;
        if (second, tuple) != (b'K', 0x86) {
            return None;
        }
        self.position += 5;
        self.memoize(PickleValue::inline_pair(i64::from(a), i64::from(b))?)?;
        Some(PoolId(u64::from(a), u64::from(b)))
    }
}
