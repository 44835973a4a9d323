//! The private folder of a run in the user's cache, with the files that its processes load and report to.
//!
//! Its path is in the environment of every process of the run (PYTHONPATH, LD_LIBRARY_PATH), and a process
//! that outlives the run keeps these variables. Anyone who could create the path later would run code as
//! this user. So only its owner can write to the parent folder, and no world-writable folder such as `/tmp`
//! is above it.

use analysis::words::shown_path;
use failure::Failure;
use rustix::fs::{FileType, Mode};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Environment variable with the path of the cache, instead of the default one.
const CACHE_VARIABLE: &str = "OOMPH_CACHE_DIR";
/// File in the folder of a run that its `oomph` keeps locked. If it is not, that `oomph` was killed.
const LOCK_FILE: &str = "lock";
/// FIFO in the folder of a run that its `oomph` keeps open for as long as the processes of the run may live.
const LIFELINE_FIFO: &str = "lifeline";
/// Age below which a folder without a lock may be under construction.
const MIN_STALE_AGE: Duration = Duration::from_secs(60);

/// The private folder of one run; removed when dropped, or by a later run if this process is killed.
pub(crate) struct Scratch {
    folder: TempDir,
    /// Unlocked by the system when this process ends, even if it is killed.
    _lock: Option<File>,
}

impl Scratch {
    pub(crate) fn new() -> anyhow::Result<Scratch> {
        let runs = runs_folder()?;
        let host = host();
        remove_abandoned(&runs, &host);
        let made = tempfile::Builder::new()
            .prefix(&format!("{host}-{}-", std::process::id()))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&runs);
        let folder = made.map_err(|error| unwritable(&shown_path(&runs), &error))?;
        // On network file systems without locks no folder is taken for an abandoned one either.
        let lock = create(&folder.path().join(LOCK_FILE)).ok().filter(|file| file.try_lock().is_ok());
        Ok(Scratch { folder, _lock: lock })
    }

    /// Returns a path in the folder.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Opens the FIFO that the processes of an emulated run watch: when it closes, they end.
    pub(crate) fn lifeline(&self) -> Option<Lifeline> {
        let path = self.at(LIFELINE_FIFO);
        let _ = std::fs::remove_file(&path);
        // Without FIFOs, or on a full file system, the processes do not end with this one.
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).ok()?;
        let end = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        Some(Lifeline { path, _end: end })
    }
}

/// The writing end of a FIFO. The processes of a run are killed by the system when it closes (`lifeline.py`),
/// including by the end of this process.
pub(crate) struct Lifeline {
    pub(crate) path: PathBuf,
    _end: File,
}

/// Creates a file that only its owner can read.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Writes a file that only its owner can read.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    create(path)?.write_all(content)
}

/// Creates a folder that only its owner can enter, with its parents.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns the parent of the folders of runs.
fn runs_folder() -> anyhow::Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let candidates: Vec<PathBuf> = match variable(CACHE_VARIABLE) {
        Some(folder) => vec![std::path::absolute(folder)?],
        None => [
            variable("XDG_CACHE_HOME"),
            variable("HOME").map(|home| home.join(".cache")),
            variable("XDG_RUNTIME_DIR"),
        ]
        .into_iter()
        .flatten()
        // The XDG specification requires relative paths to be ignored.
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("oomph"))
        .collect(),
    };
    let mut reasons = Vec::new();
    for candidate in candidates {
        match private_runs_folder(&candidate) {
            Ok(folder) => return Ok(folder),
            Err(why) => reasons.push(format!("`{}`: {why}", shown_path(&candidate))),
        }
    }
    if reasons.is_empty() {
        reasons.push("neither HOME nor XDG_CACHE_HOME is set".to_owned());
    }
    Err(Failure::new(
        "no private folder for the files of the run",
        Some(reasons.join("; ")),
        Some("name a folder that only you can write to in OOMPH_CACHE_DIR"),
    )
    .into())
}

/// Creates the parent of the folders of runs in a cache. The error says why another user could write to it or
/// replace it.
fn private_runs_folder(cache: &Path) -> Result<PathBuf, String> {
    let why = |error: io::Error| error.to_string();
    create_folder(cache).map_err(why)?;
    // Users link their cache to a larger disk: what counts is the link's target.
    let cache = cache.canonicalize().map_err(why)?;
    let user = rustix::process::geteuid().as_raw();
    let trusted = [Some(0), Some(user), unmapped_user()];
    for folder in cache.ancestors() {
        let metadata = folder.metadata().map_err(why)?;
        if metadata.mode() & 0o002 != 0 {
            return Err(format!("`{}` is world-writable", shown_path(folder)));
        }
        // Its owner could replace our folder: `sudo` may keep the HOME of the calling user.
        if !trusted.contains(&Some(metadata.uid())) {
            return Err(format!("`{}` belongs to another user", shown_path(folder)));
        }
        // By the convention of most distributions, a group with the number of a user has no other members.
        let is_own_group = metadata.gid() == user && metadata.gid() == rustix::process::getegid().as_raw();
        if metadata.mode() & 0o020 != 0 && !is_own_group {
            return Err(format!("the group can write to `{}`", shown_path(folder)));
        }
    }
    let owned = |folder: &Path| {
        let metadata = folder.symlink_metadata().map_err(why)?;
        match metadata.is_dir() && metadata.uid() == user {
            true => Ok(metadata.mode()),
            false => Err(format!("`{}` is not a folder of this user", shown_path(folder))),
        }
    };
    if owned(&cache)? & 0o020 != 0 {
        return Err(format!("the group can write to `{}`", shown_path(cache)));
    }
    let runs = cache.join("run");
    create_folder(&runs).map_err(why)?;
    if owned(&runs)? & 0o777 != 0o700 {
        std::fs::set_permissions(&runs, Permissions::from_mode(0o700)).map_err(why)?;
    }
    Ok(runs)
}

