//! Finds live sockets: in the private folder of this user, and in the kernel's list of sockets.
//!
//! The folder depends on the environment, and a watcher may run in another session. So the kernel's list is
//! read as well: it has every recorder of the machine, and root need not look into the folders of users.

use super::untrusted::SocketFolder;
use crate::system::Socket;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Environment variable that names the only folder to use; `python/oomph/recording/live_socket.py` reads it
/// as well.
pub(crate) const FOLDER_VARIABLE: &str = "OOMPH_RUNTIME_DIR";

/// Maximum number of bytes read of the kernel's list of sockets: some hundred thousand sockets.
const MAX_LIST_BYTES: u64 = 32 << 20;
/// Maximum number of descriptors of a process that are searched for its socket.
const MAX_DESCRIPTORS: usize = 16_384;
/// Flag of a socket that accepts connections, in the kernel's list.
const ACCEPTS_FLAG: u32 = 1 << 16;

/// Returns the folders for live sockets of this user; a recorder uses the first that it can.
pub(crate) fn folders() -> Vec<PathBuf> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    folders_for(|name| std::env::var_os(name), std::env::home_dir(), &host)
}

/// Applies the rule that `folders` in `python/oomph/recording/live_socket.py` has as well; `folders.json`
/// checks both.
fn folders_for(
    variable: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
    host: &str,
) -> Vec<PathBuf> {
    if let Some(folder) = variable(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
        return vec![folder.into()];
    }
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // Homes are shared between machines, sockets are not.
    let host = host.split('.').next().filter(|host| !host.is_empty() && !host.contains('/'));
    let home = home.filter(|home| home.is_absolute());
    // The first folder survives a logout, as jobs do.
    let cache = absolute("XDG_CACHE_HOME").or_else(|| home.map(|home| home.join(".cache")));
    let cache = cache.map(|cache| cache.join("oomph/live").join(host.unwrap_or("localhost")));
    let runtime = absolute("XDG_RUNTIME_DIR").map(|runtime| runtime.join("oomph"));
    cache.into_iter().chain(runtime).collect()
}

/// Finds live sockets, and remembers what it has seen.
#[derive(Default)]
pub(crate) struct Finder {
    /// Sockets of the kernel's list; `None` for refused ones, which are not checked again.
    listed: BTreeMap<PathBuf, Option<Socket>>,
}

impl Finder {
    /// Returns the live sockets that this user may connect to: its own; for root, those of all users.
    pub(crate) fn find(&mut self) -> BTreeSet<Socket> {
        let mut found: BTreeSet<Socket> = folders().iter().flat_map(|folder| in_folder(folder)).collect();
        if std::env::var_os(FOLDER_VARIABLE).is_none_or(|folder| folder.is_empty()) {
            // Root's home may be a user's, as with sudo.
            found.retain(|socket| socket.owner == rustix::process::getuid().as_raw());
            found.extend(self.find_listed());
        }
        found
    }

    fn find_listed(&mut self) -> impl Iterator<Item = Socket> {
        let mut text = Vec::new();
        // Without the list, the folders remain.
        let _ =
            File::open("/proc/net/unix").and_then(|list| list.take(MAX_LIST_BYTES).read_to_end(&mut text));
        let mut processes = BTreeMap::new();
        let mut listed = BTreeMap::new();
        for (inode, folder, pid, name) in text.split(|&byte| byte == b'\n').filter_map(entry) {
            let path = folder.join(&name);
            let socket = match self.listed.remove(&path) {
                Some(known) => known,
                None => {
                    let (owner, inodes) = processes.entry(pid).or_insert_with(|| sockets_of(pid));
                    owner.filter(|_| inodes.contains(&inode)).map(|owner| Socket { folder, name, owner, pid })
                }
            };
            listed.insert(path, socket);
        }
        self.listed = listed;
        self.listed.values().flatten().cloned()
    }
}

/// Returns the sockets in a folder of this user, or one that root was pointed to.
fn in_folder(path: &Path) -> Vec<Socket> {
    // Links on the path are this user's own.
    let Ok(path) = path.canonicalize() else { return Vec::new() };
    let Ok(folder) = SocketFolder::open(&path) else { return Vec::new() };
    let owner = folder.owner();
    let names = folder.names().unwrap_or_default().into_iter();
    let sockets = names.filter_map(|name| {
        let pid = pid_of(name.strip_suffix(".sock")?)?;
        Some(Socket { folder: path.clone(), name, owner, pid })
    });
    sockets.collect()
}

