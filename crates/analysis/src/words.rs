//! Numbers, sites and names as text for people.

use snapshot::{Bytes, FrameId, Snapshot};
use std::borrow::Cow;

/// Writes a number with its thousands separated: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a number with its noun: `1 block`, `1,204 blocks`.
pub fn counted(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{} {thing}s", grouped(number)),
    }
}

/// Writes the short name of a frame: `train.py:20`.
pub fn site_name(snapshot: &Snapshot, frame: FrameId) -> String {
    let frame = snapshot.stacks.frame(frame);
    let file = snapshot.strings.get(frame.file);
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    format!("{}:{}", printable(name), frame.line)
}

/// Whether a character steers a terminal or misleads a reader without being seen: control characters, changes
/// of the writing direction, characters without width, separators of lines.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// A name from outside on one line, with every hidden character ([`is_hidden`]) written as JSON writes it:
/// `\u001b`, `\n`.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if text.as_bytes().iter().all(is_plain) || !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    text.chars().for_each(|letter| push_printable(&mut shown, letter));
    Cow::Owned(shown)
}

/// A path on one line, as [`printable`] writes it.
pub fn shown_path(path: impl AsRef<std::path::Path>) -> String {
    printable(&path.as_ref().to_string_lossy()).into_owned()
}

/// Adds a character to a text as [`printable`] writes it.
pub fn push_printable(into: &mut String, letter: char) {
    match letter {
        '\n' => into.push_str("\\n"),
        '\r' => into.push_str("\\r"),
        '\t' => into.push_str("\\t"),
        letter if is_hidden(letter) => {
            into.extend(letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
        letter => into.push(letter),
    }
}

/// Cuts a text to at most `most` characters, with `…` at its end.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// The share of `part` in `whole`, between 0 and 1.
pub fn share(part: Bytes, whole: Bytes) -> f64 {
    part.0 as f64 / whole.0.max(1) as f64
}

/// Writes a share between 0 and 1 in percent: `42%`.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.005 { "<1%".to_owned() } else { format!("{:.0}%", share * 100.0) }
}

/// Writes numbers in order with what they number: `rank 3`, `ranks 0 to 3, 7`.
pub fn numbered(noun: &str, numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some(part) if part.1 + 1 == number => part.1 = number,
            _ => parts.push((number, number)),
        }
    }
    let words: Vec<String> = parts
        .iter()
        .map(|&(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
        .collect();
    let is_one = parts.len() == 1 && parts[0].0 == parts[0].1;
    format!("{noun}{} {}", if is_one { "" } else { "s" }, words.join(", "))
}

/// Joins items: `a`, `a and b`, `a, b and c`.
pub(crate) fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("f\u{1b}[2J\n"), r"f\u001b[2J\n");
        assert_eq!(printable("größe 模型 café\u{301} 👍"), "größe 模型 café\u{301} 👍");
        assert_eq!(printable("\u{7f}\u{9b}2J"), r"\u007f\u009b2J");
        assert_eq!(printable("a\u{e0041}"), r"a\udb40\udc41");
    }

    #[test]
    fn no_character_that_reorders_or_hides_text_is_printed() {
        let bidirectional =
            "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
        let invisible = "\u{ad}\u{200b}\u{200c}\u{200d}\u{2028}\u{2029}\u{2060}\u{feff}";
        for letter in bidirectional.chars().chain(invisible.chars()) {
            let shown = printable(&format!("a{letter}b")).into_owned();
            assert_eq!(shown, format!(r"a\u{:04x}b", letter as u32));
        }
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
