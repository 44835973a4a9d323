//! Systems without live sockets: nothing is found, and nothing else here is called.

use crate::system::Socket;
use failure::Failure;
use std::collections::BTreeSet;
use std::io;
pub(crate) use std::net::TcpStream as RecorderStream;
use std::path::Path;

/// Fails, and says what to do instead.
pub(crate) fn check() -> Result<(), Failure> {
    Err(Failure::new(
        "running programs of this machine can be watched only on Linux",
        Some("recorders have no live sockets on other systems".to_owned()),
        Some(
            "run `oomph exporter` on the Linux machine that runs the program, then `oomph watch HOST:PORT` \
             works from here",
        ),
    ))
}

pub(crate) use NoFinder as Finder;

/// Finds no live sockets.
#[derive(Default)]
pub(crate) struct NoFinder {}

impl NoFinder {
    pub(crate) fn find(&mut self) -> BTreeSet<Socket> {
        BTreeSet::new()
    }
}

pub(crate) fn connect(_socket: &Socket) -> io::Result<RecorderStream> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn read_file(_path: &Path, _owner: u32, _limit: u64) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}
