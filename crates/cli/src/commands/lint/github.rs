//! `--format github`: annotations on the lines of a pull request.

use crate::commands::annotation;
use crate::terminal::Terminal;
use lint::{Diagnostic, RuleSeverity};
use project::{LintResults, LintedFile};

pub(super) fn print(looked: &LintResults, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (file, found) in looked.findings() {
        terminal.command(&annotation(file, found))?;
    }
    Ok(())
}

fn annotation(file: &LintedFile, found: &Diagnostic) -> String {
    let level = match found.severity {
        RuleSeverity::High => "error",
        RuleSeverity::Medium => "warning",
        RuleSeverity::Low => "notice",
    };
    let (start, end) = (file.source.place(found.range.start), file.source.place(found.range.end));
    // The lines of a notebook's file are not those of its cells.
    let mut properties = vec![("file", file.name.clone())];
    let cell = match start.cell {
        Some(cell) => format!("cell {cell}, line {}: ", start.line),
        None => {
            let place = [("line", start.line), ("col", start.column), ("endLine", end.line)];
            properties.extend(place.map(|(name, number)| (name, number.to_string())));
            String::new()
        }
    };
    properties.push(("title", format!("{} {}", found.rule.code, found.rule.name)));
    annotation::line(level, &properties, &format!("{cell}{}\n{}", found.message, found.advice))
}
