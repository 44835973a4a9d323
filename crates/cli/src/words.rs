//! Text layout: paragraphs within the terminal's width, sentences, signed amounts.

use crate::terminal::{Style, Terminal};
use snapshot::Bytes;
use std::io::Write;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

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
/// The space between a number and its unit.
const NO_BREAK: &str = "\u{a0}";
/// Columns of text on a very narrow terminal.
const MIN_WIDTH: usize = 20;

/// Breaks text at spaces into lines of at most `width` columns; longer words are not broken.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let options = Options::new(width.max(MIN_WIDTH))
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(&with_units(text), options).iter().map(|line| line.replace(NO_BREAK, " ")).collect()
}

/// Text with numbers tied to their units.
fn with_units(text: &str) -> String {
    let mut tied = String::with_capacity(text.len());
    for (place, word) in text.split(' ').enumerate() {
        let unit = word.trim_end_matches(|letter: char| letter.is_ascii_punctuation());
        let is_unit = UNITS.contains(&unit) && tied.ends_with(|letter: char| letter.is_ascii_digit());
        if place > 0 {
            tied.push_str(if is_unit { NO_BREAK } else { " " });
        }
        tied.push_str(word);
    }
    tied
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
