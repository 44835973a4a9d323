//! The JSON of `oomph rule --json`.

use lint::Rule;
use schemars::JsonSchema;
use serde::Serialize;

/// Rules of the linter.
#[derive(Serialize, JsonSchema)]
pub struct RuleDocument(Vec<RuleReport>);

/// A rule of the linter.
#[derive(Serialize, JsonSchema)]
struct RuleReport {
    /// Code, such as `OOM101`.
    code: &'static str,
    /// Name, such as `loss-kept-in-list`.
    name: &'static str,
    /// `high`, `medium` or `low`.
    severity: &'static str,
    /// What it finds, in one sentence.
    says: &'static str,
    /// Why that is a mistake.
    why: &'static str,
    /// What the mistake costs.
    costs: &'static str,
    /// Python code with the mistake.
    bad: &'static str,
    /// The same code without it.
    good: &'static str,
}

impl RuleDocument {
    /// Describes rules, in this order.
    pub fn new(rules: &[&Rule]) -> RuleDocument {
        RuleDocument(rules.iter().map(|rule| described(rule)).collect())
    }
}

fn described(rule: &Rule) -> RuleReport {
    RuleReport {
        code: rule.code,
        name: rule.name,
        severity: rule.severity.name(),
        says: rule.summary,
        why: rule.why.trim(),
        costs: rule.costs.trim(),
        bad: rule.bad.trim(),
        good: rule.good.trim(),
    }
}
