//! Fixes of findings, as edits of the source.

use crate::tree::SourceRange;

/// Whether a fix may be applied without review.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Applicability {
    /// Does not change the behaviour of the program, except for its memory.
    #[default]
    Safe,
    /// Right in most programs, but the source does not prove it for this one.
    Unsafe,
}

impl Applicability {
    /// Returns the name used in output: `safe` or `unsafe`.
    pub fn name(self) -> &'static str {
        match self {
            Applicability::Safe => "safe",
            Applicability::Unsafe => "unsafe",
        }
    }
}

/// Edits that remove the cause of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fix {
    /// What the fix does, in a few words.
    pub title: String,
    /// Whether it may be applied without review.
    pub applicability: Applicability,
    /// Edits of the source, which do not overlap.
    pub edits: Vec<Edit>,
}

/// Replacement of a range of the source by a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    /// Range that is replaced; empty for an insertion.
    pub range: SourceRange,
    /// New text.
    pub text: String,
}

/// Returns a part of the text with edits applied; `None` if they do not fit it, or each other.
pub(crate) fn apply(text: &str, part: SourceRange, edits: &[&Edit]) -> Option<String> {
    let mut edits = edits.to_vec();
    // Stable: edits at one position keep their order.
    edits.sort_by_key(|edit| edit.range);
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let part = part.bytes();
    let (mut edited, mut at) = (String::with_capacity(part.len() + 64), part.start);
    for edit in edits {
        let range = edit.range.bytes();
        edited.push_str(text.get(at..range.start)?);
        edited.push_str(&edit.text.replace('\n', newline));
        at = range.end;
    }
    edited.push_str(text.get(at..part.end)?);
    Some(edited)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str, edits: &[(u32, u32, &str)]) -> Option<String> {
        let edit = |&(start, end, text): &(u32, u32, &str)| Edit {
            range: SourceRange { start, end },
            text: text.to_owned(),
        };
        let edits: Vec<Edit> = edits.iter().map(edit).collect();
        apply(text, SourceRange { start: 0, end: text.len() as u32 }, &edits.iter().collect::<Vec<_>>())
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
}
