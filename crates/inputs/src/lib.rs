//! Loads snapshots from the arguments of a command: files, folders, patterns, standard input.
//!
//! [`expand`] finds the files, [`load`] reads one with its sidecar files.
//!
//! ```
//! use std::path::PathBuf;
//!
//! let files = inputs::expand(&[PathBuf::from("rank0.pickle")])?;
//! assert_eq!(files, [PathBuf::from("rank0.pickle")], "a file is not opened before it is loaded");
//! assert!(inputs::expand(&[PathBuf::from("no-such-folder/*.pickle")]).is_err());
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bundle;
mod earlier_settings;
mod remark;

pub use bundle::{BUNDLE_MANIFEST, Bundle};
pub use remark::run_remark;

use analysis::Device;
use analysis::words::shown_path;
use failure::Failure;
use recording::{FileError, Recording, RunInfo, Sidecars, UnreadableFile};
use snapshot::{ErrorKind, Snapshot};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Receiver of messages and progress. Only the command line prints.
#[derive(Clone, Copy, Debug)]
pub struct ProgressReporter {
    /// Shows one line of text.
    pub say: fn(&str),
    /// Wraps a file of this length and name, to show how much of it has been read.
    pub reading: fn(File, u64, &str) -> Box<dyn Read + Send>,
    /// Starts to show the progress of a task with a number of steps. Call the returned function after each.
    pub steps: fn(&'static str, usize) -> Box<dyn Fn() + Send + Sync>,
    /// Starts to show the progress of a task with a number of bytes: how many are done, the rate, the time
    /// left. Call the returned function with each amount.
    pub bytes: fn(&'static str, u64) -> AdvanceBytes,
}

/// Counts more bytes as done, from any thread.
pub type AdvanceBytes = Box<dyn Fn(u64) + Send + Sync>;

impl ProgressReporter {
    /// Reporter that shows nothing.
    pub const SILENT: ProgressReporter = ProgressReporter {
        say: |_| (),
        reading: |file, _, _| Box::new(file),
        steps: |_, _| Box::new(|| ()),
        bytes: |_, _| Box::new(|_| ()),
    };
}

/// A snapshot with its name and sidecar files.
pub struct Input {
    /// Path as given by the user.
    pub name: String,
    /// Whether its name can be given to a command: not standard input.
    pub is_file: bool,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Contents of the sidecar files; empty if it is not part of a recording.
    pub recording: Recording,
    /// How the run ended, if it is part of a recording.
    pub run: Option<RunInfo>,
}

impl Input {
    /// Returns the devices of the snapshot, with what the sidecar files say about them.
    pub fn devices(&self) -> Vec<Device<'_>> {
        analysis::recorded_devices(&self.snapshot, &self.recording)
    }
}

/// Returns the files that the arguments name: a folder names the snapshots in it.
pub fn expand(arguments: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            files.extend(in_folder(argument)?);
        } else if let Some(bundle) = Bundle::open(argument) {
            files.extend(bundle.snapshots()?);
        } else if argument.exists() || !is_pattern(argument) {
            files.push(argument.clone());
        } else {
            files.extend(matching(argument)?);
        }
    }
    Ok(files)
}

/// Returns whether an argument is a pattern that the shell has not expanded.
fn is_pattern(argument: &Path) -> bool {
    argument.to_string_lossy().contains(['*', '?', '['])
}

fn matching(pattern: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = pattern.to_string_lossy();
    let found = glob::glob(&text).map_err(|error| {
        Failure::new(
            format!("`{text}` is not a pattern"),
            Some(error.to_string()),
            Some("quote it, or name the files"),
        )
    })?;
    let mut files: Vec<PathBuf> = found.filter_map(Result::ok).filter(|path| path.is_file()).collect();
    if files.is_empty() {
        let what = format!("no file matches `{text}`");
        let failure = Failure::new(what, None, Some("check the path; a folder works too"));
        return Err(failure.refused(io::ErrorKind::NotFound).into());
    }
    files.sort_by_key(|path| natural_key(path));
    Ok(files)
}

fn in_folder(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unreadable = |error: io::Error| {
        Failure::new(
            format!("the folder `{}` cannot be read", shown_path(folder)),
            Some(error.to_string()),
            Some("check its permissions"),
        )
        .refused(error.kind())
    };
    let mut files = Vec::new();
    let mut others = 0;
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_file() && looks_like_a_snapshot(&path) {
            files.push(path);
        } else {
            others += 1;
        }
    }
    if files.is_empty() {
        return Err(Failure::new(
            format!("the folder `{}` has no snapshots", shown_path(folder)),
            Some(format!(
                "looked for *.pickle, *.pkl, *.pt and *.json, also with .gz, .xz or .zst; found \
                 {others} other entries"
            )),
            Some("name the file itself if it has another ending"),
        )
        .refused(io::ErrorKind::NotFound)
        .into());
    }
    // Beside pickles, JSON is something about them: labels, settings, a recording's own notes.
    if files.iter().any(|path| !is_json(path)) {
        files.retain(|path| !is_json(path));
    }
    files.sort_by_key(|path| natural_key(path));
    Ok(files)
}

/// Returns whether a file is JSON, by its name.
pub fn is_json(path: &Path) -> bool {
    plain_name(path).ends_with(".json")
}

/// The name in small letters, without the ending of a compressed file.
fn plain_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let plain = ["gz", "xz", "zst"].iter().find_map(|packed| name.strip_suffix(packed)?.strip_suffix('.'));
    plain.unwrap_or(&name).to_owned()
}

