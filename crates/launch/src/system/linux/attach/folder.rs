//! The private folder that `oomph` and the process that it has attached to share.
//!
//! The process may be in a container, belong to another user, and be hostile to root, who attaches to it. So
//! everything is opened by name inside an opened folder, no link is followed, and what comes back is checked
//! on the opened file and bounded.

use super::process::RunningProcess;
use crate::scratch::Scratch;
use recording::{META_FILE, rank_of_file, unfinished_name};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Folders for temporary files of a process whose user is not the one of this process.
const TEMPORARY_FOLDERS: [&str; 3] = ["tmp", "var/tmp", "dev/shm"];
/// Largest file of a recording that is taken over, in bytes.
const MAX_FILE_BYTES: u64 = 32 << 30;
/// Largest file of messages that is read, in bytes.
const MAX_NOTES_BYTES: u64 = 1 << 20;
/// Most files of a folder that are looked at.
const MAX_FILES: usize = 256;
/// Folder for the recording in the private folder.
const OUTPUT: &str = "out";
const LOCK: &str = "lock";
const ONLY_OWNER: Mode = Mode::from_raw_mode(0o600);
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The private folder; removed when dropped.
pub(super) struct SharedFolder {
    parent: OwnedFd,
    name: String,
    folder: OwnedFd,
    user: u32,
    group: u32,
    /// Its path as the process sees it.
    pub(super) inside: PathBuf,
    /// Locked for as long as this process lives: the recorder leaves when it no longer is.
    lock: Option<File>,
}

impl SharedFolder {
    /// Creates it: in the user's own cache, or, for a process of another user or in a container, next to that
    /// one's temporary files.
    pub(super) fn new(process: &RunningProcess, scratch: &Scratch) -> io::Result<SharedFolder> {
        let is_own = process.user == rustix::process::geteuid().as_raw();
        let name = format!("oomph-{}", super::random().map_err(io::Error::other)?);
        let (parent, inside) = match is_own && process.shares_files() {
            true => (rustix::fs::open(scratch.at(""), FOLDER, Mode::empty())?, scratch.at("")),
            false => temporary_folder(process)?,
        };
        rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o700))?;
        let folder = rustix::fs::openat(&parent, &name, FOLDER, Mode::empty())?;
        let inside = inside.join(&name);
        let (user, group) = (process.user, process.group);
        let mut shared = SharedFolder { parent, name, folder, user, group, inside, lock: None };
        shared.write(LOCK, b"")?;
        let lock = File::from(shared.open(&shared.folder, LOCK)?);
        lock.try_lock().map_err(io::Error::from)?;
        shared.lock = Some(lock);
        Ok(shared)
    }

    /// Gives it to the user of the process; nothing can be written to it afterwards.
    pub(super) fn hand_over(&self) -> io::Result<()> {
        self.give(&self.folder)
    }

    /// Writes a file that only the user of the process can read.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.folder, name, flags, ONLY_OWNER)?);
        file.write_all(content)?;
        self.give(&file)
    }

    /// Lets the recorder know that it is to leave.
    pub(super) fn unlock(&self) {
        let _ = self.lock.as_ref().map(File::unlock);
    }

    /// Returns the path of a file as the process sees it.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.inside.join(name)
    }

    /// Returns the path of the folder for the recording as the process sees it.
    pub(super) fn output(&self) -> PathBuf {
        self.at(OUTPUT)
    }

    /// Returns the path of the lock as the process sees it.
    pub(super) fn lock_path(&self) -> PathBuf {
        self.at(LOCK)
    }

    /// Returns whether there is a file of a name.
    pub(super) fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Returns the lines of a file; none if there is no such file.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let mut text = Vec::new();
        let read = self
            .open(&self.folder, name)
            .map(|file| File::from(file).take(MAX_NOTES_BYTES).read_to_end(&mut text));
        if read.is_err() {
            return Vec::new();
        }
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Copies the files of the recording to a folder.
    pub(super) fn collect(&self, to: &Path) -> io::Result<()> {
        let output = match rustix::fs::openat(&self.folder, OUTPUT, FOLDER, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            output => output?,
        };
        for name in names(&output)? {
            let is_unfinished = unfinished_name(&name).is_some();
            if is_unfinished || (name != META_FILE && rank_of_file(&name).is_none()) {
                continue;
            }
            let from = File::from(self.open(&output, &name)?);
            let mut file = crate::system::create_private(&to.join(&name))?;
            if io::copy(&mut from.take(MAX_FILE_BYTES + 1), &mut file)? > MAX_FILE_BYTES {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("`{name}` is too large")));
            }
        }
        Ok(())
    }

    /// Opens a regular file of the process's user.
    fn open(&self, folder: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        let is_regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if is_regular && found.st_uid == self.user && found.st_nlink == 1 {
            return Ok(file);
        }
        let what = format!("`{name}` is not a regular file of its user");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
    }

    fn give(&self, to: impl AsFd) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        Ok(rustix::fs::fchown(to, Some(user), Some(group))?)
    }

    fn remove(&self) -> io::Result<()> {
        if let Ok(output) = rustix::fs::openat(&self.folder, OUTPUT, FOLDER, Mode::empty()) {
            for name in names(&output)? {
                let _ = rustix::fs::unlinkat(&output, &name, AtFlags::empty());
            }
            let _ = rustix::fs::unlinkat(&self.folder, OUTPUT, AtFlags::REMOVEDIR);
        }
        for name in names(&self.folder)? {
            let _ = rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty());
        }
        Ok(rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR)?)
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        // What a process that has just ended may have left; else the process itself has removed it.
        let _ = self.remove();
    }
}

/// Opens the folder for temporary files of a process, and returns its path there.
fn temporary_folder(process: &RunningProcess) -> io::Result<(OwnedFd, PathBuf)> {
    const STICKY: u32 = 0o1000;
    let root = rustix::fs::open(process.root(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    for path in TEMPORARY_FOLDERS {
        let step = |folder: io::Result<OwnedFd>, name: &str| {
            Ok(rustix::fs::openat(folder?, name, FOLDER, Mode::empty())?)
        };
        let opened = path.split('/').fold(root.try_clone(), step);
        let checked = opened.and_then(|folder| {
            let mode = rustix::fs::fstat(&folder)?.st_mode;
            // In others, anyone could put another folder in the place of ours.
            let is_shared = mode & 0o022 != 0 && mode & STICKY == 0;
            if is_shared { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(folder) }
        });
        match checked {
            Ok(folder) => return Ok((folder, Path::new("/").join(path))),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

fn names(folder: &OwnedFd) -> io::Result<Vec<String>> {
    let entries = Dir::read_from(folder)?.take(MAX_FILES).filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    Ok(names.filter(|name| name != "." && name != "..").collect())
}
