//! Imports between the files of a project: what a file needs to know about the functions and classes of
//! others.

use lint::{AskedImport, Definition, Diagnostic, Imports, ModuleSummary, PythonSource, Rule};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Imports of imports that are followed: `from .meters import Meter` in `__init__.py`.
const MAX_HOPS: usize = 4;
/// Folders above a file named by the user in which its absolute imports are looked for.
const MAX_FOLDERS_ABOVE: usize = 3;
/// Largest imported file that is read, in bytes.
const MAX_IMPORTED_BYTES: u64 = 1 << 20;

/// Module: its file, and what others need to know about it.
type Module = (PathBuf, Arc<ModuleSummary>);

/// Modules of a project, by path without ending; `a/__init__.py` is `a`.
#[derive(Default)]
pub(crate) struct Package {
    modules: HashMap<PathBuf, Module>,
    /// Last parts of their paths: most imports are of other projects, which this tells without a search.
    names: HashSet<OsString>,
    /// Functions for evaluation by name, and how many files use them with and without gradients.
    mentioned: HashMap<String, Mentions>,
    /// Number of files that mention CUDA.
    knowing_cuda: usize,
    /// Modules that were not among the files to check, as far as they were looked for.
    others: Mutex<HashMap<PathBuf, Option<Module>>>,
}

/// Number of files that mention a function for evaluation.
#[derive(Default)]
struct Mentions {
    with_gradients: usize,
    without_gradients: usize,
}

impl Package {
    /// Adds a file, in place of what was known about it.
    pub(crate) fn insert(&mut self, file: &Path, summary: ModuleSummary) {
        self.remove(file);
        let module = module_of(file);
        for (name, is_off) in summary.mentioned() {
            *self.mentioned.entry(name.to_owned()).or_default().files(is_off) += 1;
        }
        self.knowing_cuda += usize::from(summary.knows_cuda());
        self.names.extend(module.file_name().map(OsStr::to_owned));
        self.modules.insert(module, (file.to_owned(), Arc::new(summary)));
    }

    /// Removes a file, if it is known.
    pub(crate) fn remove(&mut self, file: &Path) {
        let module = module_of(file);
        if self.modules.get(&module).is_none_or(|(known, _)| known != file) {
            return;
        }
        let Some((_, summary)) = self.modules.remove(&module) else { return };
        for (name, is_off) in summary.mentioned() {
            if let Some(mentions) = self.mentioned.get_mut(name) {
                *mentions.files(is_off) -= 1;
            }
        }
        self.knowing_cuda -= usize::from(summary.knows_cuda());
    }

    /// Checks a file with what its imports mean, and returns these as well. `asked` are the imports that it
    /// asked for when it was checked by itself.
    pub(crate) fn check(
        &self,
        file: &Path,
        source: &PythonSource,
        rules: &[&'static Rule],
        asked: &[AskedImport],
        from_disk: bool,
    ) -> Option<(Vec<Diagnostic>, Imports)> {
        let mut imports = self.imports();
        self.resolve(file, asked, from_disk, &mut imports);
        loop {
            let report = lint::check_module(source, rules, &imports).ok()?;
            // What one import means can lead to the question what another does.
            if !self.resolve(file, &report.asked, from_disk, &mut imports) {
                return Some((report.found, imports));
            }
        }
    }

    /// Adds what the project knows about imports of a file; returns whether there is anything new. Files that
    /// are not checked are read only `from_disk`.
    pub(crate) fn resolve(
        &self,
        file: &Path,
        asked: &[AskedImport],
        from_disk: bool,
        imports: &mut Imports,
    ) -> bool {
        let mut is_new = false;
        for import in asked.iter().filter(|import| !import.path().starts_with("torch.")) {
            if !imports.contains(import.path())
                && let Some(definition) = self.definition(file, import.path(), from_disk, MAX_HOPS)
                && import.is_answered_by(&definition)
            {
                imports.insert(import.path(), definition);
                is_new = true;
            }
        }
        is_new
    }

    /// Returns what is known in all files, whatever they import.
    fn imports(&self) -> Imports {
        let mut imports = Imports::default();
        let is_off = |mentions: &Mentions| mentions.with_gradients == 0 && mentions.without_gradients > 0;
        for (name, _) in self.mentioned.iter().filter(|(_, mentions)| is_off(mentions)) {
            imports.insert_without_gradients(name);
        }
        if self.knows_cuda() {
            imports.note_cuda();
        }
        imports
    }

    pub(crate) fn knows_cuda(&self) -> bool {
        self.knowing_cuda > 0
    }

    fn definition(&self, file: &Path, import: &str, from_disk: bool, hops: usize) -> Option<Definition> {
        let hops = hops.checked_sub(1)?;
        let names = import.trim_start_matches('.');
        let (module, name) = names.rsplit_once('.').unwrap_or(("", names));
        let last = module.rsplit('.').next().unwrap_or(module);
        if !from_disk && !last.is_empty() && !self.names.contains(OsStr::new(last)) {
            return None;
        }
        let inner: PathBuf = module.split('.').collect();
        let folder = file.parent()?;
        let folders: Vec<&Path> = match import.len() - names.len() {
            0 => folder.ancestors().take(if from_disk { MAX_FOLDERS_ABOVE } else { usize::MAX }).collect(),
            dots => folder.ancestors().nth(dots - 1).into_iter().collect(),
        };
        folders.into_iter().find_map(|folder| {
            let (file, summary) = self.module(folder.join(&inner), from_disk)?;
            let elsewhere = || self.definition(&file, summary.import(name)?, from_disk, hops);
            summary.definition(name).cloned().or_else(elsewhere)
        })
    }

    fn module(&self, path: PathBuf, from_disk: bool) -> Option<Module> {
        if let Some(module) = self.modules.get(&path) {
            return Some(module.clone());
        }
        if !from_disk {
            return None;
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.entry(path).or_insert_with_key(|path| read(path)).clone()
    }
}

impl Mentions {
    fn files(&mut self, is_off: bool) -> &mut usize {
        if is_off { &mut self.without_gradients } else { &mut self.with_gradients }
    }
}

/// Path of a file's module.
fn module_of(file: &Path) -> PathBuf {
    let is_package = file.file_stem().is_some_and(|stem| stem == "__init__");
    if is_package { file.parent().unwrap_or(file).to_owned() } else { file.with_extension("") }
}

fn read(module: &Path) -> Option<Module> {
    let mut named = module.as_os_str().to_owned();
    named.push(".py");
    let files = [PathBuf::from(named), module.join("__init__.py")];
    files.into_iter().find_map(|file| {
        let summary = summary(&file)?;
        Some((file, Arc::new(summary)))
    })
}

/// What others need to know about a file on disk.
pub(crate) fn summary(file: &Path) -> Option<ModuleSummary> {
    let found = std::fs::metadata(file).ok()?;
    if !found.is_file() || found.len() > MAX_IMPORTED_BYTES {
        return None;
    }
    let bytes = std::fs::read(file).ok()?;
    let is_notebook = file.extension().is_some_and(|ending| ending == "ipynb");
    let source = if is_notebook { PythonSource::notebook(&bytes)? } else { PythonSource::python(&bytes) };
    lint::check_module(&source, &[], &Imports::default()).ok().map(|report| report.summary)
}