/// Returns the user ID that the system shows for files of users unknown in this container, such as the host's
/// root.
fn unmapped_user() -> Option<u32> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let maps = read("/proc/self/uid_map")?;
    let is_complete = maps.split_whitespace().nth(2) == Some("4294967295");
    let overflow = read("/proc/sys/kernel/overflowuid")?.trim().parse().ok();
    overflow.filter(|_| !is_complete)
}

/// Removes the folders of killed runs of this machine. The home may be shared with other machines, whose
/// locks need not be visible here.
fn remove_abandoned(runs: &Path, host: &str) {
    let prefix = format!("{host}-");
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        let is_of_host = entry.file_name().to_string_lossy().starts_with(&prefix);
        let is_old = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = is_old.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MIN_STALE_AGE));
        if is_of_host && is_old && is_abandoned(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(folder: &Path) -> bool {
    match File::open(folder.join(LOCK_FILE)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_');
    let plain: String = name.trim().chars().filter(is_plain).take(64).collect();
    if plain.is_empty() { "localhost".to_owned() } else { plain }
}

/// Returns the error for a file or folder that cannot be written.
pub(crate) fn unwritable(what: &str, error: &io::Error) -> Failure {
    Failure::new(
        format!("`{what}` cannot be written"),
        Some(error.to_string()),
        Some("free some space, or choose another folder with `-o`, or with OOMPH_CACHE_DIR for the cache"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("it is there").mode() & 0o777
    }

    /// A folder that nobody else can write to, unlike the temporary one.
    fn home() -> TempDir {
        tempfile::tempdir_in(std::env::var_os("HOME").expect("a home")).expect("a folder")
    }

    #[test]
    fn a_cache_below_a_world_writable_folder_is_refused() {
        let shared = home();
        std::fs::set_permissions(shared.path(), Permissions::from_mode(0o1777)).expect("permissions");
        let why = private_runs_folder(&shared.path().join("cache")).expect_err("refused");
        assert!(why.contains("is world-writable"), "{why}");
        let link = home();
        let link = link.path().join("cache");
        std::os::unix::fs::symlink(shared.path(), &link).expect("a link");
        assert!(private_runs_folder(&link).is_err(), "a link leads to it");
    }

    #[test]
    fn a_cache_in_the_home_of_another_user_or_of_a_group_is_refused() {
        // Only root can change the owner of a folder; other users cannot test this.
        for (user, group, mode, expected) in [
            (Some(12345), None, 0o755, "belongs to another user"),
            (None, Some(12345), 0o770, "the group can write"),
        ] {
            let home = home();
            if std::os::unix::fs::chown(home.path(), user, group).is_err() {
                assert_ne!(rustix::process::geteuid().as_raw(), 0);
                return;
            }
            std::fs::set_permissions(home.path(), Permissions::from_mode(mode)).expect("permissions");
            let why = private_runs_folder(&home.path().join(".cache/oomph")).expect_err("refused");
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn folders_of_runs_are_private_even_where_they_were_not() {
        let home = home();
        let cache = home.path().join("cache");
        let runs = private_runs_folder(&cache).expect("a folder");
        assert_eq!(mode(&runs), 0o700);
        std::fs::set_permissions(&runs, Permissions::from_mode(0o755)).expect("permissions");
        assert_eq!(private_runs_folder(&cache).as_deref(), Ok(runs.as_path()));
        assert_eq!(mode(&runs), 0o700);
        std::fs::set_permissions(&cache, Permissions::from_mode(0o775)).expect("permissions");
        assert!(private_runs_folder(&cache).is_err_and(|why| why.contains("the group can write")));
    }

    #[test]
    fn a_link_in_place_of_the_folder_of_runs_is_refused() {
        let home = home();
        let cache = home.path().join("cache");
        let runs = private_runs_folder(&cache).expect("a folder");
        std::fs::remove_dir(&runs).expect("empty");
        std::os::unix::fs::symlink(home.path(), &runs).expect("a link");
        assert!(private_runs_folder(&cache).is_err_and(|why| why.contains("is not a folder of this user")));
    }

    #[test]
    fn only_abandoned_folders_of_this_machine_are_removed() {
        let runs = home();
        let old = SystemTime::now() - 2 * MIN_STALE_AGE;
        let made = |name: &str, modified: SystemTime| {
            let folder = runs.path().join(name);
            create_folder(&folder).expect("a folder");
            let lock = create(&folder.join(LOCK_FILE)).expect("a file");
            File::open(&folder).and_then(|folder| folder.set_modified(modified)).expect("a time");
            lock
        };
        let held = made("here-1-held", old);
        held.lock().expect("a lock");
        made("here-2-abandoned", old);
        made("here-3-new", SystemTime::now());
        made("elsewhere-4-abandoned", old);
        remove_abandoned(runs.path(), "here");
        let mut left: Vec<_> = std::fs::read_dir(runs.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        left.sort();
        assert_eq!(left, ["elsewhere-4-abandoned", "here-1-held", "here-3-new"]);
    }
}
