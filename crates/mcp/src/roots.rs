//! Which files a client may name: those below the folders that the user allows, links followed to their end.

use crate::answers::{CallError, NextCall};
use crate::recordings;
use analysis::words::{printable, shown_path};
use failure::Failure;
use recording::Sidecars;
use serde_json::json;
use std::path::{Component, Path, PathBuf};

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 30;
/// More snapshots than this are a job for `oomph fleet`.
pub(crate) const MAX_SNAPSHOTS: usize = 16;
/// Recordings that an error names.
const NAMED_RECORDINGS: usize = 5;

/// The folders whose files may be read, without links in their paths.
#[derive(Clone, Debug)]
pub(crate) struct AllowedRoots {
    folders: Vec<PathBuf>,
}

/// A file or folder below a root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AllowedPath {
    /// The root.
    pub(crate) root: PathBuf,
    /// Path from the root, `.` for the root itself.
    pub(crate) inner: PathBuf,
}

/// Why a path cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathProblem {
    /// It is not below a root.
    Outside,
    /// It is missing, or of a wrong kind.
    Unreadable(&'static str),
}

impl AllowedPath {
    /// Returns the whole path.
    pub(crate) fn whole(&self) -> PathBuf {
        self.root.join(&self.inner)
    }
}

impl AllowedRoots {
    /// Resolves the folders.
    pub(crate) fn new(folders: &[PathBuf]) -> Result<AllowedRoots, Failure> {
        let resolve = |folder: &PathBuf| {
            let wrong = |cause: String| {
                let what = format!("`{}` cannot be a root", shown_path(folder));
                Failure::new(what, Some(cause), Some("name folders that exist: `oomph mcp --root DIR`"))
            };
            let resolved = folder.canonicalize().map_err(|error| wrong(error.to_string()))?;
            if resolved.is_dir() { Ok(resolved) } else { Err(wrong("it is not a folder".to_owned())) }
        };
        Ok(AllowedRoots { folders: folders.iter().map(resolve).collect::<Result<_, _>>()? })
    }

    /// Returns the folders.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Returns how answers name a path: from the root if there is only one.
    pub(crate) fn shown(&self, path: &AllowedPath) -> String {
        match self.folders.len() {
            1 => shown_path(&path.inner),
            _ => shown_path(path.whole()),
        }
    }

    /// Returns the file or folder that a client names.
    pub(crate) fn find(&self, given: &str) -> Result<AllowedPath, CallError> {
        self.located(given).map_err(|problem| match problem {
            PathProblem::Outside => {
                let roots: Vec<String> = self.folders.iter().map(shown_path).collect();
                let what = format!("`{}` is not below a root of this server", printable(given));
                let cause = format!("only files below {} may be read", roots.join(", "));
                CallError::new(&what, &cause).then(list(None))
            }
            PathProblem::Unreadable(cause) => self.missing(given, cause),
        })
    }

    /// Looks up a path: a relative one in each root.
    pub(crate) fn located(&self, given: &str) -> Result<AllowedPath, PathProblem> {
        let path = Path::new(given);
        let mut problem = match path.is_absolute() {
            true => PathProblem::Outside,
            false => PathProblem::Unreadable("there is no such file or folder"),
        };
        for root in &self.folders {
            let Some((resolved, member)) = resolved(&root.join(path)) else { continue };
            let Some(root) = self.folders.iter().find(|root| resolved.starts_with(root)) else {
                problem = PathProblem::Outside;
                continue;
            };
            let metadata = resolved.metadata().map_err(|_| PathProblem::Unreadable("it cannot be opened"))?;
            if !metadata.is_dir() && !metadata.is_file() {
                return Err(PathProblem::Unreadable("it is neither a regular file nor a folder"));
            }
            if metadata.len() > MAX_FILE_BYTES && metadata.is_file() {
                return Err(PathProblem::Unreadable("it is larger than 64 GiB"));
            }
            let inner = resolved.strip_prefix(root).unwrap_or(&resolved);
            let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
            let inner = member.map_or_else(|| inner.to_owned(), |member| inner.join(member));
            return Ok(AllowedPath { root: root.clone(), inner });
        }
        Err(problem)
    }

    /// Returns a recording that a client names, after a look at every file that reading it opens. The result
    /// is the path with its snapshots.
    pub(crate) fn find_recording(&self, given: &str) -> Result<(AllowedPath, Vec<PathBuf>), CallError> {
        let found = self.find(given)?;
        let whole = found.whole();
        let files = inputs::expand(std::slice::from_ref(&whole)).map_err(|error| {
            let failure = Failure::from(error);
            let inside = whole.is_dir().then_some(given);
            CallError::from_failure(&failure).then(list(inside))
        })?;
        if files.len() > MAX_SNAPSHOTS {
            let what = format!("`{}` has {} snapshots", printable(given), files.len());
            let cause = format!("at most {MAX_SNAPSHOTS} are read in one call");
            return Err(CallError::new(&what, &cause)
                .hinting("name one of them; `oomph fleet DIR` in a shell compares thousands of ranks")
                .then(list(Some(given))));
        }
        let is_member = |file: &Path| file.parent().is_some_and(Path::is_file);
        let sidecars = files.iter().flat_map(|file| Sidecars::files(file));
        for file in files.iter().cloned().chain(sidecars).filter(|file| !is_member(file)) {
            let is_allowed = resolved(&file).is_some_and(|(resolved, _)| {
                resolved.is_file() && self.folders.iter().any(|root| resolved.starts_with(root))
            });
            if !is_allowed {
                let what = format!("`{}` cannot be read", printable(given));
                let cause = format!("`{}` leads out of the roots of this server", shown_path(&file));
                return Err(CallError::new(&what, &cause).then(list(None)));
            }
        }
        Ok((found, files))
    }

