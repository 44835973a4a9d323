//! The JSON of `oomph lint --json`: findings, or how often each rule was broken.

use lint::{Diagnostic, SourceRange};
use project::{LintResults, LintedFile, RuleCount};
use schemars::JsonSchema;
use serde::Serialize;

/// Findings of the linter; with `--statistics`, how often each rule was broken.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(missing_docs, reason = "a comment on a variant would change the schema")]
pub enum LintDocument<'a> {
    Findings(Vec<LintFinding<'a>>),
    Statistics(Vec<RuleStatistics>),
}

/// A finding of the linter. Lines and columns count from 1; columns count characters.
#[derive(Serialize, JsonSchema)]
pub struct LintFinding<'a> {
    /// Code of the rule, such as `OOM101`.
    code: &'a str,
    /// Name of the rule.
    name: &'a str,
    /// Address of the rule's description.
    url: String,
    /// `high`, `medium` or `low`.
    severity: &'a str,
    /// Path of the file.
    file: &'a str,
    /// Line on which it begins.
    line: usize,
    /// Column at which it begins.
    column: usize,
    /// Line on which it ends.
    end_line: usize,
    /// Column behind its end.
    end_column: usize,
    /// Cell of a notebook, from 1; the lines are then those of the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    /// What is wrong.
    message: &'a str,
    /// What to do about it.
    advice: &'a str,
    /// Change that solves it; `null` if there is none.
    fix: Option<FixReport<'a>>,
    /// Related places, such as where a retained value was computed.
    related: Vec<RelatedReport>,
}

/// A change that solves a finding.
#[derive(Serialize, JsonSchema)]
struct FixReport<'a> {
    /// What it does.
    title: &'a str,
    /// `safe` or `unsafe`.
    applicability: &'a str,
    /// Replacements of text.
    edits: Vec<EditReport<'a>>,
}

/// A replacement of text.
#[derive(Serialize, JsonSchema)]
struct EditReport<'a> {
    /// Line on which the replaced text begins.
    start_line: usize,
    /// Column at which it begins.
    start_column: usize,
    /// Line on which it ends.
    end_line: usize,
    /// Column behind its end.
    end_column: usize,
    /// Cell of a notebook, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    /// New text.
    text: &'a str,
}

/// A place that belongs to a finding.
#[derive(Serialize, JsonSchema)]
struct RelatedReport {
    /// Line number.
    line: usize,
    /// Column.
    column: usize,
    /// Cell of a notebook, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
}

/// How often a rule was broken.
#[derive(Serialize, JsonSchema)]
pub struct RuleStatistics {
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

impl LintDocument<'_> {
    /// Lists all findings.
    pub fn findings(results: &LintResults) -> LintDocument<'_> {
        LintDocument::Findings(results.findings().map(|(file, found)| finding(file, found)).collect())
    }

    /// Counts the findings of each rule.
    pub fn statistics(results: &LintResults) -> LintDocument<'static> {
        let statistics = |RuleCount { rule, worst, count, fixable }| RuleStatistics {
            code: rule.code,
            name: rule.name,
            severity: worst.name(),
            count,
            fixable,
        };
        LintDocument::Statistics(results.by_rule().into_iter().map(statistics).collect())
    }
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
        url: found.rule.url(),
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
