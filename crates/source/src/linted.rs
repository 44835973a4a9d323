//! Linter findings on the lines named by a recording, if the source files are there.

use analysis::{Finding, FindingKind, SiteName};
use lint::{Diagnostic, PythonSource, RULES};
use snapshot::Snapshot;
use std::collections::HashMap;

/// Linter findings of the files seen so far; each file is parsed once.
#[derive(Default)]
pub struct LintCache {
    files: HashMap<String, Option<(PythonSource, Vec<Diagnostic>)>>,
}

/// Linter finding that concerns a line.
pub struct LintRemark {
    /// Line of the finding, from 1.
    pub line: usize,
    /// The finding.
    pub found: Diagnostic,
}

impl LintCache {
    /// Returns the linter findings on the line of a leak, or on another line that keeps its result alive.
    pub fn of(&mut self, finding: &Finding, snapshot: &Snapshot) -> Vec<LintRemark> {
        match finding.site {
            Some(frame) if finding.kind == FindingKind::Leak => self.at(&SiteName::of(snapshot, frame)),
            _ => Vec::new(),
        }
    }

    fn at(&mut self, site: &SiteName) -> Vec<LintRemark> {
        let file = self.files.entry(site.file.clone()).or_insert_with(|| {
            let source = PythonSource::python(crate::read_file(&site.file)?.as_bytes());
            let found = lint::check(&source, RULES).ok()?;
            Some((source, found))
        });
        let Some((source, found)) = file else { return Vec::new() };
        let is_there = |position: u32| source.line(position) == site.line as usize;
        let concerns = |found: &&Diagnostic| {
            is_there(found.range.start) || found.related.iter().any(|range| is_there(range.start))
        };
        let remark =
            |found: &Diagnostic| LintRemark { line: source.line(found.range.start), found: found.clone() };
        found.iter().filter(concerns).map(remark).collect()
    }
}
