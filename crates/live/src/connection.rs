//! A connection to the live socket of one recorder. Its user may have put anything there, so answers are
//! bounded and checked.

use crate::system::{self, RecorderStream, Socket};
use crate::wire::{RecorderRequest, RecorderState};
use std::io::{self, BufRead, BufReader, Write};
use std::time::{Duration, Instant};

/// Longest answer, in bytes. A recorder's has at most 512 steps and 64 stacks: some hundred thousand bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// How long an answer may take from its first byte. When it starts is up to the program, whose interpreter
/// may be busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to one recorder.
pub(crate) struct RecorderConnection {
    stream: BufReader<RecorderStream>,
    pid: u32,
    /// The part of an answer that has arrived.
    partial: Vec<u8>,
    partial_since: Option<Instant>,
}

/// An answer and its length in bytes.
pub(crate) struct ReceivedState {
    pub(crate) state: RecorderState,
    pub(crate) length: usize,
}

impl RecorderConnection {
    /// Connects. `timeout` is how long [`RecorderConnection::send`] and [`RecorderConnection::receive`] wait.
    pub(crate) fn connect(socket: &Socket, timeout: Duration) -> io::Result<RecorderConnection> {
        RecorderConnection::new(system::connect(socket)?, socket.pid, timeout)
    }

    fn new(stream: RecorderStream, pid: u32, timeout: Duration) -> io::Result<RecorderConnection> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(RecorderConnection {
            stream: BufReader::new(stream),
            pid,
            partial: Vec::new(),
            partial_since: None,
        })
    }

    /// Sends a request. A process whose interpreter is busy answers later.
    pub(crate) fn send(&mut self, request: &RecorderRequest) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    /// Returns the answer, or `None` if it has not fully arrived. What no recorder sends fails with
    /// `InvalidData`.
    pub(crate) fn receive(&mut self) -> io::Result<Option<ReceivedState>> {
        let part = match self.stream.fill_buf() {
            Ok([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(part) => part,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => &[],
            Err(error) => return Err(error),
        };
        let end = part.iter().position(|&byte| byte == b'\n');
        let length = end.map_or(part.len(), |end| end + 1);
        self.partial.extend_from_slice(&part[..length]);
        self.stream.consume(length);
        if length > 0 {
            self.partial_since.get_or_insert_with(Instant::now);
        }
        if self.partial.len() > MAX_ANSWER_BYTES
            || self.partial_since.is_some_and(|at| at.elapsed() > ANSWER_TIMEOUT)
        {
            return Err(invalid("the answer is too long or too slow"));
        }
        if end.is_none() {
            return Ok(None);
        }
        self.partial_since = None;
        let line = std::mem::take(&mut self.partial);
        let state: RecorderState =
            serde_json::from_slice(&line).map_err(|_| invalid("the answer cannot be parsed"))?;
        if state.version != 1 || state.pid != self.pid {
            return Err(invalid("another version, or another process"));
        }
        Ok(Some(ReceivedState { state: state.bounded(), length: line.len() }))
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is received from a peer that sends this.
    fn received(sent: &[u8]) -> io::Result<Option<RecorderState>> {
        let (ours, mut theirs) = RecorderStream::pair().expect("a pair");
        std::thread::scope(|scope| {
            scope.spawn(move || theirs.write_all(sent));
            let mut connection = RecorderConnection::new(ours, 7, Duration::from_millis(200))?;
            loop {
                if let Some(received) = connection.receive()? {
                    return Ok(Some(received.state));
                }
            }
        })
    }

    fn text(more: &str) -> Vec<u8> {
        format!(
            r#"{{"version": 1, "pid": 7, "host": "h", "rank": null, "folder": "/f", "name": null,
                "kind": "cuda", "started_us": 1, "time_us": 2{more}}}"#
        )
        .replace('\n', " ")
        .into_bytes()
    }

    #[test]
    fn an_answer_is_one_line_of_bounded_length() {
        let line = [text(""), b"\n".to_vec()].concat();
        assert_eq!(received(&line).expect("readable").expect("an answer").pid, 7);
        let long = text(&format!(r#", "more": "{}""#, "x".repeat(MAX_ANSWER_BYTES)));
        for endless in [vec![b'['; 4 * MAX_ANSWER_BYTES], [long, b"\n".to_vec()].concat()] {
            assert!(received(&endless).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
        }
    }

    #[test]
    fn what_no_recorder_sends_is_refused() {
        for line in ["nonsense\n", "[]\n", "{}\n", "\n"] {
            assert!(received(line.as_bytes()).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
        }
        let another = String::from_utf8(text("")).expect("text").replace("\"pid\": 7", "\"pid\": 8") + "\n";
        assert!(received(another.as_bytes()).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
        assert!(received(b"{").is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof));
    }
}
