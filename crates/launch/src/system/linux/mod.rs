//! Linux.

mod attach;
mod group_witness;

use analysis::words::shown_path;
pub(crate) use attach::attach;
use failure::Failure;
use group_witness::GroupWitness;
use rustix::fs::{FileType, Mode};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Signals, SignalsInfo};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::MutexGuard;
use tempfile::TempDir;

/// Succeeds: programs can be run here.
pub(crate) fn check() -> Result<(), Failure> {
    Ok(())
}

/// Returns the status of a process as `waitpid` gives it.
pub(crate) fn exit_status(raw: i32) -> ExitStatus {
    ExitStatus::from_raw(raw)
}

/// Creates a file that only its owner can read.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Creates a folder that only its owner can enter. Fails if it exists.
pub(crate) fn create_new_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a folder that only its owner can enter, with its parents.
pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a folder that only its owner can enter, with a new name.
pub(crate) fn private_folder_in(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    let mode = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(prefix).permissions(mode).tempdir_in(parent)
}

/// Creates a FIFO that only its owner can use, and opens it without waiting for the other end.
pub(crate) fn create_fifo(path: &Path) -> io::Result<File> {
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    OpenOptions::new().read(true).write(true).open(path)
}

/// Creates a symbolic link.
pub(crate) fn link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Returns whether a file belongs to the user of this process.
pub(crate) fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Returns a number that no other file of the file system has at the same time.
pub(crate) fn file_number(metadata: &Metadata) -> u64 {
    metadata.ino()
}

/// Returns the signal that ended a process, if one did.
pub(crate) fn end_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Returns a command for the shell, in a process group of its own.
pub(crate) fn shell(command: &OsStr) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).process_group(0);
    shell
}

/// Signals that are meant for the program.
const PASSED_ON: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Passes signals on to the programs that run, and keeps this process alive until they have written their
/// recordings. What the whole process group receives has reached the programs. A second Ctrl-C ends this
/// process at once.
///
/// `stop` is called with each signal that asks this process to stop, and returns the first one that did, if
/// that was an earlier one.
pub(crate) fn pass_signals_on(
    programs: impl Fn() -> MutexGuard<'static, BTreeSet<u32>> + Send + 'static,
    stop: impl Fn(i32) -> Option<i32> + Send + 'static,
) -> io::Result<()> {
    let mut signals = SignalsInfo::<WithOrigin>::new(PASSED_ON)?;
    let witness = GroupWitness::start(&PASSED_ON);
    std::thread::spawn(move || {
        for origin in signals.forever() {
            let signal = origin.signal;
            let is_stop = matches!(signal, SIGINT | SIGTERM | SIGHUP);
            let before = if is_stop { stop(signal) } else { None };
            // What has no sender comes from a terminal, which sends it to all.
            let is_for_all = witness.as_ref().is_some_and(|witness| witness.has_received(signal));
            let programs = programs();
            if programs.is_empty() || (signal == SIGINT && before == Some(SIGINT)) {
                std::process::exit(128 + signal);
            }
            if is_for_all || origin.process.is_none() {
                continue;
            }
            for &program in programs.iter() {
                let pid = i32::try_from(program).ok().and_then(Pid::from_raw);
                if let (Some(signal), Some(pid)) = (Signal::from_named_raw(signal), pid) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        }
    });
    Ok(())
}

/// Calls `stop` with each signal that asks this process to stop. It returns the first one that did, if that
/// was an earlier one: then this process ends at once.
pub(crate) fn note_stop_signals(stop: impl Fn(i32) -> Option<i32> + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if stop(signal).is_some() {
                std::process::exit(128 + signal);
            }
        }
    });
    Ok(())
}

/// Creates the parent of the folders of runs in a cache. The error says why another user could write to it or
/// replace it.
pub(crate) fn private_runs_folder(cache: &Path) -> Result<PathBuf, String> {
    let why = |error: io::Error| error.to_string();
    create_private_folder(cache).map_err(why)?;
    // Users link their cache to a larger disk: what counts is the link's target.
    let cache = cache.canonicalize().map_err(why)?;
    // The folders of PYTHONPATH and LD_LIBRARY_PATH are separated by colons, which cannot be quoted.
    if cache.as_os_str().as_encoded_bytes().contains(&b':') {
        return Err("PYTHONPATH cannot contain a path with a colon".to_owned());
    }
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
    create_private_folder(&runs).map_err(why)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