/// Parses a line of the kernel's list that may be about a recorder: inode, folder, process and name of the
/// socket.
fn entry(line: &[u8]) -> Option<(u64, PathBuf, u32, String)> {
    // Num: RefCount Protocol Flags Type St Inode Path
    let text = |field: &[u8]| str::from_utf8(field).ok().map(str::to_owned);
    let mut fields = line.splitn(8, |&byte| byte == b' ').skip(3);
    let flags = u32::from_str_radix(&text(fields.next()?)?, 16).ok()?;
    // Inodes are aligned to the right.
    let rest = line.splitn(7, |&byte| byte == b' ').nth(6)?.trim_ascii_start();
    let (inode, path) = rest.split_at(rest.iter().position(|&byte| byte == b' ')?);
    let path = Path::new(OsStr::from_bytes(&path[1..]));
    // A recorder binds a hidden name, and renames the socket once it listens.
    let name = path.file_name()?.to_str()?.strip_prefix('.')?;
    let pid = pid_of(name)?;
    let folder = path.parent().filter(|folder| folder.is_absolute() && flags & ACCEPTS_FLAG != 0)?;
    Some((text(inode)?.parse().ok()?, folder.to_owned(), pid, format!("{name}.sock")))
}

/// Returns the process id in a name such as `4242-0a1b2c3d`.
fn pid_of(name: &str) -> Option<u32> {
    let (pid, random) = name.split_once('-')?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (random.len() == 8 && random.bytes().all(is_hex) && pid.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| pid.parse().ok())?
}

/// Returns the user of a process, if this user may connect to it, and the inodes of its open sockets. So the
/// name of a socket cannot attribute it to another process or user.
fn sockets_of(pid: u32) -> (Option<u32>, BTreeSet<u64>) {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let user = rustix::process::getuid().as_raw();
    let owner = process.metadata().ok().map(|meta| meta.uid()).filter(|&owner| user == 0 || owner == user);
    if owner.is_none() {
        return (None, BTreeSet::new());
    }
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let inode = |link: PathBuf| -> Option<u64> {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    let links = descriptors.take(MAX_DESCRIPTORS).filter_map(|entry| entry.path().read_link().ok());
    (owner, links.filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::os::unix::net::UnixListener;

    #[derive(serde::Deserialize)]
    struct Case {
        env: HashMap<String, String>,
        host: String,
        folders: Vec<PathBuf>,
    }

    #[test]
    fn the_folders_are_those_of_the_recorder() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../../../folders.json")).expect("readable");
        for Case { env, host, folders } in cases {
            let variable = |name: &str| env.get(name).map(OsString::from);
            let found = folders_for(variable, variable("HOME").map(PathBuf::from), &host);
            assert_eq!(found, folders, "{env:?} {host:?}");
        }
    }

    #[test]
    fn a_line_of_the_kernels_list_is_a_recorders_or_not() {
        let line =
            |flags: &str, path: &str| format!("0000000000000000: 00000002 00000000 {flags} 0001 01 {path}");
        let read = |flags: &str, path: &str| entry(line(flags, path).as_bytes());
        let expected = (37_929, PathBuf::from("/home/ada b/live"), 12, "12-0a1b2c3d.sock".to_owned());
        assert_eq!(read("00010000", "37929 /home/ada b/live/.12-0a1b2c3d"), Some(expected.clone()));
        assert_eq!(read("00010000", " 37929 /home/ada b/live/.12-0a1b2c3d"), Some(expected));
        assert_eq!(read("00000000", "37929 /home/ada b/live/.12-0a1b2c3d"), None, "a connection");
        for path in ["37929", "37929 @abstract", "37929 /run/systemd/notify", "37929 live/.12-0a1b2c3d"] {
            assert_eq!(read("00010000", path), None, "{path}");
        }
        for name in [
            "12-0a1b2c3d",
            ".12-0a1b2c3",
            ".-0a1b2c3d",
            ".12-0A1B2C3D",
            ".+1-0a1b2c3d",
            ".99999999999-0a1b2c3d",
        ] {
            assert_eq!(read("00010000", &format!("37929 /live/{name}")), None, "{name}");
        }
        assert_eq!(entry(b""), None);
        assert_eq!(entry(b"\xff\xff \xff \xff \xff \xff \xff \xff \xff"), None);
    }

    #[test]
    fn a_socket_is_attributed_to_the_process_that_has_it_open() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().canonicalize().expect("a path");
        let own = std::process::id();
        // The first process of a machine has no socket of ours, whatever a name says.
        let listeners = [format!(".{own}-00000000"), ".1-00000000".to_owned()]
            .map(|name| UnixListener::bind(folder.join(name)).expect("bound"));
        let mut finder = Finder::default();
        let mut found = || -> Vec<u32> {
            finder.find_listed().filter(|socket| socket.folder == folder).map(|socket| socket.pid).collect()
        };
        assert_eq!((found(), found()), (vec![own], vec![own]));
        drop(listeners);
        assert!(found().is_empty());
    }
}
