//! Files of one JSON object per line, which grow while a program runs.

use serde::de::DeserializeOwned;

/// Parses all lines; `None` if one is damaged. A killed program may have left half of the last line, which is
/// dropped.
pub(crate) fn json_lines<T: DeserializeOwned>(bytes: &[u8]) -> Option<Vec<T>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let Some((last, whole)) = lines.split_last() else { return Some(Vec::new()) };
    let last = serde_json::from_str(last);
    let is_cut = last.is_err() && !text.ends_with('\n');
    let whole = whole.iter().map(|line| serde_json::from_str(line));
    whole.chain((!is_cut).then_some(last)).collect::<Result<Vec<T>, _>>().ok()
}
