//! `# oomph: ignore` and `# oomph: ignore[rule, rule]`.

use crate::rule::Diagnostic;
use crate::source::Source;
use crate::tree::Range;
use rustc_hash::FxHashMap;

/// The lines on which some rules, or all, have nothing to say.
pub(crate) struct Ignored<'a> {
    /// By line; no names are all rules.
    lines: FxHashMap<usize, Vec<&'a str>>,
    /// `# oomph: ignore-file[…]`
    file: Vec<Vec<&'a str>>,
}

impl<'a> Ignored<'a> {
    pub(crate) fn new(source: &'a Source, comments: &[Range]) -> Ignored<'a> {
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

    /// A comment counts on any line of what the finding is about.
    pub(crate) fn covers(&self, source: &Source, diagnostic: &Diagnostic) -> bool {
        let means = |names: &Vec<&str>| {
            names.is_empty() || names.iter().any(|name| diagnostic.rule.is_meant_by(name))
        };
        let (first, last) = (source.line_at(diagnostic.range.start), source.line_at(diagnostic.range.end));
        self.file.iter().any(means) || (first..=last).any(|line| self.lines.get(&line).is_some_and(means))
    }
}

/// The rules that a comment names, and whether for the whole file.
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
