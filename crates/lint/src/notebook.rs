//! Notebooks: their code cells, and new code for some of them.

use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// Code cell of a notebook.
pub(crate) struct CodeCell<'a> {
    /// Number among all cells, from one.
    pub(crate) number: usize,
    pub(crate) code: String,
    /// `source` as written in the file.
    source: &'a str,
}

type Object<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// Returns the code cells of a notebook; `None` if it is not one.
pub(crate) fn code_cells(notebook: &str) -> Option<Vec<CodeCell<'_>>> {
    let whole: Object<'_> = serde_json::from_str(notebook).ok()?;
    let cells: Vec<Object<'_>> = serde_json::from_str(whole.get("cells")?.get()).ok()?;
    let code = cells.iter().enumerate().filter_map(|(place, cell)| {
        let kind: String = serde_json::from_str(cell.get("cell_type")?.get()).ok()?;
        let source = cell.get("source")?.get();
        let code = serde_json::from_str(source)
            .or_else(|_| serde_json::from_str(source).map(|lines: Vec<String>| lines.concat()))
            .ok()?;
        (kind == "code").then_some(CodeCell { number: place + 1, code, source })
    });
    Some(code.collect())
}

/// Returns the notebook with new code in the cells of these numbers.
pub(crate) fn replace(notebook: &str, changed: &[(usize, &str)]) -> Option<String> {
    let (mut new, mut at) = (String::with_capacity(notebook.len() + 256), 0);
    for cell in code_cells(notebook)? {
        let Some((_, code)) = changed.iter().find(|(number, _)| *number == cell.number) else { continue };
        let start = (cell.source.as_ptr() as usize).checked_sub(notebook.as_ptr() as usize)?;
        new.push_str(notebook.get(at..start)?);
        new.push_str(&written(code, cell.source)?);
        at = start + cell.source.len();
    }
    new.push_str(notebook.get(at..)?);
    Some(new)
}

/// Returns code in JSON, as a list of lines or one text, laid out as before.
fn written(code: &str, before: &str) -> Option<String> {
    let Some(inside) = before.strip_prefix('[') else { return serde_json::to_string(code).ok() };
    let items: Vec<&RawValue> = serde_json::from_str(before).ok()?;
    let after = |item: &RawValue| item.get().as_ptr() as usize - before.as_ptr() as usize + item.get().len();
    let start = &inside[..inside.len() - inside.trim_start().len()];
    let inside = inside.strip_suffix(']')?;
    let end = &inside[inside.trim_end().len()..];
    let between = match items[..] {
        [first, second, ..] => before.get(after(first)..after(second) - second.get().len())?,
        _ => ", ",
    };
    let lines: Result<Vec<String>, _> = code.split_inclusive('\n').map(serde_json::to_string).collect();
    Some(format!("[{start}{}{end}]", lines.ok()?.join(between)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_that_changed_is_written() {
        let notebook = "{\n \"cells\": [\n  {\n   \"cell_type\": \"markdown\",\n   \
                        \"source\": \"# \\u00e9\"\n  },\n  {\n   \"cell_type\": \"code\",\n   \
                        \"outputs\": [1e-05],\n   \"source\": [\n    \
                        \"a = 1\\n\",\n    \"b = \\\"x\\\"\"\n   ]\n  }\n ],\n \"nbformat\": 4\n}\n";
        assert_eq!(code_cells(notebook).expect("a notebook")[0].code, "a = 1\nb = \"x\"");
        let new = replace(notebook, &[(2, "a = 2\nc = 3\nb = \"x\"")]).expect("a notebook");
        assert_eq!(new, notebook.replace("\"a = 1\\n\"", "\"a = 2\\n\",\n    \"c = 3\\n\""));
        assert_eq!(replace(notebook, &[]).as_deref(), Some(notebook));
    }

    #[test]
    fn short_lists_and_texts_keep_their_form() {
        assert_eq!(written("a\nb", "[\"a\"]").as_deref(), Some("[\"a\\n\", \"b\"]"));
        assert_eq!(written("a\nb", "[\"a\\n\",\"c\"]").as_deref(), Some("[\"a\\n\",\"b\"]"));
        assert_eq!(written("a\nb", "\"a\"").as_deref(), Some("\"a\\nb\""));
    }
}
