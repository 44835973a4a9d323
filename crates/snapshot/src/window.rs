//! A sliding view of a byte stream: decoders see a slice, the file never has to fit in memory.

use crate::error::Error;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

/// The chunk of a short stream.
const SMALLEST: usize = 64 << 10;
/// The chunk of a long one: the reader's copy is still in the second-level cache when it is decoded, and four such buffers
/// cost next to nothing to clear. With 2 MiB `oomph report` took 10 MB more and up to a tenth longer.
const LARGEST: usize = 256 << 10;
/// Room before a chunk for what was left of the one before it.
const HEADROOM: usize = 64 << 10;

/// The part of a stream that has been read and not yet consumed.
pub(crate) struct Window<R> {
    source: Source<R>,
    buffer: Vec<u8>,
    position: usize,
    end: usize,
    /// Position in the stream of the start of the buffer; below zero by the headroom at first.
    origin: i64,
    at_end: bool,
}

enum Source<R> {
    /// Reads when it is asked to.
    Direct(R),
    /// A thread reads ahead and sends chunks, each behind some headroom; buffers go back to it.
    Ahead { chunks: Receiver<io::Result<(Vec<u8>, usize)>>, used: SyncSender<Vec<u8>> },
}

impl<R: Read> Window<R> {
    pub(crate) fn new(reader: R) -> Window<R> {
        Window {
            source: Source::Direct(reader),
            buffer: vec![0; SMALLEST],
            position: 0,
            end: 0,
            origin: 0,
            at_end: false,
        }
    }

    /// A window whose stream is read by a thread of its own, for long streams.
    pub(crate) fn ahead<'scope>(reader: R, scope: &'scope Scope<'scope, '_>) -> Window<R>
    where
        R: Send + 'scope,
    {
        let (send_chunk, chunks) = sync_channel(1);
        let (used, get_used) = sync_channel(4);
        scope.spawn(move || read_ahead(reader, &send_chunk, &get_used));
        Window {
            source: Source::Ahead { chunks, used },
            buffer: Vec::new(),
            position: 0,
            end: 0,
            origin: 0,
            at_end: false,
        }
    }

    /// The bytes at hand, from the current position on.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer[self.position..self.end]
    }

    /// Position in the stream.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        (self.origin + self.position as i64) as u64
    }

    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        self.position += count;
        debug_assert!(self.position <= self.end);
    }

    /// Makes `need` bytes available if the stream has that many, and says whether it does. Memory follows what
    /// arrives, not what was asked for: a claimed length of an exabyte costs nothing.
    #[inline]
    pub(crate) fn fill(&mut self, need: usize) -> Result<bool, Error> {
        if self.end - self.position >= need { Ok(true) } else { self.refill(need) }
    }

    #[inline(never)]
    fn refill(&mut self, need: usize) -> Result<bool, Error> {
        while self.end - self.position < need && !self.at_end {
            if let Source::Ahead { .. } = self.source {
                self.take_chunk()?;
            } else {
                self.read_more()?;
            }
        }
        Ok(self.end - self.position >= need)
    }

    fn read_more(&mut self) -> Result<(), Error> {
        self.buffer.copy_within(self.position..self.end, 0);
        self.origin += self.position as i64;
        self.end -= self.position;
        self.position = 0;
        if self.end == self.buffer.len() || (self.origin > 0 && self.buffer.len() < LARGEST) {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let Source::Direct(reader) = &mut self.source else { return Ok(()) };
        match reader.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.at_end = true,
            Ok(count) => self.end += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(error)),
        }
        Ok(())
    }

    fn take_chunk(&mut self) -> Result<(), Error> {
        let Source::Ahead { chunks, used } = &self.source else { return Ok(()) };
        let Ok(chunk) = chunks.recv() else {
            self.at_end = true;
            return Ok(());
        };
        let (mut chunk, end) = chunk.map_err(Error::io)?;
        let left = self.end - self.position;
        if left <= HEADROOM {
            chunk[HEADROOM - left..HEADROOM].copy_from_slice(&self.buffer[self.position..self.end]);
            let offset = self.origin + self.position as i64;
            self.position = HEADROOM - left;
            self.end = end;
            self.origin = offset - self.position as i64;
            // The reader may have finished already; then nobody needs the buffer.
            let _ = used.try_send(std::mem::replace(&mut self.buffer, chunk));
        } else {
            // A single value longer than the headroom: rare enough to move it.
            self.buffer.copy_within(self.position..self.end, 0);
            self.origin += self.position as i64;
            self.position = 0;
            self.buffer.truncate(left);
            self.buffer.extend_from_slice(&chunk[HEADROOM..end]);
            self.end = self.buffer.len();
            let _ = used.try_send(chunk);
        }
        Ok(())
    }

    /// Bytes of memory that the window holds beyond its usual size.
    pub(crate) fn footprint(&self) -> usize {
        self.buffer.len().saturating_sub(HEADROOM + LARGEST)
    }
}

/// Sends the stream in chunks until it ends, fails, or nobody listens any more.
fn read_ahead(
    mut reader: impl Read,
    chunks: &SyncSender<io::Result<(Vec<u8>, usize)>>,
    used: &Receiver<Vec<u8>>,
) {
    loop {
        let mut buffer = used.try_recv().unwrap_or_default();
        buffer.resize(HEADROOM + LARGEST, 0);
        let mut end = HEADROOM;
        while end < buffer.len() {
            match reader.read(&mut buffer[end..]) {
                Ok(0) => break,
                Ok(count) => end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let _ = chunks.send(Err(error));
                    return;
                }
            }
        }
        if end == HEADROOM || chunks.send(Ok((buffer, end))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte per call, as a slow pipe may.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
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
        assert_eq!(
            (window.offset(), window.fill(3).expect("readable"), window.rest()),
            (3, true, &b"def"[..])
        );
        assert!(!window.fill(usize::MAX).expect("readable"));
        assert_eq!(window.rest(), b"def");
        assert_eq!(window.footprint(), 0);
    }

    /// Every byte of a stream of several chunks, in steps that leave something over each time.
    fn check(mut window: Window<&[u8]>, stream: &[u8], step: usize) {
        let mut seen = Vec::new();
        while window.fill(step).expect("readable") || !window.rest().is_empty() {
            let count = step.min(window.rest().len());
            assert_eq!(window.offset(), seen.len() as u64);
            seen.extend_from_slice(&window.rest()[..count]);
            window.advance(count);
        }
        assert!(seen == stream, "step {step}");
    }

    #[test]
    fn reading_ahead_gives_the_same_bytes_at_the_same_offsets() {
        let stream: Vec<u8> = (0..2 * LARGEST + 12345).map(|index| (index * 7 / 3) as u8).collect();
        for step in [1000, HEADROOM + 7, LARGEST + 99] {
            check(Window::new(&stream[..]), &stream, step);
            std::thread::scope(|scope| check(Window::ahead(&stream[..], scope), &stream, step));
        }
    }

    #[test]
    fn a_reader_that_nobody_listens_to_ends() {
        std::thread::scope(|scope| drop(Window::ahead(io::repeat(1), scope)));
    }
}
