//! The only access to what belongs to other users: their folders, sockets and files.
//!
//! The user who runs a program may be hostile to the one who watches it, and root watches everyone. So
//! nothing here follows a link, waits for a file, reads more than a limit, or trusts a name: the kernel's
//! data about the opened object decides. Calls may still block on a slow file system, so they are made in the
//! thread of the one recorder that they concern.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path};

/// Maximum number of names read from a folder, so that a flood of files cannot keep the watcher busy.
const MAX_ENTRIES: usize = 4096;

/// A folder that only its owner can use.
pub(crate) struct SocketFolder {
    folder: OwnedFd,
    owner: u32,
}

impl SocketFolder {
    /// Opens a folder by its absolute path. Fails if any part of the path is a link, if others have any right
    /// to the folder, or if it belongs to another user and this one is not root.
    pub(crate) fn open(path: &Path) -> io::Result<SocketFolder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = rustix::fs::open("/", flags, Mode::empty())?;
        let mut parts = path.components();
        if parts.next() != Some(Component::RootDir) {
            return Err(refusal("not an absolute path"));
        }
        for part in parts {
            let Component::Normal(name) = part else { return Err(refusal("not a plain path")) };
            folder = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        }
        let found = rustix::fs::fstat(&folder)?;
        let user = rustix::process::getuid().as_raw();
        if found.st_mode & 0o077 != 0 {
            return Err(refusal("the folder is open to other users"));
        }
        if user != 0 && found.st_uid != user {
            return Err(refusal("the folder belongs to another user"));
        }
        Ok(SocketFolder { folder, owner: found.st_uid })
    }

    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// File names, in no order, of at most [`MAX_ENTRIES`] entries.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = Dir::new(rustix::fs::openat(&self.folder, ".", flags, Mode::empty())?)?;
        let names = entries.take(MAX_ENTRIES).flatten();
        Ok(names.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect())
    }

    /// Connects to a socket of the folder's owner. Does not wait: a socket whose queue is full fails with
    /// `WouldBlock`.
    pub(crate) fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.folder, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&socket)?;
        // One socket under many names would be many recorders.
        if kind(&found) != FileType::Socket || found.st_uid != self.owner || found.st_nlink > 1 {
            return Err(refusal("not a socket of the folder's owner"));
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Connects to the object that was checked, whatever its name refers to by now.
        rustix::net::connect(&stream, &SocketAddrUnix::new(opened(&socket))?)?;
        if rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw() != self.owner {
            return Err(refusal("another user listens on the socket"));
        }
        let stream = UnixStream::from(stream);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Removes a file, if the folder is this user's own. In the folder of another user a name may be swapped
    /// at any moment for that of something else.
    pub(crate) fn remove(&self, name: &str) {
        if self.owner == rustix::process::getuid().as_raw() {
            // Already gone, or removed by the next search.
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

/// Reads a regular file of one user, of `limit` bytes at most. Its folder is not checked: the file itself has
/// to be that user's.
pub(crate) fn read_file(path: &Path, owner: u32, limit: u64) -> io::Result<Vec<u8>> {
    // Only looked at first: to open a device or a pipe can already have effects.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    if kind(&found) != FileType::RegularFile || found.st_uid != owner {
        return Err(refusal("not a regular file of its user"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(opened(&file), flags, Mode::empty())?);
    let mut text = Vec::new();
    file.take(limit + 1).read_to_end(&mut text)?;
    if text.len() as u64 > limit { Err(refusal("the file is too large")) } else { Ok(text) }
}

/// A path that leads to an opened object and nowhere else.
fn opened(object: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn refusal(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use tempfile::TempDir;

    fn user() -> u32 {
        rustix::process::getuid().as_raw()
    }

    /// A folder that nobody but this user may use.
    pub(crate) fn private_folder() -> TempDir {
        let mode = std::fs::Permissions::from_mode(0o700);
        tempfile::Builder::new().permissions(mode).tempdir().expect("a folder")
    }

    /// A private folder with a socket `1.sock` that listens.
    fn folder() -> (TempDir, PathBuf, UnixListener) {
        let place = private_folder();
        let path = place.path().canonicalize().expect("a path");
        let listener = UnixListener::bind(path.join("1.sock")).expect("bound");
        (place, path, listener)
    }

    #[test]
    fn a_folder_that_others_may_use_is_refused() {
        let (_place, path, _listener) = folder();
        assert_eq!(SocketFolder::open(&path).expect("private").owner(), user());
        for mode in [0o777, 0o750, 0o701] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("changed");
            assert!(SocketFolder::open(&path).is_err(), "{mode:o}");
        }
    }

    #[test]
    fn no_link_leads_to_a_folder() {
        let (_place, path, _listener) = folder();
        let inner = path.join("inner");
        std::fs::create_dir(&inner).expect("a folder");
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).expect("changed");
        symlink(&inner, path.join("last")).expect("a link");
        symlink(&path, inner.join("middle")).expect("a link");
        assert!(SocketFolder::open(&inner).is_ok());
        for link in ["last", "inner/middle/inner", "inner/../inner"] {
            assert!(SocketFolder::open(&path.join(link)).is_err(), "{link}");
        }
        assert!(SocketFolder::open(Path::new("relative")).is_err());
    }

    #[test]
    fn only_a_socket_itself_is_connected_to() {
        let (_place, path, listener) = folder();
        let folder = SocketFolder::open(&path).expect("private");
        folder.connect("1.sock").expect("connected");
        listener.accept().expect("it was this one");
        symlink(path.join("1.sock"), path.join("link.sock")).expect("a link");
        std::fs::write(path.join("file.sock"), "").expect("written");
        for name in ["link.sock", "file.sock", "missing.sock"] {
            assert!(folder.connect(name).is_err(), "{name}");
        }
        std::fs::hard_link(path.join("1.sock"), path.join("2.sock")).expect("a second name");
        for name in ["1.sock", "2.sock"] {
            assert!(folder.connect(name).is_err(), "one of many names: {name}");
        }
    }

    #[test]
    fn a_socket_whose_queue_is_full_is_not_waited_for() {
        let (_place, path, _listener) = folder();
        let folder = SocketFolder::open(&path).expect("private");
        let mut open = Vec::new();
        let refused = loop {
            match folder.connect("1.sock") {
                Ok(stream) => open.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn only_a_small_regular_file_of_the_right_user_is_read() {
        let (_place, path, _listener) = folder();
        std::fs::write(path.join("file"), "four").expect("written");
        symlink(path.join("file"), path.join("link")).expect("a link");
        symlink("/dev/zero", path.join("endless")).expect("a link");
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("pipe"), Mode::RUSR | Mode::WUSR).expect("a pipe");
        assert_eq!(read_file(&path.join("file"), user(), 4).expect("readable"), b"four");
        assert!(read_file(&path.join("file"), user(), 3).is_err(), "too large");
        assert!(read_file(&path.join("file"), user() + 1, 4).is_err(), "somebody else's");
        for name in ["link", "endless", "pipe", "1.sock", "."] {
            assert!(read_file(&path.join(name), user(), 1 << 20).is_err(), "{name}");
        }
        assert!(read_file(Path::new("/dev/zero"), 0, 1 << 20).is_err());
    }

    #[test]
    fn names_are_counted() {
        let (_place, path, _listener) = folder();
        for number in 0..MAX_ENTRIES + 10 {
            File::create(path.join(number.to_string())).expect("written");
        }
        assert!(SocketFolder::open(&path).expect("private").names().expect("readable").len() <= MAX_ENTRIES);
    }
}
