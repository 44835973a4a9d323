//! `oomph lint --format sarif`: SARIF 2.1.0, as code scanning services take it.

use lint::{Diagnostic, RULES, Rule, RuleSeverity, SourceRange};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use project::{LintResults, LintedFile};
use serde_json::{Value, json};

/// Findings of the linter as SARIF.
pub fn sarif(looked: &LintResults) -> Value {
    let results: Vec<Value> = looked.findings().map(|(file, found)| result(file, found)).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "oomph",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": RULES.iter().map(|rule| described(rule)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn described(rule: &Rule) -> Value {
    json!({
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "helpUri": rule.url(),
        "help": {"text": format!("{}\n\n{}", rule.why, rule.costs), "markdown": rule.page()},
        "defaultConfiguration": {"level": level(rule.severity)},
    })
}

fn level(severity: RuleSeverity) -> &'static str {
    match severity {
        RuleSeverity::High => "error",
        RuleSeverity::Medium => "warning",
        RuleSeverity::Low => "note",
    }
}

fn result(file: &LintedFile, found: &Diagnostic) -> Value {
    let artifact = json!({"uri": uri(&file.name)});
    let mut location =
        json!({"physicalLocation": {"artifactLocation": artifact, "region": region(file, found.range)}});
    if let Some(cell) = file.source.place(found.range.start).cell {
        location["logicalLocations"] = json!([{"name": format!("cell {cell}")}]);
    }
    let mut result = json!({
        "ruleId": found.rule.code,
        "ruleIndex": RULES.iter().position(|rule| *rule == found.rule),
        "level": level(found.severity),
        "message": {"text": format!("{}\n{}", found.message, found.advice).trim()},
        "locations": [location],
    });
    // Its regions are those of a file, which the cells of a notebook are not.
    if let Some(fix) = found.fix.as_ref().filter(|_| !file.source.is_notebook()) {
        let replacements = fix.edits.iter().map(
            |edit| json!({"deletedRegion": region(file, edit.range), "insertedContent": {"text": edit.text}}),
        );
        let changes = json!([{
            "artifactLocation": artifact,
            "replacements": replacements.collect::<Vec<_>>(),
        }]);
        result["fixes"] = json!([{
            "description": {"text": fix.title},
            "artifactChanges": changes,
            "properties": {"applicability": fix.applicability.name()},
        }]);
    }
    result
}

fn region(file: &LintedFile, range: SourceRange) -> Value {
    let (start, end) = (file.source.place(range.start), file.source.place(range.end));
    json!({
        "startLine": start.line,
        "startColumn": start.column,
        "endLine": end.line,
        "endColumn": end.column,
    })
}

/// Bytes of a path that stand for themselves in a URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A path as a URI reference; relative paths stay relative.
fn uri(path: &str) -> String {
    let path = path.replace('\\', "/");
    let has_drive = path.get(1..3) == Some(":/");
    let scheme = match (path.starts_with('/'), has_drive) {
        (true, _) => "file://",
        (_, true) => "file:///",
        _ => "",
    };
    format!("{scheme}{}", utf8_percent_encode(&path, PATH))
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn paths_are_references() {
        assert_eq!(uri("src/my model/é.py"), "src/my%20model/%C3%A9.py");
        assert_eq!(uri("/src/a#b.py"), "file:///src/a%23b.py");
        assert_eq!(uri(r"src\a.py"), "src/a.py");
        assert_eq!(uri(r"C:\src\a.py"), "file:///C%3A/src/a.py");
    }
}
