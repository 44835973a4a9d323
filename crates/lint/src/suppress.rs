//! Suppression comments: `# oomph: ignore` and `# oomph: ignore[rule, rule]`.

use crate::edit::Edit;
use crate::rule::{Diagnostic, Rule};
use crate::rules::RULES;
use crate::source::PythonSource;
use crate::syntax;
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

/// Returns the edit that adds a comment with which a finding is ignored, or its rule to one that is there;
/// `None` if no line of the finding can have one.
pub fn ignore_comment(source: &PythonSource, diagnostic: &Diagnostic) -> Option<Edit> {
    let program = syntax::parse(source.text(), source.is_notebook()).ok()?;
    let (first, last) = (source.line_at(diagnostic.range.start), source.line_at(diagnostic.range.end));
    (first..=last).find_map(|line| {
        let is_here = |comment: &&SourceRange| source.line_at(comment.start) == line;
        let edit = comment_edit(source, line, program.comments.iter().find(is_here), diagnostic.rule)?;
        // A line may end inside a string, or in a backslash that joins it to the next.
        let edited = source.edited(std::slice::from_ref(&edit))?;
        let program = syntax::parse(edited.text(), edited.is_notebook()).ok()?;
        let names = Ignored::new(&edited, &program.comments).lines.remove(&line)?;
        names.iter().any(|name| diagnostic.rule.is_selected_by(name)).then_some(edit)
    })
}

fn comment_edit(
    source: &PythonSource,
    line: usize,
    comment: Option<&SourceRange>,
    rule: &Rule,
) -> Option<Edit> {
    if let Some(comment) = comment
        && let text = source.slice(*comment)
        && let Some((false, names)) = directive(text)
    {
        // The last name of `# oomph: ignore[a, b]`.
        let last = names.last()?;
        let end = comment.start + (last.as_ptr() as usize - text.as_ptr() as usize + last.len()) as u32;
        return Some(Edit { range: SourceRange { start: end, end }, text: format!(", {}", rule.name) });
    }
    let start = source.line_start(line)?;
    let end = start + source.line_of(start).trim_end().len() as u32;
    Some(Edit { range: SourceRange { start: end, end }, text: format!("  # oomph: ignore[{}]", rule.name) })
}

/// Returns the rules that the word at a position selects in a suppression comment, and the word.
pub fn rules_ignored_at(source: &PythonSource, position: u32) -> Option<(SourceRange, Vec<&'static Rule>)> {
    let line = source.line_start(source.line_at(position))?;
    let text = source.line_of(position);
    let comment = text.get(text.find('#')?..)?;
    let (_, names) = directive(comment)?;
    names.into_iter().find_map(|name| {
        let start = line + (name.as_ptr() as usize - text.as_ptr() as usize) as u32;
        let range = SourceRange { start, end: start + name.len() as u32 };
        let is_meant = range.start <= position && position <= range.end;
        let rules = || RULES.iter().copied().filter(|rule| rule.is_selected_by(name)).collect();
        is_meant.then(|| (range, rules()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    /// The line of the only finding, after its edit.
    #[track_caller]
    fn ignored(kept: &str) -> Option<String> {
        let text = format!(
            "import torch\n\nlosses = []\nfor x, y in loader:\n    \
             loss = torch.nn.functional.mse_loss(model(x), y)\n    loss.backward()\n    {kept}\n"
        );
        let source = PythonSource::python(text.as_bytes());
        let found = check(&source, RULES).expect("Python");
        let of_list = found.iter().find(|found| found.rule.name == "loss-kept-in-list").expect("a finding");
        let edited = source.edited(&[ignore_comment(&source, of_list)?]).expect("it fits");
        let left = check(&edited, RULES).expect("still Python");
        assert!(left.iter().all(|found| found.rule.name != "loss-kept-in-list"), "{}", edited.text());
        Some(edited.text().lines().skip(6).collect::<Vec<_>>().join("|").trim().to_owned())
    }

    #[test]
    fn a_comment_is_added_or_completed() {
        let ignore = "oomph: ignore[loss-kept-in-list]";
        assert_eq!(ignored("losses.append(loss)"), Some(format!("losses.append(loss)  # {ignore}")));
        assert_eq!(
            ignored("losses.append(loss)  # why?"),
            Some(format!("losses.append(loss)  # why?  # {ignore}"))
        );
        assert_eq!(
            ignored("losses.append(loss)  # oomph: ignore[OOM4] warmup").as_deref(),
            Some("losses.append(loss)  # oomph: ignore[OOM4, loss-kept-in-list] warmup")
        );
        assert_eq!(
            ignored("losses.append(  \n        loss\n    )"),
            Some(format!("losses.append(  |        loss  # {ignore}|    )"))
        );
    }

    #[test]
    fn no_comment_where_the_line_goes_on() {
        assert_eq!(ignored("losses.append(loss); \\\n        y = 1"), None);
    }

    #[test]
    fn names_in_comments_are_rules() {
        let text = "a = 1  # oomph: ignore[OOM101, retain-graph-in-loop, OOM4]\n";
        let source = PythonSource::python(text.as_bytes());
        let at = |word: &str| {
            let position = text.find(word).expect("a word") as u32 + 1;
            let (range, rules) = rules_ignored_at(&source, position)?;
            Some((source.slice(range).to_owned(), rules.len(), rules.first()?.code))
        };
        assert_eq!(at("OOM101"), Some(("OOM101".to_owned(), 1, "OOM101")));
        assert_eq!(at("retain"), Some(("retain-graph-in-loop".to_owned(), 1, "OOM201")));
        assert_eq!(at("OOM4").map(|(_, count, _)| count > 1), Some(true));
        assert_eq!((at("a = 1"), at("oomph")), (None, None));
    }
}
