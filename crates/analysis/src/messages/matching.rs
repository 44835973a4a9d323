//! Finds the patterns of [`KINDS`](super::kinds::KINDS) in a text without white space.

use super::allocator_message::ParsedMessage;
use super::kinds::{Backend, KINDS, MessageKind};
use super::log::pattern;
use super::numbers::{Numbers, SIZE, XLA_SIZE};
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// One pattern that finds where any of the table's patterns begins.
pub(super) fn beginnings() -> String {
    let plain = |words: &str| UNNAMED.replace_all(&filled(words), "(?:").into_owned();
    let all = KINDS.iter().flat_map(|row| row.patterns);
    all.map(|(_, words)| format!("(?:{})", plain(words))).collect::<Vec<_>>().join("|")
}

/// A pattern of the table with its sizes filled in.
fn filled(words: &str) -> String {
    words.replace("SIZE", SIZE).replace("XLA", XLA_SIZE)
}

static UNNAMED: LazyLock<Regex> = LazyLock::new(|| pattern(r"\(\?<\w+>"));

static PATTERNS: LazyLock<Vec<(MessageKind, Backend, Regex)>> = LazyLock::new(|| {
    let anchored = |words: &str| pattern(&format!("^(?:{})", filled(words)));
    let rows = KINDS.iter().flat_map(|row| row.patterns.iter().map(move |found| (row.kind, found)));
    rows.map(|(kind, &(backend, words))| (kind, backend, anchored(words))).collect()
});

/// Reads the message at the start of `text`; `None` if there is none.
pub(super) fn read(text: &str) -> Option<ParsedMessage> {
    PATTERNS.iter().find_map(|(kind, backend, words)| {
        let found = words.captures(text)?;
        let device = found.name("device").and_then(|device| device.as_str().parse().ok());
        let numbers = numbers(words, &found);
        let is_harmless = found.name("harmless").is_some();
        Some(ParsedMessage {
            kind: *kind,
            backend: *backend,
            device,
            numbers,
            is_harmless,
            end: found[0].len().max(1),
        })
    })
}

fn numbers(words: &Regex, found: &Captures<'_>) -> Numbers {
    let mut numbers = Numbers::default();
    for name in words.capture_names().flatten() {
        if let Some(part) = found.name(name) {
            numbers.set(name, part.as_str());
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_of_a_pattern_is_the_name_of_a_number() {
        for (kind, _, words) in PATTERNS.iter() {
            for name in words.capture_names().flatten() {
                let is_known = matches!(name, "device" | "harmless") || Numbers::default().set(name, "1");
                assert!(is_known, "{}: `{name}`", kind.name());
            }
        }
    }
}
