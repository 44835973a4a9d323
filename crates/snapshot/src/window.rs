//! A sliding view of a byte stream: decoders see a slice, the file never has to fit in memory.

use crate::error::Error;
use std::io::Read;

/// Large enough that refilling costs nothing, small enough to stay in the second-level cache.
const CHUNK: usize = 256 << 10;

/// The part of a stream that has been read and not yet consumed.
pub(crate) struct Window<R> {
    reader: R,
    buffer: Vec<u8>,
    position: usize,
    end: usize,
    consumed_before: u64,
    at_end: bool,
}

impl<R: Read> Window<R> {
    pub(crate) fn new(reader: R) -> Window<R> {
        Window { reader, buffer: vec![0; CHUNK], position: 0, end: 0, consumed_before: 0, at_end: false }
    }

    /// The bytes at hand, from the current position on.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer[self.position..self.end]
    }

    /// Position in the stream.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.consumed_before + self.position as u64
    }

    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        self.position += count;
        debug_assert!(self.position <= self.end);
    }

    /// Makes `need` bytes available if the stream has that many, and says whether it does. Memory follows what
    /// arrives, not what was asked for: a claimed length of an exabyte costs nothing.
    pub(crate) fn fill(&mut self, need: usize) -> Result<bool, Error> {
        if self.end - self.position >= need {
            return Ok(true);
        }
        self.buffer.copy_within(self.position..self.end, 0);
        self.consumed_before += self.position as u64;
        self.end -= self.position;
        self.position = 0;
        while self.end < need && !self.at_end {
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() + self.buffer.len() / 2, 0);
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(error)),
            }
        }
        Ok(self.end >= need)
    }

    /// Bytes of memory that the window holds beyond its fixed part.
    pub(crate) fn footprint(&self) -> usize {
        self.buffer.len() - CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte per call, as a slow pipe may.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let count = self.0.len().min(into.len()).min(1);
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn a_slow_stream_is_read_to_its_end_and_no_further() {
        let mut window = Window::new(Trickle(b"abcdef"));
        assert!(window.fill(4).expect("readable"));
        window.advance(3);
        assert_eq!((window.offset(), window.fill(3).expect("readable"), window.rest()), (3, true, &b"def"[..]));
        assert!(!window.fill(usize::MAX).expect("readable"));
        assert_eq!(window.rest(), b"def");
        assert_eq!(window.footprint(), 0);
    }
}
