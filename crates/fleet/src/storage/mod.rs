//! Files of a fleet: folders and globs on this machine, and object stores.
//!
//! Everything else asks [`find`] for files and reads ranges of them; only this module knows where they are.

#[cfg(feature = "object-stores")]
mod aws_profile;
mod local;
#[cfg(feature = "object-stores")]
mod remote;
#[cfg(feature = "object-stores")]
mod runtime;

use analysis::words::printable;
use failure::Failure;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Most files that are listed: a mistyped bucket can have billions.
const MAX_FILES: usize = 2_000_000;

/// A file of a fleet.
#[derive(Clone, Debug)]
pub struct StoredFile {
    /// Path or address, without credentials.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    location: FileLocation,
}

#[derive(Clone, Debug)]
enum FileLocation {
    Local(PathBuf),
    #[cfg(feature = "object-stores")]
    Remote(remote::RemoteFile),
}

impl StoredFile {
    /// Returns the name without its folder.
    pub fn file_name(&self) -> &str {
        self.name.rsplit(['/', std::path::MAIN_SEPARATOR]).next().unwrap_or(&self.name)
    }

    /// Returns the folder that it is in, with everything up to the last separator.
    pub fn folder(&self) -> &str {
        &self.name[..self.name.len() - self.file_name().len()]
    }

    /// Returns a path that has its name, for code that looks at names only.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Returns the path of a file on this machine.
    pub fn local_path(&self) -> Option<&Path> {
        match &self.location {
            FileLocation::Local(path) => Some(path),
            #[cfg(feature = "object-stores")]
            FileLocation::Remote(_) => None,
        }
    }

    /// Reads a range of its bytes.
    pub(crate) fn read_range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        match &self.location {
            FileLocation::Local(path) => local::read_range(path, range),
            #[cfg(feature = "object-stores")]
            FileLocation::Remote(file) => file.read_range(range),
        }
    }

    /// Opens it for reading from its beginning.
    pub(crate) fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        match &self.location {
            FileLocation::Local(path) => Ok(Box::new(local::open(path)?)),
            #[cfg(feature = "object-stores")]
            FileLocation::Remote(file) => Ok(Box::new(file.open(self.bytes))),
        }
    }

    /// Reads a file next to it, if there is one and it has at most `limit` bytes.
    pub(crate) fn read_sibling(&self, file_name: &str, limit: u64) -> Option<io::Result<Vec<u8>>> {
        match &self.location {
            FileLocation::Local(path) => local::read_whole(&path.with_file_name(file_name), limit),
            #[cfg(feature = "object-stores")]
            FileLocation::Remote(file) => file.read_sibling(file_name, limit),
        }
    }
}

/// Returns the files that the arguments name: a folder or a prefix names all files below it. They are sorted,
/// with `rank2` before `rank10`, and listed once.
pub(crate) fn find(arguments: &[String]) -> anyhow::Result<Vec<StoredFile>> {
    let mut files = Vec::new();
    for argument in arguments {
        match scheme(argument) {
            None => local::find(Path::new(argument), &mut files)?,
            Some("file") => local::find(Path::new(&argument["file://".len()..]), &mut files)?,
            #[cfg(feature = "object-stores")]
            Some(_) => remote::find(argument, &mut files)?,
            #[cfg(not(feature = "object-stores"))]
            Some(scheme) => {
                return Err(Failure::new(
                    format!("`{scheme}://` addresses cannot be read"),
                    Some("this oomph was built without the feature `object-stores`".to_owned()),
                    Some("copy the files to this machine, or build oomph with its default features"),
                )
                .into());
            }
        }
        if files.len() > MAX_FILES {
            let what = format!("`{}` has more than {MAX_FILES} files", without_credentials(argument));
            return Err(Failure::new(what, None, Some("name the folder of one job")).into());
        }
    }
    files.sort_by_cached_key(|file| (inputs::natural_key(file.as_path()), file.name.clone()));
    files.dedup_by(|a, b| a.name == b.name);
    Ok(files)
}

/// Returns the scheme of an address; `None` for a path.
fn scheme(argument: &str) -> Option<&str> {
    let (scheme, _) = argument.split_once("://")?;
    let is_scheme = scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_scheme.then_some(scheme)
}

/// Returns an address without user, password and query, on one line.
pub fn without_credentials(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return printable(address).into_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
    // `abfss://container@account/…` has a container there, not a user.
    let host = if scheme.starts_with("http") { host.rsplit('@').next().unwrap_or(host) } else { host };
    let path = path.map(|path| format!("/{path}")).unwrap_or_default();
    printable(&format!("{scheme}://{host}{path}")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_secrets() {
        for (address, shown) in [
            (
                "https://user:secret@host/run/rank0.pickle?X-Amz-Signature=abc",
                "https://host/run/rank0.pickle",
            ),
            ("s3://bucket/run", "s3://bucket/run"),
            (
                "abfss://data@account.dfs.core.windows.net/run",
                "abfss://data@account.dfs.core.windows.net/run",
            ),
            ("http://host:9000?token=x", "http://host:9000"),
            ("folder/with?question", "folder/with?question"),
        ] {
            assert_eq!(without_credentials(address), shown);
        }
    }

    #[test]
    fn drive_letters_are_not_schemes() {
        assert_eq!(scheme("C://runs"), None);
        assert_eq!(scheme("s3://bucket"), Some("s3"));
        assert_eq!(scheme("runs/rank0.pickle"), None);
    }
}
