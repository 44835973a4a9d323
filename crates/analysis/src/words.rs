//! Numbers and places as people read them.

use snapshot::{Bytes, FrameId, Snapshot};
use std::borrow::Cow;

/// 1234567 → 1,234,567
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

/// `1 block`, `1,204 blocks`
pub fn counted(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{} {thing}s", grouped(number)),
    }
}

/// `train.py:20`
pub fn place(snapshot: &Snapshot, frame: FrameId) -> String {
    let frame = snapshot.stacks.frame(frame);
    let file = snapshot.strings.get(frame.file);
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    format!("{}:{}", printable(name), frame.line)
}

/// The same, or these words where the line is not known.
pub(crate) fn place_or(snapshot: &Snapshot, frame: Option<FrameId>, otherwise: &str) -> String {
    frame.map_or_else(|| otherwise.to_owned(), |frame| place(snapshot, frame))
}

/// A name from a file without what would steer a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        Cow::Owned(text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// The beginning of a text that is too long for its place.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// The share of `part` in `whole`, between 0 and 1 where they are what they say.
pub fn share(part: Bytes, whole: Bytes) -> f64 {
    part.0 as f64 / whole.0.max(1) as f64
}

/// `42 %`
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.005 { "<1 %".to_owned() } else { format!("{:.0} %", share * 100.0) }
}

/// `a`, `a and b`, `a, b and c`
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
        assert_eq!(printable("f\u{1b}[2J\n"), "f?[2J?");
        assert_eq!(printable("größe"), "größe");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
