//! The linter over a whole project: finds the files, reads the settings in pyproject.toml, checks the files
//! on all cores, and applies fixes.
//!
//! ```
//! let folder = tempfile::tempdir().expect("a folder");
//! let code = "import torch, gc\n\nfor x, y in loader:\n    model(x).sum().backward()\n    gc.collect()\n";
//! std::fs::write(folder.path().join("train.py"), code).expect("a file");
//! let options = project::LintOptions { paths: vec![folder.path().to_owned()], ..Default::default() };
//! let results = project::check(&options).expect("settings");
//! assert_eq!((results.checked, results.findings().count()), (1, 1));
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod files;
mod fixes;
mod package;
mod settings;
mod workspace;

pub use settings::named;
pub use workspace::{BufferReport, EditorProject, FolderIndex, NotChecked};

use lint::{Applicability, Diagnostic, PythonSource, RULES, Rule, RuleSeverity};
use settings::LintSettings;
use std::cmp::Reverse;
use std::path::PathBuf;

/// What to check, and what to do with fixes.
#[derive(Clone, Default, Debug)]
pub struct LintOptions {
    /// Files and folders; `-` alone is standard input.
    pub paths: Vec<PathBuf>,
    /// Codes, prefixes of codes, or names of the rules to check, instead of those in the settings.
    pub select: Option<Vec<String>>,
    /// Rules to skip, instead of those in the settings.
    pub ignore: Option<Vec<String>>,
    /// Lowest severity that is reported, instead of that in the settings.
    pub min_severity: Option<RuleSeverity>,
    /// What to do with fixes.
    pub fixes: FixMode,
    /// Fixes that may be applied.
    pub allowed: Applicability,
    /// Name to report for standard input.
    pub stdin_filename: Option<PathBuf>,
}

/// What to do with fixes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum FixMode {
    /// Do not fix.
    #[default]
    Leave,
    /// Show what fixes would change, as a diff.
    Show,
    /// Write fixed files; fixed standard input becomes [`LintResults::output`].
    Write,
}

/// Results of all files.
#[derive(Default)]
pub struct LintResults {
    /// Number of files that were checked.
    pub checked: usize,
    /// Files with findings or fixes, by name.
    pub files: Vec<LintedFile>,
    /// What could not be read, or not be fixed.
    pub warnings: Vec<String>,
    /// Files that are not Python, or not a notebook.
    pub errors: Vec<String>,
    /// Standard input after its fixes.
    pub output: Option<Vec<u8>>,
}

/// A file with findings, or with fixed ones.
pub struct LintedFile {
    /// Path as the user or the walk named it.
    pub name: String,
    /// Its source, after fixes.
    pub source: PythonSource,
    /// Findings that are left, by position.
    pub found: Vec<Diagnostic>,
    /// Number of findings that were fixed, or would be.
    pub fixed: usize,
    /// What the fixes change; only in [`FixMode::Show`].
    pub diff: String,
}

/// How often a rule was broken.
pub struct RuleCount {
    /// The rule.
    pub rule: &'static Rule,
    /// Severity of its worst finding.
    pub worst: RuleSeverity,
    /// Number of findings.
    pub count: usize,
    /// Number of findings with a fix.
    pub fixable: usize,
}

/// Checks everything that the options name.
pub fn check(options: &LintOptions) -> anyhow::Result<LintResults> {
    files::check(options, &LintSettings::new(options)?)
}

impl LintResults {
    /// Returns every finding with its file.
    pub fn findings(&self) -> impl Iterator<Item = (&LintedFile, &Diagnostic)> {
        self.files.iter().flat_map(|file| file.found.iter().map(move |found| (file, found)))
    }

    /// Returns how many findings fixes of this kind could fix.
    pub fn fixable(&self, applicability: Applicability) -> usize {
        let fixes = self.findings().filter_map(|(_, found)| found.fix.as_ref());
        fixes.filter(|fix| fix.applicability == applicability).count()
    }

    /// Returns how many findings were fixed, or would be.
    pub fn fixed(&self) -> usize {
        self.files.iter().map(|file| file.fixed).sum()
    }

    /// Returns how often each rule was broken, the most frequent first.
    pub fn by_rule(&self) -> Vec<RuleCount> {
        let mut counts: Vec<RuleCount> = RULES
            .iter()
            .filter_map(|rule| {
                let of_rule: Vec<_> = self.findings().filter(|(_, found)| found.rule == *rule).collect();
                Some(RuleCount {
                    rule,
                    worst: of_rule.iter().map(|(_, found)| found.severity).max()?,
                    count: of_rule.len(),
                    fixable: of_rule.iter().filter(|(_, found)| found.fix.is_some()).count(),
                })
            })
            .collect();
        counts.sort_by_key(|row| Reverse(row.count));
        counts
    }

    /// Returns how many findings have this severity.
    pub fn count(&self, severity: RuleSeverity) -> usize {
        self.findings().filter(|(_, found)| found.severity == severity).count()
    }
}
