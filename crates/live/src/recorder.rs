//! A connection to one recorder.

use crate::wire::{Question, State};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Bytes of the longest answer.
const LONGEST: u64 = 16 << 20;

pub(crate) struct Recorder {
    stream: BufReader<UnixStream>,
}

impl Recorder {
    /// `patience`: how long an answer may take.
    pub(crate) fn connect(socket: &Path, patience: Duration) -> io::Result<Recorder> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Recorder { stream: BufReader::new(stream) })
    }

    /// Asks; [`Recorder::answer`] hears. A process whose interpreter is busy answers later.
    pub(crate) fn ask(&mut self, question: &Question) -> io::Result<()> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    /// The answer; nothing if it takes longer than the patience, and can be waited for again. `begun` keeps what has come of it.
    pub(crate) fn answer(&mut self, begun: &mut Vec<u8>) -> io::Result<Option<State>> {
        match self.stream.by_ref().take(LONGEST).read_until(b'\n', begun) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(_) if begun.last() != Some(&b'\n') => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                let state: State = serde_json::from_slice(begun)?;
                begun.clear();
                if state.version == 1 { Ok(Some(state)) } else { Err(io::Error::other("another version")) }
            }
        }
    }
}
