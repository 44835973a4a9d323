//! `--format github`: annotations on the lines of a pull request.

use super::{File, Looked};
use crate::terminal::Terminal;
use lint::{Diagnostic, Severity};
use std::io::Write;

pub(super) fn print(looked: &Looked, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (file, found) in looked.findings() {
        writeln!(terminal.out(), "{}", annotation(file, found))?;
    }
    Ok(())
}

fn annotation(file: &File, found: &Diagnostic) -> String {
    let level = match found.severity {
        Severity::High => "error",
        Severity::Medium => "warning",
        Severity::Low => "notice",
    };
    let (start, end) = (file.source.place(found.range.start), file.source.place(found.range.end));
    // The lines of a notebook's file are not those of its cells.
    let (place, cell) = match start.cell {
        Some(cell) => (String::new(), format!("cell {cell}, line {}: ", start.line)),
        None => (format!(",line={},col={},endLine={}", start.line, start.column, end.line), String::new()),
    };
    let title = format!("{} {}", found.rule.code, found.rule.name);
    let message = format!("{cell}{}\n{}", found.message, found.advice);
    format!(
        "::{level} file={}{place},title={}::{}",
        property(&file.name),
        property(&title),
        escaped(message.trim())
    )
}

/// What would end the line, or begin an escape.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// What would end a property, as well.
fn property(text: &str) -> String {
    escaped(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::{escaped, property};

    #[test]
    fn nothing_ends_a_line_or_a_property_early() {
        assert_eq!(escaped("50% a:b,\r\n"), "50%25 a:b,%0D%0A");
        assert_eq!(property("a,b:c\n%"), "a%2Cb%3Ac%0A%25");
    }
}
