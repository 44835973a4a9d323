//! `--statistics`: how often each rule was broken.

use super::json::LintDocument;
use super::text::style;
use crate::commands::document;
use crate::terminal::Terminal;
use project::{LintResults, RuleCount};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::Write;

/// How often a rule was broken.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct RuleStatistics {
    /// Code of the rule, such as `OOM101`.
    code: &'static str,
    /// Name of the rule.
    name: &'static str,
    /// Severity of its worst finding: `high`, `medium` or `low`.
    severity: &'static str,
    /// Number of findings.
    count: usize,
    /// Number of findings with a fix.
    fixable: usize,
}

pub(super) fn print(looked: &LintResults, terminal: &mut Terminal) -> anyhow::Result<()> {
    let rows = looked.by_rule();
    let width = rows.first().map_or(0, |row| row.count.to_string().len());
    for RuleCount { rule, worst, count, fixable } in rows {
        let severity = terminal.paint(style(worst), &format!("{:6}", worst.name()));
        let fix = if fixable > 0 { format!("   ({fixable} with a fix)") } else { String::new() };
        writeln!(terminal.out(), "{count:>width$}  {severity}  {} {}{fix}", rule.code, rule.name)?;
    }
    Ok(())
}

pub(super) fn print_json(looked: &LintResults, terminal: &mut Terminal) -> anyhow::Result<()> {
    let statistics = |RuleCount { rule, worst, count, fixable }| RuleStatistics {
        code: rule.code,
        name: rule.name,
        severity: worst.name(),
        count,
        fixable,
    };
    let rows = looked.by_rule().into_iter().map(statistics).collect();
    document::print_sorted(&LintDocument::Statistics(rows), terminal)
}
