//! Printing of the documents of `--json`.

use crate::terminal::Terminal;
use serde::Serialize;
use std::io::Write;

/// Prints a document with its fields in the order of their declaration.
pub(super) fn print(document: &impl Serialize, terminal: &mut Terminal) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(terminal.out(), document)?;
    Ok(writeln!(terminal.out())?)
}

/// Prints a document on one line.
pub(super) fn print_line(document: &impl Serialize, terminal: &mut Terminal) -> anyhow::Result<()> {
    serde_json::to_writer(terminal.out(), document)?;
    Ok(writeln!(terminal.out())?)
}

/// Prints a document with its fields in the order of their names.
pub(super) fn print_sorted(document: &impl Serialize, terminal: &mut Terminal) -> anyhow::Result<()> {
    print(&serde_json::to_value(document)?, terminal)
}
