//! Rules and their findings.

use crate::checked::Checked;
use crate::edit::Fix;
use crate::severity::RuleSeverity;
use crate::tree::SourceRange;

/// Page of the documentation that describes all rules.
const RULES_URL: &str = "https://oomph-dev.github.io/oomph/reference/rules/";

/// A mistake that is visible in the source.
pub struct Rule {
    /// Code: `OOM101`.
    pub code: &'static str,
    /// Name: `loss-kept-in-list`, which reads well after "allow".
    pub name: &'static str,
    /// What is wrong, in one line.
    pub summary: &'static str,
    /// Highest severity of its findings.
    pub severity: RuleSeverity,
    /// Explanation of the cause.
    pub why: &'static str,
    /// Measured cost, and how it was measured.
    pub costs: &'static str,
    /// Python code with the mistake; a test checks that it is reported.
    pub bad: &'static str,
    /// Corrected Python code; a test checks that it is not reported.
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
    /// Returns whether `OOM101`, `OOM1`, `loss-kept-in-list` or `all` selects this rule.
    pub fn is_selected_by(&self, selector: &str) -> bool {
        let selector = selector.trim();
        selector.eq_ignore_ascii_case("all")
            || selector.eq_ignore_ascii_case(self.name)
            || selector.len() >= 3
                && self.code.get(..selector.len()).is_some_and(|start| start.eq_ignore_ascii_case(selector))
    }

    /// Returns the address of the rule in the documentation.
    pub fn url(&self) -> String {
        format!("{RULES_URL}#{}-{}", self.code.to_ascii_lowercase(), self.name)
    }

    /// Returns the manual page of the rule, in Markdown.
    pub fn page(&self) -> String {
        format!(
            "# {} {}\n\n{}\n\n**Severity**: {}\n\n{}\n\n## What it costs\n\n{}\n\n## \
             Bad\n\n```python\n{}\n```\n\n## Good\n\n```python\n{}\n```\n",
            self.code,
            self.name,
            self.summary,
            self.severity.name(),
            self.why.trim(),
            self.costs.trim(),
            self.bad.trim(),
            self.good.trim()
        )
    }

    pub(crate) fn at(
        &'static self,
        severity: RuleSeverity,
        range: SourceRange,
        message: String,
    ) -> Diagnostic {
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

/// Finding of a rule at a position.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnostic {
    /// Rule that reports it.
    pub rule: &'static Rule,
    /// Severity at this position, at most that of the rule.
    pub severity: RuleSeverity,
    /// What happens there, and what it costs.
    pub message: String,
    /// What to do instead.
    pub advice: String,
    /// Range of the source that it is about.
    pub range: SourceRange,
    /// Related positions: where what is kept was computed.
    pub related: Vec<SourceRange>,
    /// Fix, if there is one.
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

    pub(crate) fn about(mut self, related: Vec<SourceRange>) -> Diagnostic {
        self.related = related;
        self
    }
}