/// Returns whether a file may be a snapshot, by its name.
pub fn looks_like_a_snapshot(path: &Path) -> bool {
    let name = plain_name(path);
    ["pickle", "pkl", "pt", "json"]
        .iter()
        .any(|ending| name.strip_suffix(ending).is_some_and(|stem| stem.ends_with('.')))
}

/// Returns a sort key that orders `rank2` before `rank10`.
pub fn natural_key(path: &Path) -> Vec<(String, u64)> {
    let name = path.to_string_lossy();
    let mut parts = Vec::new();
    let mut rest: &str = &name;
    while !rest.is_empty() {
        let text_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, after) = rest.split_at(text_end);
        let digits_end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (digits, after) = after.split_at(digits_end);
        parts.push((text.to_owned(), digits.parse().unwrap_or(u64::MAX)));
        rest = after;
    }
    parts
}

/// Reads a snapshot and its sidecar files; `-` is standard input.
pub fn load(path: &Path, progress: &ProgressReporter) -> anyhow::Result<Input> {
    if let Some(bundle) = path.parent().and_then(Bundle::open) {
        return bundle.load(path, progress);
    }
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { path.to_string_lossy().into_owned() };
    let fail = |error: snapshot::Error| anyhow::Error::from(unreadable_snapshot(&name, &error));
    let mut written = None;
    let snapshot = if is_stdin {
        if io::stdin().is_terminal() {
            (progress.say)("reading a snapshot from standard input …");
        }
        snapshot::read(io::stdin()).map_err(fail)?
    } else {
        let (file, length) = open(path).map_err(fail)?;
        written = file.metadata().and_then(|about| about.modified()).ok();
        snapshot::read_sized((progress.reading)(file, length, &name), length).map_err(fail)?
    };
    let sidecars = if is_stdin { Sidecars::default() } else { Sidecars::read(path) };
    let mut input = joined(name, !is_stdin, snapshot, sidecars, progress);
    let changed = written.and_then(|written| source::changed_since(&input.snapshot, written));
    input.snapshot.caveats.extend(changed);
    Ok(input)
}

/// Reads a snapshot that is not on this machine's disk, with its sidecar files: `stream` has its bytes, and
/// `read_sidecar` returns those of a file next to it, or `None` where there is no such file.
pub fn load_stream(
    path: &Path,
    stream: impl Read + Send,
    length: u64,
    read_sidecar: impl FnMut(&Path) -> Option<Result<Vec<u8>, FileError>>,
    progress: &ProgressReporter,
) -> anyhow::Result<Input> {
    let name = path.to_string_lossy().into_owned();
    let snapshot = snapshot::read_sized(stream, length)
        .map_err(|error| anyhow::Error::from(unreadable_snapshot(&name, &error)))?;
    let sidecars = Sidecars::read_with(path, read_sidecar);
    Ok(joined(name, true, snapshot, sidecars, progress))
}

/// Joins a snapshot with its sidecar files.
fn joined(
    name: String,
    is_file: bool,
    mut snapshot: Snapshot,
    sidecars: Sidecars,
    progress: &ProgressReporter,
) -> Input {
    sidecars.unreadable.iter().for_each(|file| (progress.say)(&unreadable(file)));
    let Sidecars { mut recording, run, .. } = sidecars;
    if let Some(host) = &mut recording.host {
        host.join(&mut snapshot);
    }
    analysis::fill_in_repeated_steps(&mut snapshot, &recording);
    earlier_settings::fill_in(&mut snapshot, &recording);
    Input { name, is_file, snapshot, recording, run }
}

/// The error for a file that is not a snapshot, with the command that takes such a file.
fn unreadable_snapshot(name: &str, error: &snapshot::Error) -> Failure {
    let failure = Failure::reading(name, error);
    let is_foreign = matches!(error.kind, ErrorKind::NotASnapshot | ErrorKind::Malformed);
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    match ending.filter(|_| is_foreign) {
        Some("log" | "txt" | "out" | "err") => {
            failure.hinting(format!("for the messages in a log: `oomph explain {name}`"))
        }
        Some("py") => failure.hinting(format!("to record a program: `oomph run {name}`")),
        _ => failure,
    }
}

fn unreadable(UnreadableFile { path, error, part }: &UnreadableFile) -> String {
    let so = part.consequence().map(|so| format!("; {so}")).unwrap_or_default();
    format!("note: `{}` cannot be read ({error}){so}", shown_path(path))
}

fn open(path: &Path) -> Result<(File, u64), snapshot::Error> {
    let file = snapshot::open_file(path)?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    Ok((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_numeric_order() {
        let mut names = vec!["r/rank10.pickle", "r/rank2.pickle", "r/rank1.pickle"];
        names.sort_by_key(|name| natural_key(Path::new(name)));
        assert_eq!(names, ["r/rank1.pickle", "r/rank2.pickle", "r/rank10.pickle"]);
    }

    #[test]
    fn snapshots_are_recognized_by_their_suffixes() {
        for (name, expected) in [
            ("a.pickle", true),
            ("a.PICKLE.XZ", true),
            ("rank0.pt.zst", true),
            ("dump.json.gz", true),
            ("a.truth.json", true),
            ("notes.txt", false),
            ("pickle", false),
            ("a.tar.gz", false),
        ] {
            assert_eq!(looks_like_a_snapshot(Path::new(name)), expected, "{name}");
        }
    }
}
