//! Folders and files that are open in an editor: the linter for text that is not saved yet.

use crate::LintOptions;
use crate::files::{self, MAX_FILE_BYTES};
use crate::package::{self, Package};
use crate::settings::LintSettings;
use failure::Failure;
use lint::{Applicability, Diagnostic, Imports, PythonSource, Rule, RuleSeverity};
use std::path::{Path, PathBuf};

/// Folders of installed packages, whose files editors open to show a definition.
const INSTALLED: [&str; 2] = ["site-packages", "dist-packages"];

/// Folders that are open in an editor, and what their files need to know about each other. Findings are those
/// of `oomph lint` for the folder.
#[derive(Default)]
pub struct EditorProject {
    folders: Vec<EditorFolder>,
}

struct EditorFolder {
    root: PathBuf,
    /// `None` until its files were read; a file's imports are then looked for when it is checked.
    package: Option<Package>,
}

/// What the files of a folder need to know about each other.
pub struct FolderIndex {
    root: PathBuf,
    package: Package,
}

/// Findings of a text, and what is needed to fix them.
pub struct BufferReport {
    /// Findings by position.
    pub found: Vec<Diagnostic>,
    rules: Vec<&'static Rule>,
    imports: Imports,
    least: RuleSeverity,
}

/// Why a text has no findings, which does not mean that nothing is wrong with it.
#[derive(Debug)]
pub enum NotChecked {
    /// It is not Python, as happens while somebody writes it.
    NotPython,
    /// The settings are invalid, or the text is too large.
    Refused(String),
}

impl FolderIndex {
    /// Reads the files of a folder, on all cores; `None` if its settings are invalid.
    pub fn new(root: PathBuf) -> Option<FolderIndex> {
        let settings = settings(&root).ok()?;
        Some(FolderIndex { package: files::package(&root, &settings), root })
    }
}

impl EditorProject {
    /// Adds a folder.
    pub fn add(&mut self, root: PathBuf) {
        self.remove(&root);
        self.folders.push(EditorFolder { root, package: None });
    }

    /// Removes a folder.
    pub fn remove(&mut self, root: &Path) {
        self.folders.retain(|folder| folder.root != root);
    }

    /// Returns the folders.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(|folder| &*folder.root)
    }

    /// Notes what the files of a folder need to know about each other.
    pub fn note_index(&mut self, index: FolderIndex) {
        if let Some(folder) = self.folders.iter_mut().find(|folder| folder.root == index.root) {
            folder.package = Some(index.package);
        }
    }

    /// Notes that a file on disk is new, has changed, or is gone.
    pub fn note_file(&mut self, path: &Path) {
        for folder in &mut self.folders {
            let Some(package) = &mut folder.package else { continue };
            if !is_left_out(path, Some(&folder.root)) && path.starts_with(&folder.root) {
                package.remove(path);
                package::summary(path).into_iter().for_each(|summary| package.insert(path, summary));
            }
        }
    }

    /// Checks the text of a file, saved or not; `None` is a file without a name.
    pub fn check(&mut self, path: Option<&Path>, source: &PythonSource) -> Result<BufferReport, NotChecked> {
        let folder = path.and_then(|path| {
            let around = self.folders.iter_mut().filter(|folder| path.starts_with(&folder.root));
            around.max_by_key(|folder| folder.root.as_os_str().len())
        });
        let (root, mut package) = match folder {
            Some(EditorFolder { root, package }) => (Some(&**root), package.as_mut()),
            None => (None, None),
        };
        let path = path.unwrap_or(Path::new("untitled"));
        let settings = settings(path).map_err(|error| NotChecked::Refused(error.message()))?;
        let mut report = BufferReport {
            found: Vec::new(),
            rules: settings.rules_for(path).into_owned(),
            imports: Imports::default(),
            least: settings.least,
        };
        if is_left_out(path, root) || settings.exclude.is_some_and(|globs| globs.match_path(path)) {
            return Ok(report);
        }
        if source.text().len() as u64 > MAX_FILE_BYTES {
            return Err(NotChecked::Refused("files larger than 8 MiB are not checked".to_owned()));
        }
        let alone = lint::check_module(source, &report.rules, &report.imports);
        let alone = alone.map_err(|_| NotChecked::NotPython)?;
        if let Some(package) = &mut package {
            package.insert(path, alone.summary);
        }
        let (from_disk, by_itself) = (package.is_none(), Package::default());
        let package = package.as_deref().unwrap_or(&by_itself);
        let checked = package.check(path, source, &report.rules, &alone.asked, from_disk);
        (report.found, report.imports) = checked.ok_or(NotChecked::NotPython)?;
        report.found.retain(|found| found.severity >= report.least);
        Ok(report)
    }
}

impl BufferReport {
    /// Returns the source after all fixes that cannot change what the program does.
    pub fn fixed(&self, source: &PythonSource) -> PythonSource {
        let (found, least) = (self.found.clone(), self.least);
        let is_reported = |found: &Diagnostic| found.severity >= least;
        lint::fix(source.clone(), found, &self.rules, &self.imports, Applicability::Safe, is_reported).source
    }
}

fn settings(path: &Path) -> Result<LintSettings, Failure> {
    let options = LintOptions { paths: vec![path.to_owned()], ..LintOptions::default() };
    LintSettings::new(&options).map_err(Failure::from)
}

/// Whether a file is in a folder of code that is not the user's own.
fn is_left_out(path: &Path, root: Option<&Path>) -> bool {
    let mut folders = path.ancestors().skip(1).take_while(|folder| Some(*folder) != root);
    folders.any(|folder| match folder.file_name() {
        Some(name) if root.is_some() => files::is_skipped(name),
        Some(name) => INSTALLED.iter().any(|installed| name == *installed),
        None => false,
    })
}
