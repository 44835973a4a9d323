//! Sliding view of a byte stream: decoders see a slice, and the file never has to fit in memory.

use crate::error::Error;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

/// Chunk size of a short stream, in bytes.
const MIN_CHUNK: usize = 64 << 10;
/// Usual chunk size of a long stream, in bytes: the reader's copy is still in the second-level cache when it
/// is decoded, and four buffers of this size are cheap to clear. With 2 MiB, `oomph report` took 10 MB more
/// and up to 10% longer.
pub(crate) const MAX_CHUNK: usize = 256 << 10;
/// Room in front of a chunk for the unconsumed end of the previous one, in bytes.
const HEADROOM: usize = 64 << 10;

/// Part of a stream that has been read and not yet consumed.
pub(crate) struct StreamWindow<R> {
    source: WindowSource<R>,
    buffer: Vec<u8>,
    position: usize,
    end: usize,
    /// Stream position of the start of the buffer; negative at first because of the headroom.
    origin: i64,
    at_end: bool,
    /// Bytes that are usually read at a time.
    chunk: usize,
}

/// Supplier of the bytes.
enum WindowSource<R> {
    /// Reads on demand.
    Direct(R),
    /// A thread reads ahead and sends chunks, each behind some headroom; used buffers go back to it.
    Ahead { chunks: Receiver<io::Result<(Vec<u8>, usize)>>, used: SyncSender<Vec<u8>> },
}

impl<R: Read> StreamWindow<R> {
    pub(crate) fn new(reader: R) -> StreamWindow<R> {
        StreamWindow {
            source: WindowSource::Direct(reader),
            buffer: vec![0; MIN_CHUNK],
            position: 0,
            end: 0,
            origin: 0,
            at_end: false,
            chunk: MAX_CHUNK,
        }
    }

    /// Creates a window whose stream is read by another thread, `chunk` bytes at a time, for long streams.
    pub(crate) fn ahead<'scope>(reader: R, chunk: usize, scope: &'scope Scope<'scope, '_>) -> StreamWindow<R>
    where
        R: Send + 'scope,
    {
        let (send_chunk, chunks) = sync_channel(1);
        let (used, get_used) = sync_channel(4);
        scope.spawn(move || read_ahead(reader, chunk, &send_chunk, &get_used));
        StreamWindow {
            source: WindowSource::Ahead { chunks, used },
            buffer: Vec::new(),
            position: 0,
            end: 0,
            origin: 0,
            at_end: false,
            chunk,
        }
    }

    /// Returns the available bytes from the current position on.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer[self.position..self.end]
    }

    /// Returns the position in the stream.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        (self.origin + self.position as i64) as u64
    }

    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        self.position += count;
        debug_assert!(self.position <= self.end);
    }

    /// Makes `need` bytes available if the stream has that many, and returns whether it does. Memory
    /// follows what arrives, not what is requested: a claimed length of an exabyte costs nothing.
    #[inline]
    pub(crate) fn fill(&mut self, need: usize) -> Result<bool, Error> {
        if self.end - self.position >= need { Ok(true) } else { self.refill(need) }
    }

    #[inline(never)]
    fn refill(&mut self, need: usize) -> Result<bool, Error> {
        while self.end - self.position < need && !self.at_end {
            if let WindowSource::Ahead { .. } = self.source {
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
        if self.end == self.buffer.len() || (self.origin > 0 && self.buffer.len() < MAX_CHUNK) {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let WindowSource::Direct(reader) = &mut self.source else { return Ok(()) };
        match reader.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.at_end = true,
            Ok(count) => self.end += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(error)),
        }
        Ok(())
    }

    fn take_chunk(&mut self) -> Result<(), Error> {
        let WindowSource::Ahead { chunks, used } = &self.source else { return Ok(()) };
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
            // The reader may have finished already and no longer needs the buffer.
            let _ = used.try_send(std::mem::replace(&mut self.buffer, chunk));
        } else {
            // A single value longer than the headroom: rare enough to be copied.
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

    /// Memory held beyond the usual size, in bytes.
    pub(crate) fn footprint(&self) -> usize {
        self.buffer.len().saturating_sub(HEADROOM + self.chunk)
    }
}

/// Sends the stream in chunks until it ends, fails, or the receiver is gone.
fn read_ahead(
    mut reader: impl Read,
    chunk: usize,
    chunks: &SyncSender<io::Result<(Vec<u8>, usize)>>,
    used: &Receiver<Vec<u8>>,
) {
    loop {
        let mut buffer = used.try_recv().unwrap_or_default();
        buffer.resize(HEADROOM + chunk, 0);
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

    /// Reader that returns one byte per call, like a slow pipe.
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
        let mut window = StreamWindow::new(Trickle(b"abcdef"));
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

    /// Checks every byte of a stream of several chunks, in steps that leave a remainder each time.
    fn check(mut window: StreamWindow<&[u8]>, stream: &[u8], step: usize) {
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
        let stream: Vec<u8> = (0..2 * MAX_CHUNK + 12345).map(|index| (index * 7 / 3) as u8).collect();
        for step in [1000, HEADROOM + 7, MAX_CHUNK + 99] {
            check(StreamWindow::new(&stream[..]), &stream, step);
            std::thread::scope(|scope| {
                check(StreamWindow::ahead(&stream[..], MAX_CHUNK, scope), &stream, step)
            });
        }
    }

    #[test]
    fn a_reader_without_a_receiver_ends() {
        std::thread::scope(|scope| drop(StreamWindow::ahead(io::repeat(1), MAX_CHUNK, scope)));
    }
}
