//! `oomph query` as text.

use crate::terminal::{Style, Terminal};
use analysis::words::{printable, shortened};
use export::QueryAnswer;
use serde_json::Value;
use std::io::Write;
use unicode_width::UnicodeWidthStr;

/// Longest cell, in characters.
const MAX_CELL_CHARS: usize = 60;

/// Prints a table: numbers to the right, text to the left.
pub(super) fn print(answer: &QueryAnswer, offset: u64, terminal: &mut Terminal) -> anyhow::Result<()> {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => shortened(&printable(text), MAX_CELL_CHARS),
        other => other.to_string(),
    };
    let cells: Vec<Vec<String>> = answer.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let names: Vec<String> =
        answer.columns.iter().map(|name| shortened(&printable(name), MAX_CELL_CHARS)).collect();
    let widths: Vec<usize> = (0..names.len())
        .map(|column| cells.iter().chain([&names]).map(|row| row[column].width()).max().unwrap_or(0))
        .collect();
    let is_number: Vec<bool> =
        (0..names.len()).map(|column| answer.rows.iter().all(|row| !row[column].is_string())).collect();
    for (place, row) in std::iter::once(&names).chain(&cells).enumerate() {
        let padded = row.iter().zip(&widths).zip(&is_number).map(|((cell, width), is_number)| {
            let space = " ".repeat(width.saturating_sub(cell.width()));
            if *is_number { format!("{space}{cell}") } else { format!("{cell}{space}") }
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        let line = if place == 0 { terminal.paint(Style::Bold, line) } else { line.to_owned() };
        writeln!(terminal.out(), "{line}")?;
    }
    if answer.has_more {
        terminal.say(&format!("more rows follow: --offset {}", offset + answer.rows.len() as u64));
    }
    Ok(())
}
