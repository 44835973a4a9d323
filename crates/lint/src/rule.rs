//! What a rule is, and what it says.

use crate::checked::Checked;
use crate::tree::Range;

/// How much a mistake costs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// A scalar, or host memory, or time.
    Low,
    /// A higher peak, or a fixed amount.
    Medium,
    /// Device memory on every step.
    High,
}

impl Severity {
    pub fn word(self) -> &'static str {
        match self {
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

/// One mistake that can be seen in the source.
pub struct Rule {
    /// `OOM101`
    pub code: &'static str,
    /// `loss-kept-in-list`: reads well behind "allow".
    pub name: &'static str,
    /// What is wrong, in a line.
    pub says: &'static str,
    /// The most that it costs.
    pub severity: Severity,
    /// Why it happens.
    pub why: &'static str,
    /// What it truly costs, and how that is known.
    pub costs: &'static str,
    pub bad: &'static str,
    pub good: &'static str,
    pub(crate) check: fn(&Checked<'_, '_, '_>, &mut Vec<Diagnostic>),
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.code == other.code
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name)
    }
}

impl Rule {
    /// Whether `OOM101`, `OOM1`, `loss-kept-in-list` or `all` means this rule.
    pub fn is_meant_by(&self, selector: &str) -> bool {
        let selector = selector.trim();
        selector.eq_ignore_ascii_case("all")
            || selector.eq_ignore_ascii_case(self.name)
            || selector.len() >= 3
                && self.code.get(..selector.len()).is_some_and(|start| start.eq_ignore_ascii_case(selector))
    }

    /// The manual page of the rule, in Markdown.
    pub fn page(&self) -> String {
        format!(
            "# {} {}\n\n{}\n\n**Severity**: {}\n\n{}\n\n## What it costs\n\n{}\n\n## Bad\n\n```python\n{}\n```\n\n## Good\n\n```python\n{}\n```\n",
            self.code,
            self.name,
            self.says,
            self.severity.word(),
            self.why.trim(),
            self.costs.trim(),
            self.bad.trim(),
            self.good.trim()
        )
    }

    pub(crate) fn at(&'static self, severity: Severity, range: Range, message: String) -> Diagnostic {
        Diagnostic {
            rule: self,
            severity,
            message,
            advice: String::new(),
            range,
            related: Vec::new(),
            fix: None,
        }
    }
}

/// A rule speaks about a place.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnostic {
    pub rule: &'static Rule,
    pub severity: Severity,
    /// What happens there, and what it costs.
    pub message: String,
    /// What to do instead.
    pub advice: String,
    pub range: Range,
    /// Other places that have to do with it: where what is kept was computed.
    pub related: Vec<Range>,
    pub fix: Option<Fix>,
}

impl Diagnostic {
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Diagnostic {
        self.advice = advice.into();
        self
    }

    pub(crate) fn fix(mut self, fix: Option<Fix>) -> Diagnostic {
        self.fix = fix;
        self
    }

    pub(crate) fn about(mut self, related: Vec<Range>) -> Diagnostic {
        self.related = related;
        self
    }
}

/// Whether a fix may be applied unread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Applicability {
    /// Cannot change what the program does, except for the memory that it takes.
    Safe,
    /// Right in most programs, but the source does not show that it is in this one.
    Unsafe,
}

impl Applicability {
    pub fn word(self) -> &'static str {
        match self {
            Applicability::Safe => "safe",
            Applicability::Unsafe => "unsafe",
        }
    }
}

/// Edits that remove what a finding is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fix {
    pub title: String,
    pub applicability: Applicability,
    pub edits: Vec<Edit>,
}

/// Puts a text in the place of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    pub range: Range,
    pub text: String,
}
