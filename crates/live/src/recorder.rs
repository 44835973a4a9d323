//! A connection to one recorder, which may be anything that its user has put there.

use crate::sockets::Socket;
use crate::untrusted::Folder;
use crate::wire::{Question, State};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of the longest answer: a recorder's has 512 steps and 64 stacks at most, some hundred thousand bytes.
const MAX_ANSWER: usize = 1 << 20;
/// How long an answer may take once it has begun. When it begins is up to the program, whose interpreter may be busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Recorder {
    stream: BufReader<UnixStream>,
    pid: u32,
    /// What has come of an answer.
    begun: Vec<u8>,
    begun_at: Option<Instant>,
}

/// An answer, and what it took.
pub(crate) struct Heard {
    pub(crate) state: State,
    pub(crate) length: usize,
}

impl Recorder {
    /// `patience`: how long [`Recorder::ask`] and [`Recorder::answer`] wait.
    pub(crate) fn connect(socket: &Socket, patience: Duration) -> io::Result<Recorder> {
        let folder = Folder::open(&socket.folder)?;
        if folder.owner() != socket.owner {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder has another owner"));
        }
        let stream = folder.connect(&socket.name).inspect_err(|error| {
            // Nobody listens any more: the process was killed.
            if error.kind() == io::ErrorKind::ConnectionRefused {
                folder.remove(&socket.name);
            }
        })?;
        Recorder::new(stream, socket.pid, patience)
    }

    fn new(stream: UnixStream, pid: u32, patience: Duration) -> io::Result<Recorder> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Recorder { stream: BufReader::new(stream), pid, begun: Vec::new(), begun_at: None })
    }

    /// Asks; [`Recorder::answer`] hears. A process whose interpreter is busy answers later.
    pub(crate) fn ask(&mut self, question: &Question) -> io::Result<()> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    /// The answer; nothing if it is not all there yet. An answer that no recorder gives fails with `InvalidData`.
    pub(crate) fn answer(&mut self) -> io::Result<Option<Heard>> {
        let part = match self.stream.fill_buf() {
            Ok([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(part) => part,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => &[],
            Err(error) => return Err(error),
        };
        let end = part.iter().position(|&byte| byte == b'\n');
        let length = end.map_or(part.len(), |end| end + 1);
        self.begun.extend_from_slice(&part[..length]);
        self.stream.consume(length);
        if length > 0 {
            self.begun_at.get_or_insert_with(Instant::now);
        }
        if self.begun.len() > MAX_ANSWER || self.begun_at.is_some_and(|at| at.elapsed() > ANSWER_TIMEOUT) {
            return Err(nonsense("the answer is too long or too slow"));
        }
        if end.is_none() {
            return Ok(None);
        }
        self.begun_at = None;
        let line = std::mem::take(&mut self.begun);
        let state: State =
            serde_json::from_slice(&line).map_err(|_| nonsense("the answer is not readable"))?;
        if state.version != 1 || state.pid != self.pid {
            return Err(nonsense("another version, or another process"));
        }
        Ok(Some(Heard { state: state.bounded(), length: line.len() }))
    }
}

fn nonsense(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is heard of a peer that sends this.
    fn heard(sent: &[u8]) -> io::Result<Option<State>> {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        std::thread::scope(|scope| {
            scope.spawn(move || theirs.write_all(sent));
            let mut recorder = Recorder::new(ours, 7, Duration::from_millis(200))?;
            loop {
                if let Some(heard) = recorder.answer()? {
                    return Ok(Some(heard.state));
                }
            }
        })
    }

    fn text(more: &str) -> Vec<u8> {
        format!(
            r#"{{"version": 1, "pid": 7, "host": "h", "rank": null, "folder": "/f", "name": null, "kind": "cuda",
                "started_us": 1, "time_us": 2{more}}}"#
        )
        .replace('\n', " ")
        .into_bytes()
    }

    #[test]
    fn an_answer_is_one_line_of_bounded_length() {
        let line = [text(""), b"\n".to_vec()].concat();
        assert_eq!(heard(&line).expect("readable").expect("an answer").pid, 7);
        let long = text(&format!(r#", "more": "{}""#, "x".repeat(MAX_ANSWER)));
        for endless in [vec![b'['; 4 * MAX_ANSWER], [long, b"\n".to_vec()].concat()] {
            assert!(heard(&endless).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
        }
    }

    #[test]
    fn what_no_recorder_says_is_not_believed() {
        for line in ["nonsense\n", "[]\n", "{}\n", "\n"] {
            assert!(heard(line.as_bytes()).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
        }
        let another = String::from_utf8(text("")).expect("text").replace("\"pid\": 7", "\"pid\": 8") + "\n";
        assert!(heard(another.as_bytes()).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData));
        assert!(heard(b"{").is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof));
    }
}