    fn missing(&self, given: &str, cause: &str) -> CallError {
        let found = recordings::search(self, None).recordings;
        let names: Vec<String> =
            found.iter().take(NAMED_RECORDINGS).map(|found| format!("`{}`", found.path)).collect();
        let error = CallError::new(&format!("`{}` cannot be read", printable(given)), cause);
        match names.is_empty() {
            true => error.hinting("no recordings or logs are below the roots of this server"),
            false => error.hinting(&format!("there are {} files, such as {}", found.len(), names.join(", "))),
        }
        .then(list(None))
    }
}

/// The call that shows which files there are.
fn list(folder: Option<&str>) -> NextCall {
    let arguments = folder.map_or_else(|| json!({}), |folder| json!({"folder": folder}));
    NextCall::new("list_recordings", arguments, "shows the files that can be read")
}

/// The path without links; of a file in a bundle, that of the bundle, and the name in it.
fn resolved(path: &Path) -> Option<(PathBuf, Option<PathBuf>)> {
    if let Ok(resolved) = path.canonicalize() {
        return Some((resolved, None));
    }
    let Some(Component::Normal(name)) = path.components().next_back() else { return None };
    let bundle = path.parent()?.canonicalize().ok()?;
    bundle.is_file().then(|| (bundle, Some(PathBuf::from(name))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn roots(folders: &[&Path]) -> AllowedRoots {
        let folders: Vec<PathBuf> = folders.iter().map(|folder| folder.to_path_buf()).collect();
        AllowedRoots::new(&folders).expect("roots")
    }

    fn refusal(roots: &AllowedRoots, given: &str) -> String {
        roots.find(given).map(|found| found.inner).expect_err(given).text()
    }

    #[test]
    fn only_paths_below_a_root_are_found() {
        let all = tempfile::tempdir().expect("a folder");
        let inside = all.path().join("in");
        fs::create_dir_all(inside.join("deep")).expect("a folder");
        fs::write(inside.join("deep/a.pickle"), "x").expect("a file");
        fs::write(all.path().join("secret.pickle"), "x").expect("a file");
        let roots = roots(&[&inside]);
        for given in ["deep/a.pickle", "./deep/../deep/a.pickle", "deep//a.pickle"] {
            assert_eq!(roots.find(given).expect(given).inner, Path::new("deep/a.pickle"));
        }
        let absolute = inside.join("deep/a.pickle");
        assert_eq!(
            roots.find(absolute.to_str().expect("text")).expect("found").inner,
            Path::new("deep/a.pickle")
        );
        assert_eq!(roots.find(".").expect("the root").inner, Path::new("."));
        for given in
            ["../secret.pickle", "deep/../../secret.pickle", "/etc/passwd", "/dev/zero", "/nowhere/x"]
        {
            assert!(refusal(&roots, given).contains("not below a root"), "{given}");
        }
        assert!(refusal(&roots, "deep/b.pickle").contains("deep/a.pickle"), "names what there is");
    }

    #[test]
    fn a_second_root_has_whole_paths() {
        let all = tempfile::tempdir().expect("a folder");
        let [a, b] = ["a", "b"].map(|name| all.path().canonicalize().expect("a path").join(name));
        for folder in [&a, &b] {
            fs::create_dir(folder).expect("a folder");
        }
        fs::write(b.join("x.pickle"), "x").expect("a file");
        let roots = roots(&[&a, &b]);
        let found = roots.find("x.pickle").expect("in the second root");
        assert_eq!(roots.shown(&found), b.join("x.pickle").to_str().expect("text"));
        assert_eq!(roots.find(&roots.shown(&found)).expect("found again"), found);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_to_their_end() {
        use std::os::unix::fs::symlink;
        let all = tempfile::tempdir().expect("a folder");
        let inside = all.path().join("in");
        fs::create_dir(&inside).expect("a folder");
        fs::write(all.path().join("secret.json"), "{}").expect("a file");
        fs::write(inside.join("rank0.pickle"), "x").expect("a file");
        symlink(all.path().join("secret.json"), inside.join("out.json")).expect("a link");
        symlink(all.path(), inside.join("up")).expect("a link");
        symlink("rank0.pickle", inside.join("same.pickle")).expect("a link");
        let roots = roots(&[&inside]);
        assert!(refusal(&roots, "out.json").contains("not below a root"));
        assert!(refusal(&roots, "up/secret.json").contains("not below a root"));
        assert_eq!(roots.find("same.pickle").expect("a link inside").inner, Path::new("rank0.pickle"));
        assert!(roots.find_recording("rank0.pickle").is_ok());
        symlink(all.path().join("secret.json"), inside.join("rank0.json")).expect("a link");
        let refused = roots.find_recording("rank0.pickle").expect_err("a sidecar file elsewhere").text();
        assert!(refused.contains("rank0.json") && refused.contains("leads out"), "{refused}");
    }
}
