//! Finds the files, and checks them on all cores.

use crate::fixes;
use crate::package::{self, Package};
use crate::settings::{Globs, LintSettings};
use crate::{FixMode, LintOptions, LintResults, LintedFile};
use analysis::words::shown_path;
use failure::Failure;
use ignore::{DirEntry, Walk, WalkBuilder};
use lint::{Diagnostic, Fix, Imports, ModuleReport, PythonSource, Rule};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Largest file that is checked, in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 8 << 20;

/// Largest number of files and folders that are looked at in an editor's folder, which may be a home folder.
const MAX_INDEXED_ENTRIES: usize = 200_000;

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
        let mut worker = Worker::new(settings, mode);
        worker.is_standard_input = true;
        let source = worker.read(&name, std::io::stdin().lock());
        let checked = source.as_ref().and_then(|source| worker.check(&name, source, true));
        if let (Some(source), Some(checked)) = (source, checked) {
            worker.finish(source, &checked, &Package::default());
        }
        return Ok(worker.looked);
    }
    for path in &options.paths {
        if let Err(error) = std::fs::metadata(path) {
            let what = format!("`{}` could not be read", shown_path(path));
            return Err(Failure::new(what, Some(error.to_string()), None).refused(error.kind()).into());
        }
    }
    Ok(check_all(walk(&options.paths, settings), settings, mode))
}

/// Checks each file by itself, and then those again that use functions and classes of others.
fn check_all(walk: Walk, settings: &LintSettings, mode: FixMode) -> LintResults {
    let files = Mutex::new((walk, HashSet::new()));
    let next = || {
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        let (walk, seen) = &mut *files;
        walk.find(|entry| entry.as_ref().map_or(true, |entry| is_new(entry, seen)))
    };
    let (mut all, checked) = in_parallel(&next, settings, mode, |worker, entry| match entry {
        Ok(entry) => worker.entry(&entry),
        Err(error) => {
            worker.looked.warnings.push(error.to_string());
            None
        }
    });
    let mut package = Package::default();
    let mut files: Vec<CheckedFile> = checked;
    for file in &mut files {
        package.insert(&file.path, std::mem::take(&mut file.report.summary));
    }
    let open = Mutex::new(files);
    let next = || open.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let (finished, _) = in_parallel(&next, settings, mode, |worker, checked: CheckedFile| {
        let mut imports = Imports::default();
        let uses_others =
            package.resolve(&checked.path, &checked.report.asked, checked.is_named, &mut imports);
        let uses_others = uses_others || checked.report.asks_for_cuda && package.knows_cuda();
        if (uses_others || !checked.report.found.is_empty())
            && let Ok(file) = std::fs::File::open(&checked.path)
            && let Some(source) = worker.read(&checked.path, file)
        {
            worker.finish(source, &checked, &package);
        }
        None::<()>
    });
    all.extend(finished);
    all.files.sort_by(|a, b| a.name.cmp(&b.name));
    all.warnings.sort();
    all.errors.sort();
    all
}

/// What the files of a folder need to know about each other.
pub(crate) fn package(folder: &Path, settings: &LintSettings) -> Package {
    let files = Mutex::new(walk(&[folder.to_owned()], settings).take(MAX_INDEXED_ENTRIES));
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (_, summaries) = in_parallel(&next, settings, FixMode::Leave, |_, entry| {
        let path = entry.ok()?.into_path();
        let summary = if is_python(&path) { package::summary(&path) } else { None }?;
        Some((path, summary))
    });
    let mut package = Package::default();
    for (path, summary) in summaries {
        package.insert(&path, summary);
    }
    package
}

