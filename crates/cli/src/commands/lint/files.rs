//! Finds the files, and checks them on all cores.

use super::fixes::{self, Mode};
use super::settings::{Globs, LintSettings};
use super::{LintResults, LintedFile};
use crate::args::LintArgs;
use crate::terminal::{Failure, shown_path};
use ignore::{DirEntry, Walk, WalkBuilder};
use lint::PythonSource;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Largest file that is checked, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Stack size of a worker, for deeply nested expressions.
const STACK: usize = 16 << 20;

/// Folders of code that is not the user's own.
const NOT_OWN: [&str; 6] = ["venv", "node_modules", "__pycache__", "site-packages", "build", "dist"];

/// Checks everything that the arguments name.
pub(super) fn look(args: &LintArgs, settings: &LintSettings) -> anyhow::Result<LintResults> {
    let mode = Mode::new(args);
    if args.paths.iter().any(|path| path.as_os_str() == "-") {
        if args.paths.len() > 1 {
            let what = "standard input cannot be combined with other paths";
            return Err(Failure::new(what, None, None).into());
        }
        let name = args.stdin_filename.clone().unwrap_or_else(|| PathBuf::from("<stdin>"));
        let mut looked = LintResults::default();
        let mut worker = Worker { settings, mode, bytes: Vec::new(), looked: &mut looked };
        worker.check(&name, std::io::stdin().lock());
        return Ok(looked);
    }
    for path in &args.paths {
        if let Err(error) = std::fs::metadata(path) {
            let what = format!("`{}` could not be read", shown_path(path));
            return Err(Failure::new(what, Some(error.to_string()), None).refused(error.kind()).into());
        }
    }
    Ok(in_parallel(walk(&args.paths, settings), settings, mode))
}

fn in_parallel(walk: Walk, settings: &LintSettings, mode: Mode) -> LintResults {
    let files = Mutex::new((walk, HashSet::new()));
    let work = || {
        let mut looked = LintResults::default();
        let mut worker = Worker { settings, mode, bytes: Vec::new(), looked: &mut looked };
        loop {
            // Each idle worker takes the next file.
            let entry = {
                let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                let (walk, seen) = &mut *files;
                walk.find(|entry| entry.as_ref().map_or(true, |entry| is_new(entry, seen)))
            };
            match entry {
                Some(Ok(entry)) => worker.entry(&entry),
                Some(Err(error)) => worker.looked.warnings.push(error.to_string()),
                None => return looked,
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = LintResults::default();
    std::thread::scope(|scope| {
        let start = || std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let workers: Vec<_> = (0..threads).filter_map(|_| start().ok()).collect();
        if workers.is_empty() {
            all = work();
        }
        for worker in workers {
            match worker.join() {
                Ok(looked) => {
                    all.checked += looked.checked;
                    all.files.extend(looked.files);
                    all.warnings.extend(looked.warnings);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.files.sort_by(|a, b| a.name.cmp(&b.name));
    all.warnings.sort();
    all
}

/// Whether this is a new file to check; `oomph lint . train.py` finds `train.py` twice.
fn is_new(entry: &DirEntry, seen: &mut HashSet<PathBuf>) -> bool {
    let Some(kind) = entry.file_type() else { return false };
    let is_meant =
        if entry.depth() == 0 { !kind.is_dir() } else { kind.is_file() && is_python(entry.path()) };
    is_meant && seen.insert(shown(entry.path()).to_owned())
}

/// Without the `./` that the walk puts in front.
fn shown(path: &Path) -> &Path {
    path.strip_prefix(".").unwrap_or(path)
}

fn walk(paths: &[PathBuf], settings: &LintSettings) -> Walk {
    let mut paths: Vec<&PathBuf> = paths.iter().collect();
    paths.sort();
    paths.dedup();
    let (first, others) = paths.split_first().expect("there is a default");
    let mut builder = WalkBuilder::new(first);
    for path in others {
        builder.add(path);
    }
    let exclude = settings.exclude.clone();
    builder.hidden(false).require_git(false).filter_entry(move |entry| is_own(entry, exclude.as_ref()));
    builder.build()
}

/// Whether an entry is checked; paths that the user named always are.
fn is_own(entry: &DirEntry, exclude: Option<&Arc<Globs>>) -> bool {
    if entry.depth() == 0 {
        return true;
    }
    let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
    let name = entry.file_name().to_string_lossy();
    if is_folder && (name.starts_with('.') || NOT_OWN.contains(&&*name)) {
        return false;
    }
    (!is_folder && !is_python(entry.path())) || exclude.is_none_or(|globs| !globs.match_path(entry.path()))
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "py") || is_notebook(path)
}

fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "ipynb")
}

/// One thread's share of the files.
struct Worker<'a> {
    settings: &'a LintSettings,
    mode: Mode,
    /// Used again for each file.
    bytes: Vec<u8>,
    looked: &'a mut LintResults,
}

impl Worker<'_> {
    fn entry(&mut self, entry: &DirEntry) {
        let path = shown(entry.path());
        match std::fs::File::open(path) {
            Ok(file) => self.check(path, file),
            Err(error) => self.warn(path, &format!("could not be read: {error}")),
        }
    }

    fn check(&mut self, path: &Path, reader: impl Read) {
        self.bytes.clear();
        if let Err(error) = reader.take(MAX_FILE_BYTES + 1).read_to_end(&mut self.bytes) {
            return self.warn(path, &format!("could not be read: {error}"));
        }
        if self.bytes.len() as u64 > MAX_FILE_BYTES {
            return self.warn(path, "larger than 8 MiB, left out");
        }
        let source = if is_notebook(path) {
            let Some(source) = PythonSource::notebook(&self.bytes) else {
                return self.warn(path, "not a notebook: it has no list of cells in JSON");
            };
            source
        } else {
            PythonSource::python(&self.bytes)
        };
        let rules = self.settings.rules_for(path);
        let mut found = match lint::check(&source, &rules) {
            Ok(found) => found,
            Err(error) => {
                let place = super::place::short(source.place(error.range.start));
                let text = format!("{}:{place}: not Python: {}", shown_path(path), error.message);
                return self.looked.warnings.push(text);
            }
        };
        self.looked.checked += 1;
        found.retain(|found| found.severity >= self.settings.least);
        if found.is_empty() && self.mode != Mode::Print {
            return;
        }
        let file = LintedFile {
            name: path.to_string_lossy().into_owned(),
            source,
            found,
            fixed: 0,
            diff: String::new(),
        };
        let file = fixes::fix(self.mode, path, &self.bytes, file, &rules, self.settings, self.looked);
        if !file.found.is_empty() || file.fixed > 0 {
            self.looked.files.push(file);
        }
    }

    fn warn(&mut self, path: &Path, what: &str) {
        self.looked.warnings.push(format!("{}: {what}", shown_path(path)));
    }
}
