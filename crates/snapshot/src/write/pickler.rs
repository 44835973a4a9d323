//! Opcodes of pickle protocol 4 that plain data needs.

use std::io::{self, Write};

/// Items appended to a list at once; the same as in Python's pickler.
pub(super) const BATCH_ITEMS: usize = 1000;

/// Bytes buffered before they are written.
const CHUNK_BYTES: usize = 64 << 10;

/// Pickle being written.
pub(super) struct Pickler<'a, W> {
    out: &'a mut W,
    buffer: Vec<u8>,
    /// Number of memo entries; a new entry gets the next number.
    memoized: u32,
}

impl<'a, W: Write> Pickler<'a, W> {
    pub(super) fn new(out: &'a mut W) -> Pickler<'a, W> {
        let mut buffer = Vec::with_capacity(2 * CHUNK_BYTES);
        buffer.extend_from_slice(b"\x80\x04");
        Pickler { out, buffer, memoized: 0 }
    }

    /// Writes the end of the pickle and flushes it.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.buffer.push(b'.');
        self.out.write_all(&self.buffer)?;
        self.out.flush()
    }

    /// Writes out the buffer if it is full.
    pub(super) fn spill(&mut self) -> io::Result<()> {
        if self.buffer.len() >= CHUNK_BYTES {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Memoizes the value that was just written, and returns its memo slot.
    pub(super) fn memoize(&mut self) -> u32 {
        self.buffer.push(0x94);
        self.memoized += 1;
        self.memoized - 1
    }

    /// Writes a reference to a memo slot.
    pub(super) fn recall(&mut self, slot: u32) {
        match u8::try_from(slot) {
            Ok(slot) => self.buffer.extend_from_slice(&[b'h', slot]),
            Err(_) => self.number(b'j', slot.to_le_bytes()),
        }
    }

    pub(super) fn none(&mut self) {
        self.buffer.push(b'N');
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.buffer.push(if value { 0x88 } else { 0x89 });
    }

    pub(super) fn int(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.buffer.extend_from_slice(&[b'K', value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.number(b'M', value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.number(b'J', value.to_le_bytes());
        } else {
            let sign_bits = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
            // One sign bit has to stay.
            let length = (64 - sign_bits) as usize / 8 + 1;
            self.long(&value.to_le_bytes()[..length]);
        }
    }

    pub(super) fn unsigned(&mut self, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => self.long(&u128::from(value).to_le_bytes()[..9]),
        }
    }

    pub(super) fn float(&mut self, value: f64) {
        self.number(b'G', value.to_be_bytes());
    }

    /// Writes an inline string.
    pub(super) fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(length) => self.buffer.extend_from_slice(&[0x8c, length]),
            // The text of a whole snapshot is less than 4 GiB, see `Strings`.
            Err(_) => self.number(b'X', (text.len() as u32).to_le_bytes()),
        }
        self.buffer.extend_from_slice(text.as_bytes());
    }

    /// Writes a tuple of two numbers.
    pub(super) fn pair(&mut self, first: u64, second: u64) {
        self.unsigned(first);
        self.unsigned(second);
        self.buffer.push(0x86);
    }

    pub(super) fn open_dict(&mut self) {
        self.buffer.extend_from_slice(b"}(");
    }

    /// Opens a memoized dictionary and returns its memo slot.
    pub(super) fn open_memoized_dict(&mut self) -> u32 {
        self.buffer.push(b'}');
        let slot = self.memoize();
        self.buffer.push(b'(');
        slot
    }

    pub(super) fn close_dict(&mut self) {
        self.buffer.push(b'u');
    }

    pub(super) fn empty_list(&mut self) {
        self.buffer.push(b']');
    }

    /// Starts a batch of items for the list that was written last.
    pub(super) fn open_batch(&mut self) {
        self.buffer.push(b'(');
    }

    pub(super) fn close_batch(&mut self) {
        self.buffer.push(b'e');
    }

    /// Position for [`Pickler::forget`]; nothing may be memoized or spilled in between.
    pub(super) fn position(&self) -> usize {
        self.buffer.len()
    }

    /// Removes everything written since `position`.
    pub(super) fn forget(&mut self, position: usize) {
        self.buffer.truncate(position);
    }

    fn long(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(&[0x8a, bytes.len() as u8]);
        self.buffer.extend_from_slice(bytes);
    }

    fn number<const N: usize>(&mut self, opcode: u8, bytes: [u8; N]) {
        self.buffer.push(opcode);
        self.buffer.extend_from_slice(&bytes);
    }
}

/// Memo slots of the rows of a table.
pub(super) struct Slots(Vec<u32>);

impl Slots {
    const NONE: u32 = u32::MAX;

    pub(super) fn new(rows: usize) -> Slots {
        Slots(vec![Slots::NONE; rows])
    }

    pub(super) fn get(&self, row: u32) -> Option<u32> {
        Some(self.0[row as usize]).filter(|&slot| slot != Slots::NONE)
    }

    pub(super) fn set(&mut self, row: u32, slot: u32) {
        self.0[row as usize] = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_the_form_that_python_gives_them() {
        for (value, bytes) in [
            (0, &b"K\x00"[..]),
            (255, b"K\xff"),
            (256, b"M\x00\x01"),
            (65536, b"J\x00\x00\x01\x00"),
            (-1, b"J\xff\xff\xff\xff"),
            (1 << 31, b"\x8a\x05\x00\x00\x00\x80\x00"),
            (-(1 << 31) - 1, b"\x8a\x05\xff\xff\xff\x7f\xff"),
            ((1 << 39) - 1, b"\x8a\x05\xff\xff\xff\xff\x7f"),
            (-(1 << 39), b"\x8a\x05\x00\x00\x00\x00\x80"),
            (i64::MAX, b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
            (i64::MIN, b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"),
        ] {
            let mut out = Vec::new();
            let mut pickle = Pickler::new(&mut out);
            pickle.int(value);
            pickle.finish().expect("a vector takes everything");
            assert_eq!(out[2..out.len() - 1], *bytes, "{value}");
        }
    }
}
