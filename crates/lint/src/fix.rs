//! Fixes applied to a source.

use crate::rule::{Diagnostic, Edit, Rule};
use crate::source::Source;

/// Fixes make room for others; no source needs as many rounds as this.
const ROUNDS: usize = 16;

/// A source after its fixes.
#[derive(Debug)]
pub struct Fixed {
    pub source: Source,
    /// How many findings are gone.
    pub count: usize,
    /// The findings that are left.
    pub left: Vec<Diagnostic>,
}

/// Applies every fix of these findings and of those that come after them. The source of a notebook stays as it is: its cells are
/// somebody else's file format.
pub fn fix(
    source: Source,
    found: Vec<Diagnostic>,
    rules: &[&'static Rule],
    is_wanted: impl Fn(&Diagnostic) -> bool,
) -> Fixed {
    let mut fixed = Fixed { source, count: 0, left: found };
    for _ in 0..ROUNDS {
        if fixed.source.is_notebook() {
            break;
        }
        let (text, count) = apply(fixed.source.text(), &fixed.left);
        if count == 0 {
            break;
        }
        let source = Source::python(text.as_bytes());
        // A fix that leaves no Python, or leaves as many findings as there were, is not taken.
        let Ok(mut left) = crate::check(&source, rules) else { break };
        left.retain(&is_wanted);
        if left.len() >= fixed.left.len() {
            break;
        }
        fixed = Fixed { source, count: fixed.count + fixed.left.len() - left.len(), left };
    }
    fixed
}

/// The text with all fixes that do not touch each other (of two that do, the first), and how many those are.
fn apply(text: &str, found: &[Diagnostic]) -> (String, usize) {
    let mut taken: Vec<&Edit> = Vec::new();
    let mut count = 0;
    for fix in found.iter().filter_map(|diagnostic| diagnostic.fix.as_ref()) {
        let fits = |edit: &Edit| {
            text.get(edit.range.bytes()).is_some() && !taken.iter().any(|other| touch(edit, other))
        };
        if !fix.edits.is_empty() && fix.edits.iter().all(fits) {
            taken.extend(&fix.edits);
            count += 1;
        }
    }
    // Stable: edits of one fix at one place stay in its order.
    taken.sort_by_key(|edit| edit.range);
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let (mut fixed, mut at) = (String::with_capacity(text.len() + 64 * count), 0);
    for edit in taken {
        let range = edit.range.bytes();
        fixed.push_str(&text[at..range.start.max(at)]);
        fixed.push_str(&edit.text.replace('\n', newline));
        at = range.end.max(at);
    }
    fixed.push_str(&text[at..]);
    (fixed, count)
}

fn touch(a: &Edit, b: &Edit) -> bool {
    a.range.start <= b.range.end && b.range.start <= a.range.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Fix, Severity};
    use crate::{RULES, Range};

    fn finding(edits: &[(u32, u32, &str)]) -> Diagnostic {
        let edits = edits
            .iter()
            .map(|&(start, end, text)| Edit { range: Range { start, end }, text: text.to_owned() })
            .collect();
        RULES[0]
            .at(Severity::Low, Range::default(), String::new())
            .fix(Some(Fix { title: String::new(), edits }))
    }

    #[test]
    fn of_two_fixes_that_touch_the_first_is_applied_whole() {
        let found = [finding(&[(0, 1, "A"), (4, 5, "E")]), finding(&[(1, 2, "B")]), finding(&[(2, 3, "C")])];
        assert_eq!(apply("abcde", &found), ("AbCdE".to_owned(), 2));
    }

    #[test]
    fn a_new_line_ends_as_the_others_do() {
        assert_eq!(apply("a\r\nb\r\n", &[finding(&[(0, 0, "@x\n")])]).0, "@x\r\na\r\nb\r\n");
        assert_eq!(apply("a\nb", &[finding(&[(0, 0, "@x\n")])]).0, "@x\na\nb");
    }

    #[test]
    fn an_edit_outside_of_the_text_is_left_out() {
        assert_eq!(apply("é", &[finding(&[(1, 1, "x")]), finding(&[(9, 9, "x")])]), ("é".to_owned(), 0));
    }
}
