//! Systems on which programs cannot be run: [`check`] fails before anything else here is called.

use crate::attach::{AttachRequest, AttachedRecording};
use failure::Failure;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::MutexGuard;
use tempfile::TempDir;

/// Fails, and says what to do instead.
pub(crate) fn check() -> Result<(), Failure> {
    let system = match std::env::consts::OS {
        "macos" => "macOS",
        "windows" => "Windows",
        other => other,
    };
    Err(Failure::new(
        "oomph can run programs only on Linux",
        Some(format!(
            "this is {system}; the recorder that `oomph run` puts into a program, and the CUDA emulator, \
             are made for Linux"
        )),
        Some(
            "run it on Linux (WSL 2 will do) and open the recording here with `oomph report` or \
             `oomph view`; or call `oomph.record()` in the program",
        ),
    ))
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn exit_status(_raw: i32) -> ExitStatus {
    ExitStatus::default()
}

pub(crate) fn create_private(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn create_new_private_folder(_path: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn create_private_folder(_path: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn private_folder_in(_parent: &Path, _prefix: &str) -> io::Result<TempDir> {
    unsupported()
}

pub(crate) fn private_runs_folder(_cache: &Path) -> Result<PathBuf, String> {
    Err("not supported on this system".to_owned())
}

pub(crate) fn create_fifo(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn link(_target: &Path, _link: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn is_own(_metadata: &Metadata) -> bool {
    false
}

pub(crate) fn file_number(_metadata: &Metadata) -> u64 {
    0
}

pub(crate) fn end_signal(_status: ExitStatus) -> Option<i32> {
    None
}

pub(crate) fn shell(command: &OsStr) -> Command {
    Command::new(command)
}

pub(crate) fn pass_signals_on(
    _programs: impl Fn() -> MutexGuard<'static, BTreeSet<u32>> + Send + 'static,
    _stop: impl Fn(i32) -> Option<i32> + Send + 'static,
) -> io::Result<()> {
    Ok(())
}

pub(crate) fn note_stop_signals(_stop: impl Fn(i32) -> Option<i32> + Send + 'static) -> io::Result<()> {
    Ok(())
}

pub(crate) fn attach(_request: &AttachRequest<'_>) -> anyhow::Result<AttachedRecording> {
    Err(check().err().unwrap_or_else(|| Failure::new("not supported on this system", None, None)).into())
}
