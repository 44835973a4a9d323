//! `--format json`: a list of findings.

use crate::terminal::Terminal;
use lint::{Diagnostic, SourceRange};
use project::{LintResults, LintedFile};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct LintFinding<'a> {
    code: &'a str,
    name: &'a str,
    severity: &'a str,
    file: &'a str,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    /// Of a notebook; the lines are then those of the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    message: &'a str,
    advice: &'a str,
    fix: Option<FixReport<'a>>,
    related: Vec<RelatedReport>,
}

#[derive(Serialize)]
struct FixReport<'a> {
    title: &'a str,
    applicability: &'a str,
    edits: Vec<EditReport<'a>>,
}

#[derive(Serialize)]
struct EditReport<'a> {
    start_line: usize,
    start_column: usize,
    end_line: usize,
    end_column: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    text: &'a str,
}

#[derive(Serialize)]
struct RelatedReport {
    line: usize,
    column: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
}

pub(super) fn print(looked: &LintResults, terminal: &mut Terminal) -> anyhow::Result<()> {
    let list: Vec<LintFinding<'_>> = looked.findings().map(|(file, found)| finding(file, found)).collect();
    write(&list, terminal)
}

pub(in crate::commands) fn write(value: &impl Serialize, terminal: &mut Terminal) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(terminal.out(), value)?;
    writeln!(terminal.out())?;
    Ok(())
}

fn finding<'a>(file: &'a LintedFile, found: &'a Diagnostic) -> LintFinding<'a> {
    let (start, end) = (file.source.place(found.range.start), file.source.place(found.range.end));
    let fix = found.fix.as_ref().map(|fix| FixReport {
        title: &fix.title,
        applicability: fix.applicability.name(),
        edits: fix.edits.iter().map(|edit| edit_report(file, edit)).collect(),
    });
    LintFinding {
        code: found.rule.code,
        name: found.rule.name,
        severity: found.severity.name(),
        file: &file.name,
        line: start.line,
        column: start.column,
        end_line: end.line,
        end_column: end.column,
        cell: start.cell,
        message: &found.message,
        advice: &found.advice,
        fix,
        related: found.related.iter().map(|range| related(file, *range)).collect(),
    }
}

fn edit_report<'a>(file: &LintedFile, edit: &'a lint::Edit) -> EditReport<'a> {
    let (start, end) = (file.source.place(edit.range.start), file.source.place(edit.range.end));
    EditReport {
        start_line: start.line,
        start_column: start.column,
        end_line: end.line,
        end_column: end.column,
        cell: start.cell,
        text: &edit.text,
    }
}

fn related(file: &LintedFile, range: SourceRange) -> RelatedReport {
    let place = file.source.place(range.start);
    RelatedReport { line: place.line, column: place.column, cell: place.cell }
}
