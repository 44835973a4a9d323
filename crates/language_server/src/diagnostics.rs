//! Findings as the protocol has them.

use crate::source_map::{OpenPart, SourceMap};
use gen_lsp_types::{
    Code, CodeDescription, Diagnostic, DiagnosticRelatedInformation, DiagnosticSeverity, Location, Message,
    Uri,
};
use lint::{RuleSeverity, SourceRange};

/// Returns the diagnostic of a finding, and the URI of its text.
pub(crate) fn diagnostic(
    found: &lint::Diagnostic,
    map: &SourceMap,
    with_related: bool,
) -> Option<(String, Diagnostic)> {
    let (part, range) = map.locate(first_line(found.range, map))?;
    let related = with_related.then(|| related(found, map)).filter(|related| !related.is_empty());
    let advice = if found.advice.is_empty() { String::new() } else { format!("\nfix: {}", found.advice) };
    let diagnostic = Diagnostic {
        range,
        severity: Some(match found.severity {
            RuleSeverity::High => DiagnosticSeverity::Warning,
            // Editors hide hints, and lists of problems leave them out.
            RuleSeverity::Medium | RuleSeverity::Low => DiagnosticSeverity::Information,
        }),
        code: Some(Code::String(found.rule.code.to_owned())),
        code_description: Some(CodeDescription { href: Uri(found.rule.url()) }),
        source: Some("oomph".to_owned()),
        message: Message::String(format!("{}{advice}", found.message)),
        tags: None,
        related_information: related,
        data: None,
    };
    Some((part.uri.clone(), diagnostic))
}

/// What is underlined: a call over several lines would be half a screen.
fn first_line(range: SourceRange, map: &SourceMap) -> SourceRange {
    let text = map.source.slice(range);
    let line = text.split(['\r', '\n']).next().unwrap_or("").trim_end();
    SourceRange { start: range.start, end: range.start + line.len() as u32 }
}

fn related(found: &lint::Diagnostic, map: &SourceMap) -> Vec<DiagnosticRelatedInformation> {
    let located = found.related.iter().filter_map(|range| map.locate(first_line(*range, map)));
    let information = |(part, range): (&OpenPart, _)| DiagnosticRelatedInformation {
        location: Location { uri: Uri(part.uri.clone()), range },
        message: "computed here".to_owned(),
    };
    located.map(information).collect()
}
