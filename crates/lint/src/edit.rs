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
