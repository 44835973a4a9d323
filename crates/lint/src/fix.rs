//! Application of fixes to a source.

use crate::edit::{Applicability, Edit, Fix};
use crate::rule::{Diagnostic, Rule};
use crate::source::PythonSource;

/// Source after its fixes.
#[derive(Debug)]
pub struct Fixed {
    /// Fixed source.
    pub source: PythonSource,
    /// Number of findings that were fixed.
    pub count: usize,
    /// Remaining findings.
    pub left: Vec<Diagnostic>,
}

/// Applies the fixes of these findings that are at most `allowed`, first one first. The source is checked
/// again after each, because one fix often makes another unnecessary: under `no_grad()` there is nothing to
/// detach. The source of a notebook is left unchanged: its cells are part of another file format.
pub fn fix(
    source: PythonSource,
    found: Vec<Diagnostic>,
    rules: &[&'static Rule],
    allowed: Applicability,
    is_wanted: impl Fn(&Diagnostic) -> bool,
) -> Fixed {
    let mut fixed = Fixed { source, count: 0, left: found };
    if fixed.source.is_notebook() {
        return fixed;
    }
    // A fix that leaves invalid Python, or as many findings as before, is rejected; this ensures termination.
    let better = |fixed: &Fixed, fix: &Fix| {
        let source = PythonSource::python(apply(fixed.source.text(), fix)?.as_bytes());
        let mut left = crate::check(&source, rules).ok()?;
        left.retain(&is_wanted);
        let gone = fixed.left.len().checked_sub(left.len()).filter(|gone| *gone > 0)?;
        Some(Fixed { source, count: fixed.count + gone, left })
    };
    let fixes = |fixed: &Fixed| {
        let fixes = fixed.left.iter().filter_map(|found| found.fix.as_ref());
        fixes.filter(|fix| fix.applicability <= allowed).find_map(|fix| better(fixed, fix))
    };
    while let Some(next) = fixes(&fixed) {
        fixed = next;
    }
    fixed
}

/// Returns the text with the edits of a fix applied; `None` if they do not fit the text, or each other.
fn apply(text: &str, fix: &Fix) -> Option<String> {
    let mut edits: Vec<&Edit> = fix.edits.iter().collect();
    // Stable: edits at one position keep their order.
    edits.sort_by_key(|edit| edit.range);
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let (mut fixed, mut at) = (String::with_capacity(text.len() + 64), 0);
    for edit in edits {
        let range = edit.range.bytes();
        fixed.push_str(text.get(at..range.start)?);
        fixed.push_str(&edit.text.replace('\n', newline));
        at = range.end;
    }
    fixed.push_str(text.get(at..)?);
    Some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RULES, SourceRange};

    fn applied(text: &str, edits: &[(u32, u32, &str)]) -> Option<String> {
        let edits = edits
            .iter()
            .map(|&(start, end, text)| Edit { range: SourceRange { start, end }, text: text.to_owned() })
            .collect();
        apply(text, &Fix { title: String::new(), applicability: Applicability::Safe, edits })
    }

    #[test]
    fn edits_fit_or_nothing_is_changed() {
        assert_eq!(applied("abcde", &[(4, 5, "E"), (0, 1, "A")]).as_deref(), Some("AbcdE"));
        assert_eq!(applied("abc", &[(1, 1, "("), (1, 1, "[")]).as_deref(), Some("a([bc"));
        assert_eq!(applied("abcde", &[(0, 3, "x"), (2, 4, "y")]), None, "they overlap");
        assert_eq!((applied("é", &[(1, 1, "x")]), applied("é", &[(9, 9, "x")])), (None, None));
    }

    #[test]
    fn a_new_line_ends_as_the_others_do() {
        assert_eq!(applied("a\r\nb\r\n", &[(0, 0, "@x\n")]).as_deref(), Some("@x\r\na\r\nb\r\n"));
        assert_eq!(applied("a\nb", &[(0, 0, "@x\n")]).as_deref(), Some("@x\na\nb"));
    }

    #[test]
    fn fixes_made_unnecessary_by_another_are_not_applied() {
        let text = "\
import torch


def validate(model, loader, criterion):
    model.eval()
    losses = []
    for x, y in loader:
        loss = criterion(model(x), y)
        losses.append(loss)
    return losses
";
        let source = PythonSource::python(text.as_bytes());
        let found = crate::check(&source, RULES).expect("Python");
        assert_eq!(found.len(), 2, "{found:?}");
        let fixed = fix(source, found, RULES, Applicability::Unsafe, |_| true);
        assert_eq!((fixed.count, fixed.left.len()), (2, 0));
        assert_eq!(fixed.source.text(), text.replace("def validate", "@torch.no_grad()\ndef validate"));
    }
}
