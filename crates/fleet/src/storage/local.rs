//! Files on this machine.

use super::{FileLocation, StoredFile};
use analysis::words::shown_path;
use failure::Failure;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// Folders below the one that the user named which are looked into: one per node, one per attempt.
const MAX_DEPTH: usize = 4;

/// Adds the files that an argument names.
pub(super) fn find(argument: &Path, files: &mut Vec<StoredFile>) -> anyhow::Result<()> {
    if argument.is_dir() {
        return Ok(in_folder(argument, MAX_DEPTH, files).map_err(|error| unreadable(argument, &error))?);
    }
    let text = argument.to_string_lossy();
    if argument.exists() || !text.contains(['*', '?', '[']) {
        let metadata = fs::metadata(argument).map_err(|error| unreadable(argument, &error))?;
        files.push(file(argument, metadata.len()));
        return Ok(());
    }
    let matching = glob::glob(&text).map_err(|error| {
        let hint = Some("quote it, or name the folder");
        Failure::new(format!("`{text}` is not a pattern"), Some(error.to_string()), hint)
    })?;
    let before = files.len();
    for path in matching.filter_map(Result::ok) {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                in_folder(&path, MAX_DEPTH, files).map_err(|error| unreadable(&path, &error))?;
            }
            Ok(metadata) => files.push(file(&path, metadata.len())),
            // Removed since it was listed.
            Err(_) => {}
        }
    }
    if files.len() == before {
        let failure = Failure::new(
            format!("no file matches `{text}`"),
            None,
            Some("check the path; the folder of the job works too"),
        );
        return Err(failure.refused(io::ErrorKind::NotFound).into());
    }
    Ok(())
}

fn in_folder(folder: &Path, depth: usize, files: &mut Vec<StoredFile>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() && depth > 0 => in_folder(&path, depth - 1, files)?,
            Ok(metadata) if metadata.is_file() => files.push(file(&path, metadata.len())),
            _ => {}
        }
    }
    Ok(())
}

fn file(path: &Path, bytes: u64) -> StoredFile {
    let name = path.to_string_lossy().into_owned();
    StoredFile { name, bytes, location: FileLocation::Local(path.to_owned()) }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "check the path; a folder, a glob or an address such as s3://… works too",
        _ => "check its permissions",
    };
    let what = format!("`{}` cannot be read", shown_path(path));
    Failure::new(what, Some(error.to_string()), Some(hint)).refused(error.kind())
}

/// Opens a regular file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    snapshot::open_file(path).map_err(|error| match error.refusal() {
        Some(kind) => io::Error::new(kind, error.cause),
        None => io::Error::other(error.cause),
    })
}

pub(super) fn read_range(path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::new();
    file.take(range.end - range.start).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn read_whole(path: &Path, limit: u64) -> Option<io::Result<Vec<u8>>> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > limit {
        return Some(Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large")));
    }
    Some(read_range(path, 0..limit))
}
