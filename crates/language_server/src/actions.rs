//! Code actions: fixes of findings, comments that ignore them, and all safe fixes of a file.

use crate::client::{ClientFeatures, FIX_ALL};
use crate::diagnostics::diagnostic;
use crate::source_map::{OpenPart, SourceMap};
use gen_lsp_types::{CodeActionParams, TextEdit};
use lint::{Applicability, Edit, PythonSource};
use project::BufferReport;
use serde_json::{Map, Value, json};

/// Returns the actions for a range.
pub(crate) fn actions(
    map: &SourceMap,
    report: &BufferReport,
    params: &CodeActionParams,
    features: &ClientFeatures,
) -> Vec<Value> {
    let kinds = params
        .context
        .only
        .as_ref()
        .map(|only| only.iter().map(|kind| String::from(kind.clone())).collect::<Vec<_>>());
    // `source` asks for `source.fixAll.oomph` as well.
    let is_wanted = |kind: &str| {
        let is_part = |only: &String| {
            only.is_empty()
                || kind.strip_prefix(&**only).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        kinds.as_ref().is_none_or(|kinds| kinds.iter().any(is_part))
    };
    let mut actions = Vec::new();
    if is_wanted("quickfix") {
        let here = found_in(map, report, params);
        actions.extend(here.iter().filter_map(|found| fix(map, found, features)));
        actions.extend(here.iter().filter_map(|found| ignore(map, found, features)));
    }
    if is_wanted(FIX_ALL) {
        let edits = workspace_edit(map, &report.fixed(&map.source), features);
        let title = "Apply all safe fixes of oomph";
        actions.extend(edits.map(|edit| json!({"title": title, "kind": FIX_ALL, "edit": edit})));
    }
    actions
}

/// Findings that touch the range of a request.
fn found_in<'a>(
    map: &SourceMap,
    report: &'a BufferReport,
    params: &CodeActionParams,
) -> Vec<&'a lint::Diagnostic> {
    let offset = |position| map.offset(&params.text_document.uri.0, position);
    let (Some(start), Some(end)) = (offset(params.range.start), offset(params.range.end)) else {
        return Vec::new();
    };
    report.found.iter().filter(|found| found.range.start <= end && start <= found.range.end).collect()
}

fn fix(map: &SourceMap, found: &lint::Diagnostic, features: &ClientFeatures) -> Option<Value> {
    let fix = found.fix.as_ref()?;
    let is_safe = fix.applicability == Applicability::Safe;
    let doubt = if is_safe { "" } else { ", may change behavior" };
    let title = format!("{} ({}{doubt})", capitalized(&fix.title), found.rule.code);
    let mut action = quick_fix(map, found, &title, &fix.edits, features)?;
    action["isPreferred"] = is_safe.into();
    Some(action)
}

fn ignore(map: &SourceMap, found: &lint::Diagnostic, features: &ClientFeatures) -> Option<Value> {
    let edit = lint::ignore_comment(&map.source, found)?;
    quick_fix(map, found, &format!("Ignore {} on this line", found.rule.name), &[edit], features)
}

fn quick_fix(
    map: &SourceMap,
    found: &lint::Diagnostic,
    title: &str,
    edits: &[Edit],
    features: &ClientFeatures,
) -> Option<Value> {
    let edit = workspace_edit(map, &map.source.edited(edits)?, features)?;
    let (_, solved) = diagnostic(found, map, features.related_information)?;
    Some(json!({"title": title, "kind": "quickfix", "diagnostics": [solved], "edit": edit}))
}

/// Returns the edit that turns the open texts into another source; `None` if they are equal.
fn workspace_edit(map: &SourceMap, after: &PythonSource, features: &ClientFeatures) -> Option<Value> {
    let edits: Vec<(_, Vec<TextEdit>)> = map.edits(after);
    if edits.is_empty() {
        return None;
    }
    if features.versioned_edits {
        let edit = |(part, edits): &(&OpenPart, Vec<TextEdit>)| {
            let document = json!({"uri": part.uri, "version": part.version});
            json!({"textDocument": document, "edits": edits})
        };
        return Some(json!({"documentChanges": edits.iter().map(edit).collect::<Vec<_>>()}));
    }
    let changes = edits.iter().map(|(part, edits)| (part.uri.clone(), json!(edits)));
    Some(json!({"changes": changes.collect::<Map<_, _>>()}))
}

fn capitalized(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
