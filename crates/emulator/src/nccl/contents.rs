//! Contents of a buffer to send to another process: its bytes, and which of them are known.
//!
//! A buffer may be partly known: PyTorch pads a pickled object with uninitialized memory.

use crate::memory::is_device;
use crate::values::{self, ByteValue};
use std::ops::Range;

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct BufferContents {
    /// Parts that have a value, in order.
    parts: Vec<(Range<usize>, ByteValue)>,
    /// All bytes, including those without a value; empty if no part has one.
    bytes: Vec<u8>,
}

/// Encoding of a [`ByteValue`].
const KNOWN: u8 = 1;
const MADE_UP: u8 = 2;

impl BufferContents {
    /// Current contents of a buffer.
    pub(super) unsafe fn of(at: u64, size: usize) -> BufferContents {
        let parts: Vec<(Range<usize>, ByteValue)> = if is_device(at) {
            values::parts(at, size as u64)
                .into_iter()
                .map(|(low, high, value)| ((low - at) as usize..(high - at) as usize, value))
                .collect()
        } else {
            vec![(0..size, ByteValue::Known)]
        };
        let bytes = match parts.is_empty() || size == 0 {
            true => Vec::new(),
            false => unsafe { std::slice::from_raw_parts(at as *const u8, size) }.to_vec(),
        };
        BufferContents { parts, bytes }
    }

    /// Bytes that a process created itself.
    pub(super) fn known(bytes: Vec<u8>) -> BufferContents {
        BufferContents { parts: vec![(0..bytes.len(), ByteValue::Known)], bytes }
    }

    pub(super) fn with_value(bytes: Vec<u8>, value: ByteValue) -> BufferContents {
        BufferContents { parts: vec![(0..bytes.len(), value)], bytes }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Contents of a part of the buffer.
    pub(super) fn slice(&self, range: Range<usize>) -> BufferContents {
        let Some(bytes) = self.bytes.get(range.clone()) else { return BufferContents::default() };
        let inside = |part: &Range<usize>| {
            part.start.max(range.start) - range.start..part.end.min(range.end).max(range.start) - range.start
        };
        let parts = self
            .parts
            .iter()
            .filter(|(part, _)| part.start < range.end && part.end > range.start)
            .map(|(part, value)| (inside(part), *value))
            .collect();
        BufferContents { parts, bytes: bytes.to_vec() }
    }

    /// The bytes if all of them have a value, and whether all are known or some made up.
    pub(super) fn whole(&self, size: usize) -> Option<(&[u8], ByteValue)> {
        let covered: usize = self.parts.iter().map(|(part, _)| part.len()).sum();
        let known = self.parts.iter().all(|(_, value)| *value == ByteValue::Known);
        (covered == size && self.bytes.len() == size)
            .then_some((self.bytes.as_slice(), if known { ByteValue::Known } else { ByteValue::MadeUp }))
    }

    /// Fills a buffer; bytes without a value here have none there.
    pub(super) unsafe fn put(&self, to: u64, size: usize) {
        if is_device(to) {
            values::forget(to, size as u64);
        }
        for (part, value) in &self.parts {
            let Some(bytes) = self.bytes.get(part.clone()).filter(|_| part.end <= size) else { continue };
            let at = to + part.start as u64;
            unsafe { std::ptr::copy(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            if is_device(to) {
                values::keep(at, bytes.len() as u64, *value);
            }
        }
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.extend((self.parts.len() as u64).to_le_bytes());
        for (part, value) in &self.parts {
            to.extend((part.start as u64).to_le_bytes());
            to.extend((part.end as u64).to_le_bytes());
            to.push(if *value == ByteValue::Known { KNOWN } else { MADE_UP });
        }
        to.extend(&self.bytes);
    }

    pub(super) fn decode(mut text: &[u8]) -> Option<BufferContents> {
        let mut parts = Vec::new();
        for _ in 0..number(&mut text)? {
            let (start, end) = (number(&mut text)? as usize, number(&mut text)? as usize);
            let (&state, rest) = text.split_first()?;
            text = rest;
            parts.push((start..end, if state == KNOWN { ByteValue::Known } else { ByteValue::MadeUp }));
        }
        Some(BufferContents { parts, bytes: text.to_vec() })
    }
}

/// Removes a number from the front.
pub(super) fn number(text: &mut &[u8]) -> Option<u64> {
    let (first, rest) = text.split_first_chunk()?;
    *text = rest;
    Some(u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partly_known() -> BufferContents {
        BufferContents {
            parts: vec![(0..3, ByteValue::Known), (5..8, ByteValue::MadeUp)],
            bytes: vec![1, 2, 3, 0, 0, 6, 7, 8],
        }
    }

    #[test]
    fn contents_survive_encoding() {
        let mut text = Vec::new();
        partly_known().encode(&mut text);
        assert_eq!(BufferContents::decode(&text), Some(partly_known()));
    }

    #[test]
    fn a_slice_keeps_known_parts() {
        let slice = partly_known().slice(2..6);
        assert_eq!(slice.parts, [(0..1, ByteValue::Known), (3..4, ByteValue::MadeUp)]);
        assert_eq!(slice.bytes, [3, 0, 0, 6]);
        assert_eq!(slice.whole(4), None);
        assert_eq!(partly_known().slice(5..8).whole(3), Some(([6, 7, 8].as_slice(), ByteValue::MadeUp)));
    }
}
