//! Reads the snapshots in a file that `oomph bundle` wrote: `bundle.zip/rank0.pickle` names one of them.

use crate::{Input, ProgressReporter, joined};
use analysis::words::shown_path;
use failure::Failure;
use recording::{FileError, Sidecars};
use snapshot::Bytes;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use zip::ZipArchive;
use zip::result::ZipError;

/// Name of the file that makes a zip a bundle.
pub const BUNDLE_MANIFEST: &str = "bundle.json";

/// Largest file of a bundle that is read, in bytes after decompression.
const MAX_MEMBER_BYTES: u64 = 4 << 30;

/// A file that `oomph bundle` wrote.
pub struct Bundle {
    path: PathBuf,
    archive: ZipArchive<File>,
}

impl Bundle {
    /// Opens a bundle; `None` if the file is something else.
    pub fn open(path: &Path) -> Option<Bundle> {
        if !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip")) || !path.is_file() {
            return None;
        }
        let archive = ZipArchive::new(File::open(path).ok()?).ok()?;
        archive.index_for_name(BUNDLE_MANIFEST)?;
        Some(Bundle { path: path.to_owned(), archive })
    }

    /// Returns the paths of its snapshots, below the path of the bundle.
    pub fn snapshots(&self) -> Result<Vec<PathBuf>, Failure> {
        let names = self.archive.file_names().filter_map(Result::ok);
        let is_snapshot = |name: &str| {
            let path = Path::new(name);
            !name.contains(['/', '\\']) && crate::looks_like_a_snapshot(path) && !crate::is_json(path)
        };
        let mut paths: Vec<PathBuf> =
            names.filter(|name| is_snapshot(name)).map(|name| self.path.join(&*name)).collect();
        if paths.is_empty() {
            let what = format!("the bundle `{}` has no snapshots", shown_path(&self.path));
            return Err(Failure::new(what, None, None).refused(io::ErrorKind::NotFound));
        }
        paths.sort_by_key(|path| crate::natural_key(path));
        Ok(paths)
    }

    /// Reads one of its snapshots with its sidecar files.
    pub(crate) fn load(mut self, path: &Path, progress: &ProgressReporter) -> anyhow::Result<Input> {
        let name = path.to_string_lossy().into_owned();
        let bytes = match self.read(path) {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                let what = format!("`{name}` cannot be read");
                return Err(Failure::new(what, Some(error.to_string()), None).into());
            }
            None => {
                let failure = Failure::new(format!("`{name}` is not in the bundle"), None, None);
                return Err(failure.refused(io::ErrorKind::NotFound).into());
            }
        };
        let snapshot = snapshot::read(&bytes[..])
            .map_err(|error| anyhow::Error::from(Failure::reading(&name, &error)))?;
        let sidecars = Sidecars::read_with(path, |path| self.read(path));
        Ok(joined(name, true, snapshot, sidecars, progress))
    }

    /// Returns the bytes of a file in the bundle; `None` if there is none of this name.
    fn read(&mut self, path: &Path) -> Option<Result<Vec<u8>, FileError>> {
        let name = path.file_name()?.to_str()?;
        let member = match self.archive.by_name(name) {
            Ok(member) => member,
            Err(ZipError::FileNotFound) => return None,
            Err(error) => return Some(Err(FileError::from(io::Error::other(error)))),
        };
        // The size in the archive is a claim; the buffer grows with what arrives.
        let mut bytes = Vec::new();
        Some(match member.take(MAX_MEMBER_BYTES + 1).read_to_end(&mut bytes) {
            Ok(read) if read as u64 > MAX_MEMBER_BYTES => Err(FileError::TooLarge(Bytes(read as u64))),
            Ok(_) => Ok(bytes),
            Err(error) => Err(FileError::from(error)),
        })
    }
}
