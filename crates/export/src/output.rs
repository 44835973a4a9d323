//! The file or folder of an export: checked before anything is read, and replaced only by complete files.

use crate::ExportFormat;
use analysis::words::shown_path;
use failure::Failure;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The file or folder that the user named with `-o`.
pub struct ExportTarget {
    path: PathBuf,
    is_folder: bool,
}

impl ExportTarget {
    /// Checks the path. Fails if it is also the `input`, or if `format` cannot be written to it.
    pub fn new(path: PathBuf, format: ExportFormat, input: &Path) -> Result<ExportTarget, Failure> {
        let is_folder = matches!(format, ExportFormat::Parquet | ExportFormat::Arrow);
        let name = shown_path(&path);
        if path == Path::new("-") {
            return Err(Failure::new(
                "an export cannot be written to standard output",
                Some("`-o -` does not name a file".to_owned()),
                Some("name a file, or for parquet and arrow a folder"),
            ));
        }
        if is_folder && path.exists() && !path.is_dir() {
            return Err(Failure::new(
                format!("`{name}` is a file, not a folder"),
                Some("parquet and arrow write one file per table into a folder".to_owned()),
                Some("name a folder that exists or can be created, as in `-o tables/`"),
            ));
        }
        if !is_folder && path.is_dir() {
            return Err(Failure::new(
                format!("`{name}` is a folder"),
                Some("this format is written to one file".to_owned()),
                Some("name a file in it"),
            ));
        }
        if !is_folder && path.exists() && !path.is_file() {
            return Err(Failure::new(
                format!("`{name}` is not a regular file"),
                Some("an export replaces the file of that name, and must not replace a device".to_owned()),
                Some("name a file on disk"),
            ));
        }
        if let (Ok(from), Ok(to)) = (input.canonicalize(), path.canonicalize())
            && from == to
        {
            return Err(Failure::new(
                format!("`{name}` is also the input"),
                Some("the export would replace your recording".to_owned()),
                Some("give the output another name"),
            ));
        }
        Ok(ExportTarget { path, is_folder })
    }

    /// Returns the file to write. For a link, this is its target.
    pub(super) fn file(&self) -> PathBuf {
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone())
    }

    /// Returns the folder to write into; creates it if it does not exist.
    pub(super) fn folder(&self) -> Result<&Path, Failure> {
        fs::create_dir_all(&self.path).map_err(|error| {
            Failure::new(
                format!("the folder `{}` cannot be created", shown_path(&self.path)),
                Some(error.to_string()),
                Some("choose a folder that you may write to"),
            )
        })?;
        Ok(&self.path)
    }
}

impl std::fmt::Display for ExportTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = shown_path(&self.path);
        let slash = if self.is_folder && !name.ends_with('/') { "/" } else { "" };
        write!(f, "{name}{slash}")
    }
}

/// A file under a temporary name next to its target. It is renamed to the target when it is complete, and
/// removed if anything fails before.
pub(super) struct Draft {
    target: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl Draft {
    pub(super) fn new(target: &Path) -> Result<Draft, Failure> {
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.partial", std::process::id()));
        let temporary = target.with_file_name(name);
        let file = File::create(&temporary).map_err(|error| unwritable(target, &error))?;
        Ok(Draft { target: target.to_owned(), temporary, file })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the temporary path, for writers that open files themselves.
    pub(super) fn path(&self) -> &Path {
        &self.temporary
    }

    pub(super) fn keep(self) -> anyhow::Result<()> {
        fs::rename(&self.temporary, &self.target).map_err(|error| unwritable(&self.target, &error).into())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After `keep` the file no longer has this name; after a failure an error here does not matter.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn unwritable(target: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "create its folder first, with `mkdir -p`",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "choose a folder that you may write to"
        }
        _ => "check the path and the disk that it is on",
    };
    Failure::new(format!("`{}` cannot be written", shown_path(target)), Some(error.to_string()), Some(hint))
}
