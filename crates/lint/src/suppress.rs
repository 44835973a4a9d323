//! Suppression comments: `# oomph: ignore` and `# oomph: ignore[rule, rule]`.

use crate::rule::Diagnostic;
use crate::source::PythonSource;
use crate::tree::SourceRange;
use rustc_hash::FxHashMap;

/// Lines on which some rules, or all, are ignored.
pub(crate) struct Ignored<'a> {
    /// Names of rules by line; an empty list means all rules.
    lines: FxHashMap<usize, Vec<&'a str>>,
    /// `# oomph: ignore-file[…]`.
    file: Vec<Vec<&'a str>>,
}

impl<'a> Ignored<'a> {
    pub(crate) fn new(source: &'a PythonSource, comments: &[SourceRange]) -> Ignored<'a> {
        let mut ignored = Ignored { lines: FxHashMap::default(), file: Vec::new() };
        for comment in comments {
            let Some((is_file, names)) = directive(source.slice(*comment)) else { continue };
            if is_file {
                ignored.file.push(names);
            } else {
                ignored.lines.insert(source.line_at(comment.start), names);
            }
        }
        ignored
    }

    /// Returns whether a comment on any line of the finding suppresses it.
    pub(crate) fn covers(&self, source: &PythonSource, diagnostic: &Diagnostic) -> bool {
        let means = |names: &Vec<&str>| {
            names.is_empty() || names.iter().any(|name| diagnostic.rule.is_selected_by(name))
        };
        let (first, last) = (source.line_at(diagnostic.range.start), source.line_at(diagnostic.range.end));
        self.file.iter().any(means) || (first..=last).any(|line| self.lines.get(&line).is_some_and(means))
    }
}

/// Returns the rules that a comment names, and whether it applies to the whole file.
fn directive(comment: &str) -> Option<(bool, Vec<&str>)> {
    let at = comment.find("oomph:")?;
    let rest = comment[at + "oomph:".len()..].trim_start().strip_prefix("ignore")?;
    let (is_file, rest) = match rest.strip_prefix("-file") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let rest = rest.trim_start();
    if let Some(names) = rest.strip_prefix('[') {
        let names = names.split(']').next().unwrap_or("");
        let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        // `ignore[]` names nothing, and so ignores nothing.
        return if names.is_empty() { None } else { Some((is_file, names)) };
    }
    Some((is_file, Vec::new()))
}
