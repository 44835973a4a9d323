//! Application of fixes to a source.

use crate::edit::{Applicability, Fix};
use crate::rule::{Diagnostic, Rule};
use crate::source::PythonSource;
use crate::summary::Imports;

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
/// detach.
pub fn fix(
    source: PythonSource,
    found: Vec<Diagnostic>,
    rules: &[&'static Rule],
    imports: &Imports,
    allowed: Applicability,
    is_wanted: impl Fn(&Diagnostic) -> bool,
) -> Fixed {
    let mut fixed = Fixed { source, count: 0, left: found };
    // A fix that leaves invalid Python, or as many findings as before, is rejected; this ensures termination.
    let better = |fixed: &Fixed, fix: &Fix| {
        let source = fixed.source.edited(&fix.edits)?;
        let mut left = crate::check_module(&source, rules, imports).ok()?.found;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RULES;

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
        let fixed = fix(source, found, RULES, &Imports::default(), Applicability::Unsafe, |_| true);
        assert_eq!((fixed.count, fixed.left.len()), (2, 0));
        assert_eq!(fixed.source.text(), text.replace("def validate", "@torch.no_grad()\ndef validate"));
    }
}
