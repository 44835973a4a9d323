//! The private folder of a run in the user's cache, with the files that its processes load and report to.
//!
//! Its path is in the environment of every process of the run (PYTHONPATH, LD_LIBRARY_PATH), and a process
//! that outlives the run keeps these variables. Anyone who could create the path later would run code as
//! this user. So only its owner can write to the parent folder, and no world-writable folder such as `/tmp`
//! is above it.

use crate::system;
use analysis::words::shown_path;
use failure::Failure;
use std::fs::File;
use std::io::{self, Write};
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
        crate::check_system()?;
        let runs = runs_folder()?;
        let host = host();
        remove_abandoned(&runs, &host);
        let made = system::private_folder_in(&runs, &format!("{host}-{}-", std::process::id()));
        let folder = made.map_err(|error| unwritable(&shown_path(&runs), &error))?;
        // On network file systems without locks no folder is taken for an abandoned one either.
        let lock = system::create_private(&folder.path().join(LOCK_FILE))
            .ok()
            .filter(|file| file.try_lock().is_ok());
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
        let end = system::create_fifo(&path).ok()?;
        Some(Lifeline { path, _end: end })
    }
}

/// The writing end of a FIFO. The processes of a run are killed by the system when it closes (`lifeline.py`),
/// including by the end of this process.
pub(crate) struct Lifeline {
    pub(crate) path: PathBuf,
    _end: File,
}

/// Writes a file that only its owner can read.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    system::create_private(path)?.write_all(content)
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
        match system::private_runs_folder(&candidate) {
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

    #[test]
    fn only_abandoned_folders_of_this_machine_are_removed() {
        let runs = tempfile::tempdir().expect("a folder");
        let old = SystemTime::now() - 2 * MIN_STALE_AGE;
        let made = |name: &str, modified: SystemTime| {
            let folder = runs.path().join(name);
            std::fs::create_dir(&folder).expect("a folder");
            let lock = File::create(folder.join(LOCK_FILE)).expect("a file");
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
