//! Where recorders listen: a folder of each user, fixed because a watcher may run in another session with another environment.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names another folder; `python/oomph/recording/channel.py` reads it as well.
pub const FOLDER_VARIABLE: &str = "OOMPH_RUNTIME_DIR";
const PARENT: &str = "/tmp";
const PREFIX: &str = "oomph-";

/// The folders whose sockets this user may ask: its own; for root, those of all users.
pub fn folders() -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
        return vec![folder.into()];
    }
    let user = rustix::process::getuid().as_raw();
    if user != 0 {
        return vec![Path::new(PARENT).join(format!("{PREFIX}{user}"))];
    }
    let entries = std::fs::read_dir(PARENT).into_iter().flatten().flatten();
    let is_of_a_user = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix(PREFIX).is_some_and(|user| user.parse::<u32>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_of_a_user).collect()
}

/// The sockets in these folders. A folder that others may write to could hold anybody's: it is passed over.
pub(crate) fn sockets(folders: &[PathBuf]) -> Vec<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let mut found = Vec::new();
    for folder in folders {
        let is_trusted = |meta: &std::fs::Metadata| {
            meta.is_dir() && meta.mode() & 0o022 == 0 && (user == 0 || meta.uid() == user)
        };
        if !std::fs::symlink_metadata(folder).is_ok_and(|meta| is_trusted(&meta)) {
            continue;
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|ending| ending == "sock")));
    }
    found.sort();
    found
}

/// After a refused connection: nobody listens any more, the process was killed.
pub(crate) fn remove_stale(socket: &Path, error: &io::Error) {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        let _ = std::fs::remove_file(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_that_nobody_listens_to_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (dead, alive) = (folder.path().join("1.sock"), folder.path().join("2.sock"));
        drop(UnixListener::bind(&dead).expect("bound"));
        let _listener = UnixListener::bind(&alive).expect("bound");
        for socket in sockets(&[folder.path().to_owned()]) {
            if let Err(error) = UnixStream::connect(&socket) {
                remove_stale(&socket, &error);
            }
        }
        assert_eq!(sockets(&[folder.path().to_owned()]), [alive]);
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let _listener = UnixListener::bind(folder.path().join("1.sock")).expect("bound");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("changed");
        assert!(sockets(&[folder.path().to_owned()]).is_empty());
    }
}
