//! Text layout: paragraphs within the terminal's width, sentences, signed amounts.

use crate::terminal::{Style, Terminal};
use snapshot::Bytes;
use std::io::Write;

/// A paragraph within the width of the terminal.
pub(crate) fn paragraph(
    first: &str,
    indent: &str,
    text: &str,
    style: Option<Style>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let width = terminal.width().saturating_sub(indent.chars().count());
    for (place, line) in wrap(text, width).iter().enumerate() {
        let start = if place == 0 { first } else { indent };
        let line = style.map_or_else(|| line.clone(), |style| terminal.paint(style, line));
        writeln!(terminal.out(), "{start}{line}")?;
    }
    Ok(())
}

/// A detail as a sentence of its own.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let start: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    format!("{start}{}.", letters.as_str())
}

/// Units that stay on the line of their number.
const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "ms"];

/// Breaks text at spaces.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let unit = word.trim_end_matches(|letter: char| letter.is_ascii_punctuation());
        match words.last_mut() {
            Some(number)
                if UNITS.contains(&unit) && number.ends_with(|letter: char| letter.is_ascii_digit()) =>
            {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in words {
        let fits = line.chars().count() + 1 + word.chars().count() <= width.max(20);
        if !line.is_empty() && !fits {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines.push(line);
    lines
}

/// `+1.10 GiB`, `-96.0 MiB`
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(
            wrap("of which 2.43 GiB, or 46%, lay free", 22),
            ["of which 2.43 GiB, or", "46%, lay free"]
        );
        assert_eq!(wrap("it took all of 12.3 ms", 20), ["it took all of", "12.3 ms"]);
    }
}
