//! Linux.

mod sockets;
pub(crate) mod untrusted;

use crate::system::Socket;
use failure::Failure;
pub(crate) use sockets::Finder;
use std::io;
pub(crate) use std::os::unix::net::UnixStream as RecorderStream;
use untrusted::SocketFolder;
pub(crate) use untrusted::read_file;

/// Succeeds: recorders have live sockets here.
pub(crate) fn check() -> Result<(), Failure> {
    Ok(())
}

/// Connects to a live socket.
pub(crate) fn connect(socket: &Socket) -> io::Result<RecorderStream> {
    let folder = SocketFolder::open(&socket.folder)?;
    if folder.owner() != socket.owner {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder has another owner"));
    }
    folder.connect(&socket.name).inspect_err(|error| {
        // Nobody listens any more: the process was killed.
        if error.kind() == io::ErrorKind::ConnectionRefused {
            folder.remove(&socket.name);
        }
    })
}