/// Does the work on all cores: each idle worker takes the next piece.
fn in_parallel<T, R: Send>(
    next: &(dyn Fn() -> Option<T> + Sync),
    settings: &LintSettings,
    mode: FixMode,
    work: impl Fn(&mut Worker<'_>, T) -> Option<R> + Sync,
) -> (LintResults, Vec<R>) {
    let work = || {
        let mut worker = Worker::new(settings, mode);
        let mut done = Vec::new();
        while let Some(piece) = next() {
            done.extend(work(&mut worker, piece));
        }
        (worker.looked, done)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut all, mut done) = (LintResults::default(), Vec::new());
    std::thread::scope(|scope| {
        let start = || std::thread::Builder::new().stack_size(WORKER_STACK_BYTES).spawn_scoped(scope, work);
        let workers: Vec<_> = (0..threads).filter_map(|_| start().ok()).collect();
        if workers.is_empty() {
            (all, done) = work();
        }
        for worker in workers {
            match worker.join() {
                Ok((looked, of_worker)) => {
                    all.extend(looked);
                    done.extend(of_worker);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    (all, done)
}

impl LintResults {
    fn extend(&mut self, other: LintResults) {
        self.checked += other.checked;
        self.files.extend(other.files);
        self.warnings.extend(other.warnings);
        self.errors.extend(other.errors);
    }
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
    if is_folder && is_skipped(entry.file_name()) {
        return false;
    }
    (!is_folder && !is_python(entry.path())) || exclude.is_none_or(|globs| !globs.match_path(entry.path()))
}

/// Whether a folder of this name is left out.
pub(crate) fn is_skipped(folder: &OsStr) -> bool {
    let name = folder.to_string_lossy();
    name.starts_with('.') || SKIPPED_FOLDERS.contains(&&*name)
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "py") || is_notebook(path)
}

fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "ipynb")
}

/// A file that was checked by itself.
struct CheckedFile {
    path: PathBuf,
    /// Whether the user named it, not a folder that contains it.
    is_named: bool,
    report: ModuleReport,
}

/// One thread's share of the files.
struct Worker<'a> {
    settings: &'a LintSettings,
    mode: FixMode,
    /// Used again for each file.
    bytes: Vec<u8>,
    looked: LintResults,
    /// Fixes go to `looked.output`.
    is_standard_input: bool,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a LintSettings, mode: FixMode) -> Worker<'a> {
        let looked = LintResults::default();
        Worker { settings, mode, bytes: Vec::new(), looked, is_standard_input: false }
    }

    fn entry(&mut self, entry: &DirEntry) -> Option<CheckedFile> {
        let path = shown(entry.path());
        match std::fs::File::open(path) {
            Ok(file) => {
                let source = self.read(path, file)?;
                self.check(path, &source, entry.depth() == 0)
            }
            Err(error) => {
                self.warn(path, &format!("could not be read: {error}"));
                None
            }
        }
    }

    fn read(&mut self, path: &Path, reader: impl Read) -> Option<PythonSource> {
        self.bytes.clear();
        if let Err(error) = reader.take(MAX_FILE_BYTES + 1).read_to_end(&mut self.bytes) {
            self.warn(path, &format!("could not be read: {error}"));
            return None;
        }
        if self.bytes.len() as u64 > MAX_FILE_BYTES {
            self.warn(path, "larger than 8 MiB, left out");
            return None;
        }
        if !is_notebook(path) {
            return Some(PythonSource::python(&self.bytes));
        }
        let source = PythonSource::notebook(&self.bytes);
        if source.is_none() {
            let text = format!("{}: not a notebook: it has no list of cells in JSON", shown_path(path));
            self.looked.errors.push(text);
        }
        source
    }

    /// Checks a file by itself. One that the user named must be Python, whatever it is about.
    fn check(&mut self, path: &Path, source: &PythonSource, is_named: bool) -> Option<CheckedFile> {
        let rules = self.settings.rules_for(path);
        let report = match is_named.then(|| lint::syntax_error(source)).flatten() {
            Some(error) => Err(error),
            None => lint::check_module(source, &rules, &Imports::default()),
        };
        match report {
            Ok(report) => {
                self.looked.checked += 1;
                Some(CheckedFile { path: path.to_owned(), is_named, report })
            }
            Err(error) => {
                let place = source.place(error.range.start).short();
                let text = format!("{}:{place}: not Python: {}", shown_path(path), error.message);
                self.looked.errors.push(text);
                None
            }
        }
    }

    /// Checks a file again with what its imports mean, and fixes it.
    fn finish(&mut self, source: PythonSource, checked: &CheckedFile, package: &Package) {
        let path = &*checked.path;
        let rules = self.settings.rules_for(path);
        let asked = &checked.report.asked;
        let Some((mut found, imports)) = package.check(path, &source, &rules, asked, checked.is_named) else {
            return;
        };
        found.retain(|found| found.severity >= self.settings.least);
        if self.is_standard_input && self.mode == FixMode::Write {
            self.looked.output = Some(self.bytes.clone());
        }
        if found.is_empty() {
            return;
        }
        let name = path.to_string_lossy().into_owned();
        let file = LintedFile { name, source, found, fixed: 0, diff: String::new() };
        let file = self.fix(path, file, &rules, &imports);
        if !file.found.is_empty() || file.fixed > 0 {
            self.looked.files.push(file);
        }
    }

    /// The file after its fixes.
    fn fix(
        &mut self,
        path: &Path,
        file: LintedFile,
        rules: &[&'static Rule],
        imports: &Imports,
    ) -> LintedFile {
        let settings = self.settings;
        let is_allowed = |fix: &Fix| fix.applicability <= settings.allowed;
        let can_be_fixed = file.found.iter().any(|found| found.fix.as_ref().is_some_and(is_allowed));
        if self.mode == FixMode::Leave || !can_be_fixed {
            return file;
        }
        if std::str::from_utf8(&self.bytes).is_err() {
            self.looked.warnings.push(format!("{}: not UTF-8, so it is not changed", file.name));
            return file;
        }
        let LintedFile { name, source, found, .. } = file;
        let before = source.clone();
        let is_reported = |found: &Diagnostic| found.severity >= settings.least;
        let fixed = lint::fix(source, found, rules, imports, settings.allowed, is_reported);
        let mut diff = String::new();
        if self.mode == FixMode::Show {
            diff = fixes::unified(&name, &before, &fixed.source);
        } else if self.is_standard_input {
            self.looked.output = fixes::whole(&self.bytes, &before, &fixed.source);
        } else if fixed.count > 0
            && let Err(error) = fixes::replace(path, fixes::whole(&self.bytes, &before, &fixed.source))
        {
            self.looked.warnings.push(format!("{name}: could not be written: {error}"));
        }
        LintedFile { name, source: fixed.source, found: fixed.left, fixed: fixed.count, diff }
    }

    fn warn(&mut self, path: &Path, what: &str) {
        self.looked.warnings.push(format!("{}: {what}", shown_path(path)));
    }
}
