//! Readers for the arguments of opcodes.

use super::machine::Machine;
use crate::error::Error;
use std::io::Read;

/// Maximum length of a line of protocol 0, in bytes.
const MAX_LINE_BYTES: usize = 8 << 20;

impl<R: Read> Machine<R> {
    pub(super) fn truncated(&self) -> Error {
        Error::truncated(self.window.offset() + self.window.rest().len() as u64)
    }

    pub(super) fn malformed(&self, cause: impl Into<String>) -> Error {
        Error::malformed(self.window.offset(), cause)
    }

    /// Consumes `N` bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.need(N)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.window.rest()[..N]);
        self.window.advance(N);
        Ok(bytes)
    }

    /// Makes `count` bytes available or reports where the file ends.
    pub(super) fn need(&mut self, count: usize) -> Result<(), Error> {
        if self.window.fill(count)? { Ok(()) } else { Err(self.truncated()) }
    }

    pub(super) fn take_u32(&mut self) -> Result<u32, Error> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads a length of eight bytes; more than the address space is simply more than the file has.
    pub(super) fn take_len64(&mut self) -> Result<usize, Error> {
        let length = u64::from_le_bytes(self.take()?);
        usize::try_from(length).map_err(|_| self.truncated())
    }

    /// Consumes `count` bytes without keeping them.
    pub(super) fn skip(&mut self, mut count: usize) -> Result<(), Error> {
        while count > 0 {
            self.need(1)?;
            let step = count.min(self.window.rest().len());
            self.window.advance(step);
            count -= step;
        }
        Ok(())
    }

    /// Consumes a line of protocol 0, without its end.
    pub(super) fn take_line(&mut self) -> Result<Vec<u8>, Error> {
        let mut searched = 0;
        loop {
            if let Some(found) = self.window.rest()[searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.window.rest()[..searched + found].to_vec();
                self.window.advance(searched + found + 1);
                return Ok(line);
            }
            searched = self.window.rest().len();
            if searched > MAX_LINE_BYTES {
                return Err(Error::too_large(self.window.offset()));
            }
            self.need(searched + 1)?;
        }
    }

    /// Consumes a line of protocol 0 that holds text.
    pub(super) fn take_text_line(&mut self) -> Result<String, Error> {
        let line = self.take_line()?;
        String::from_utf8(line).map_err(|_| self.malformed("a line that is not text ends"))
    }
}
