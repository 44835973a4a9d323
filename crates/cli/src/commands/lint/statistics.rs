//! `--statistics`: how often each rule was broken.

use super::text::style;
use crate::terminal::Terminal;
use project::{LintResults, RuleCount};
use std::io::Write;

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
