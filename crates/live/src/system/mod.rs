//! What differs between operating systems. Recorders have live sockets on Linux only; elsewhere only those of
//! another machine can be watched.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;

use std::path::PathBuf;

/// The live socket of a recorder, as far as it is known without touching a file of its user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Socket {
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    /// User that it belongs to.
    pub(crate) owner: u32,
    /// Process that listens, by the name of the socket.
    pub(crate) pid: u32,
}

impl Socket {
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }
}
