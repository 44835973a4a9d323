//! Finds the files, and checks them on all cores.

use crate::fixes;
use crate::settings::{Globs, LintSettings};
use crate::{FixMode, LintOptions, LintResults, LintedFile};
use analysis::words::shown_path;
use failure::Failure;
use ignore::{DirEntry, Walk, WalkBuilder};
use lint::{Diagnostic, Fix, PythonSource, Rule};
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Largest file that is checked, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Stack size of a worker, for deeply nested expressions.
const WORKER_STACK_BYTES: usize = 16 << 20;

/// Folders of code that is not the user's own.
const SKIPPED_FOLDERS: [&str; 6] = ["venv", "node_modules", "__pycache__", "site-packages", "build", "dist"];

/// Checks everything that the options name.
pub(crate) fn check(options: &LintOptions, settings: &LintSettings) -> anyhow::Result<LintResults> {
    let mode = options.fixes;
    if options.paths.iter().any(|path| path.as_os_str() == "-") {
        if options.paths.len() > 1 {
            let what = "standard input cannot be combined with other paths";
            return Err(Failure::new(what, None, None).into());
        }
        let name = options.stdin_filename.clone().unwrap_or_else(|| PathBuf::from("<stdin>"));
        let mut looked = LintResults::default();
        let mut worker = Worker::new(settings, mode, &mut looked);
        worker.is_standard_input = true;
        worker.check(&name, std::io::stdin().lock());
        return Ok(looked);
    }
    for path in &options.paths {
        if let Err(error) = std::fs::metadata(path) {
            let what = format!("`{}` could not be read", shown_path(path));
            return Err(Failure::new(what, Some(error.to_string()), None).refused(error.kind()).into());
        }
    }
    Ok(in_parallel(walk(&options.paths, settings), settings, mode))
}

fn in_parallel(walk: Walk, settings: &LintSettings, mode: FixMode) -> LintResults {
    let files = Mutex::new((walk, HashSet::new()));
    let work = || {
        let mut looked = LintResults::default();
        let mut worker = Worker::new(settings, mode, &mut looked);
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
        let start = || std::thread::Builder::new().stack_size(WORKER_STACK_BYTES).spawn_scoped(scope, work);
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
    if is_folder && (name.starts_with('.') || SKIPPED_FOLDERS.contains(&&*name)) {
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
    mode: FixMode,
    /// Used again for each file.
    bytes: Vec<u8>,
    looked: &'a mut LintResults,
    /// Fixes go to `looked.output`.
    is_standard_input: bool,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a LintSettings, mode: FixMode, looked: &'a mut LintResults) -> Worker<'a> {
        Worker { settings, mode, bytes: Vec::new(), looked, is_standard_input: false }
    }

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
                let place = source.place(error.range.start).short();
                let text = format!("{}:{place}: not Python: {}", shown_path(path), error.message);
                return self.looked.warnings.push(text);
            }
        };
        self.looked.checked += 1;
        found.retain(|found| found.severity >= self.settings.least);
        let is_printed = self.is_standard_input && self.mode == FixMode::Write;
        if is_printed {
            self.looked.output = Some(self.bytes.clone());
        }
        if found.is_empty() {
            return;
        }
        let file = LintedFile {
            name: path.to_string_lossy().into_owned(),
            source,
            found,
            fixed: 0,
            diff: String::new(),
        };
        let file = self.fix(path, file, &rules);
        if !file.found.is_empty() || file.fixed > 0 {
            self.looked.files.push(file);
        }
    }

    /// The file after its fixes.
    fn fix(&mut self, path: &Path, file: LintedFile, rules: &[&'static Rule]) -> LintedFile {
        let settings = self.settings;
        let is_allowed = |fix: &Fix| fix.applicability <= settings.allowed;
        let can_be_fixed = file.found.iter().any(|found| found.fix.as_ref().is_some_and(is_allowed));
        if self.mode == FixMode::Leave || !can_be_fixed {
            return file;
        }
        if let Some(obstacle) = fixes::obstacle(&file, &self.bytes) {
            self.looked.warnings.push(format!("{}: {obstacle}", file.name));
            return file;
        }
        let LintedFile { name, source, found, .. } = file;
        let before = source.text().to_owned();
        let is_reported = |found: &Diagnostic| found.severity >= settings.least;
        let fixed = lint::fix(source, found, rules, settings.allowed, is_reported);
        let after = fixed.source.text();
        let mut diff = String::new();
        if self.mode == FixMode::Show {
            diff = fixes::unified(&name, &before, after);
        } else if self.is_standard_input {
            self.looked.output = Some(fixes::whole(&self.bytes, after));
        } else if fixed.count > 0
            && let Err(error) = fixes::replace(path, &fixes::whole(&self.bytes, after))
        {
            self.looked.warnings.push(format!("{name}: could not be written: {error}"));
        }
        LintedFile { name, source: fixed.source, found: fixed.left, fixed: fixed.count, diff }
    }

    fn warn(&mut self, path: &Path, what: &str) {
        self.looked.warnings.push(format!("{}: {what}", shown_path(path)));
    }
}
