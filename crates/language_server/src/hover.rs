//! Text of a rule, where the pointer is on a finding or on a rule's name in `# oomph: ignore[…]`.

use crate::source_map::SourceMap;
use gen_lsp_types::Position;
use lint::{Rule, SourceRange};
use serde_json::{Value, json};

/// Returns the result of a request; `null` if there is nothing to say about the position.
pub(crate) fn hover(
    map: &SourceMap,
    found: &[lint::Diagnostic],
    uri: &str,
    position: Position,
    markdown: bool,
) -> Value {
    let Some(offset) = map.offset(uri, position) else { return Value::Null };
    let is_here = |range: SourceRange| range.start <= offset && offset <= range.end;
    let here: Vec<&lint::Diagnostic> = found.iter().filter(|found| is_here(found.range)).collect();
    let (range, mut rules) = match (lint::rules_ignored_at(&map.source, offset), here.first()) {
        (Some(named), _) => named,
        (None, Some(first)) => (first.range, here.iter().map(|found| found.rule).collect()),
        (None, None) => return Value::Null,
    };
    rules.dedup();
    let Some((_, range)) = map.locate(range) else { return Value::Null };
    let text: Vec<String> = rules.into_iter().map(text).collect();
    let kind = if markdown { "markdown" } else { "plaintext" };
    json!({"contents": {"kind": kind, "value": text.join("\n\n")}, "range": range})
}

/// What the rule is about, without its examples: they are behind the link.
fn text(rule: &Rule) -> String {
    let Rule { code, name, summary, why, costs, .. } = rule;
    let (why, costs, url) = (why.trim(), costs.trim(), rule.url());
    format!("**[{code} {name}]({url})**: {summary}\n\n{why}\n\n**What it costs**: {costs}")
}
