//! What the linter says of the lines that a recording names, where the program's files are at hand.

use analysis::{Finding, FindingKind, SiteName};
use lint::{Diagnostic, PythonSource, RULES};
use snapshot::Snapshot;
use std::collections::HashMap;

/// Files that were checked; each is parsed once.
#[derive(Default)]
pub struct Linted {
    files: HashMap<String, Option<(PythonSource, Vec<Diagnostic>)>>,
}

/// The linter on a line of the program.
pub struct Remark {
    pub line: usize,
    pub found: Diagnostic,
}

impl Linted {
    /// What is said of the line of a leak: the line itself, or another that keeps what this one computes.
    pub fn of(&mut self, finding: &Finding, snapshot: &Snapshot) -> Vec<Remark> {
        match finding.site {
            Some(frame) if finding.kind == FindingKind::Leak => self.at(&SiteName::of(snapshot, frame)),
            _ => Vec::new(),
        }
    }

    fn at(&mut self, place: &SiteName) -> Vec<Remark> {
        let file = self.files.entry(place.file.clone()).or_insert_with(|| {
            let source = PythonSource::python(crate::whole(&place.file)?.as_bytes());
            let found = lint::check(&source, RULES).ok()?;
            Some((source, found))
        });
        let Some((source, found)) = file else { return Vec::new() };
        let is_there = |position: u32| source.line(position) == place.line as usize;
        let concerns = |found: &&Diagnostic| {
            is_there(found.range.start) || found.related.iter().any(|range| is_there(range.start))
        };
        let remark =
            |found: &Diagnostic| Remark { line: source.line(found.range.start), found: found.clone() };
        found.iter().filter(concerns).map(remark).collect()
    }
}
