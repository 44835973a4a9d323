//! A file's text, and where things are in it.

use crate::tree::Range;
use serde_json::Value;

/// Python source, of a file or of a notebook.
#[derive(Debug)]
pub struct Source {
    pub(crate) text: String,
    /// Where each line begins.
    lines: Vec<u32>,
    /// The first line of each cell of a notebook, with the cell's number; empty for a file.
    cells: Vec<(usize, usize)>,
    is_notebook: bool,
}

/// A place as people name it; both count from one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The cell of a notebook.
    pub cell: Option<usize>,
    /// In the cell, or in the file.
    pub line: usize,
    /// In characters.
    pub column: usize,
}

impl Source {
    /// The source of a Python file. Bytes that are no UTF-8 are replaced: no rule looks at them.
    pub fn python(bytes: &[u8]) -> Source {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        Source::new(String::from_utf8_lossy(bytes).into_owned(), Vec::new(), false)
    }

    /// The code cells of a notebook, joined; `None` if it is not one.
    pub fn notebook(bytes: &[u8]) -> Option<Source> {
        let whole: Value = serde_json::from_slice(bytes).ok()?;
        let (mut text, mut cells, mut line) = (String::new(), Vec::new(), 0);
        for (number, cell) in whole.get("cells")?.as_array()?.iter().enumerate() {
            if cell.get("cell_type").and_then(Value::as_str) != Some("code") {
                continue;
            }
            let code = match cell.get("source") {
                Some(Value::String(code)) => code.clone(),
                Some(Value::Array(parts)) => parts.iter().filter_map(Value::as_str).collect(),
                _ => continue,
            };
            // `%%bash` makes all of a cell something else.
            if code.trim_start().starts_with("%%") {
                continue;
            }
            // A cell that is no Python (an exercise, a shell) must not hide the others.
            let code = match crate::syntax::parse(&code, true) {
                Ok(_) => code,
                Err(_) => "\n".repeat(code.matches('\n').count()),
            };
            cells.push((line, number + 1));
            line += code.matches('\n').count() + 1;
            text.push_str(&code);
            text.push('\n');
        }
        Some(Source::new(text, cells, true))
    }

    fn new(text: String, cells: Vec<(usize, usize)>, is_notebook: bool) -> Source {
        let starts = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at as u32 + 1);
        let lines = std::iter::once(0).chain(starts).collect();
        Source { text, lines, cells, is_notebook }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_notebook(&self) -> bool {
        self.is_notebook
    }

    /// The number of the line, from zero, that a byte is on.
    pub(crate) fn line_at(&self, position: u32) -> usize {
        self.lines.partition_point(|start| *start <= position).saturating_sub(1)
    }

    /// The line of the whole text, from one: what [`Source::place`] says, without cells.
    pub fn line(&self, position: u32) -> usize {
        self.line_at(position) + 1
    }

    pub fn place(&self, position: u32) -> Place {
        let line = self.line_at(position);
        let start = self.lines[line] as usize;
        let column = self.text.get(start..position as usize).map_or(0, |text| text.chars().count()) + 1;
        match self.cells.iter().rev().find(|(first, _)| *first <= line) {
            Some((first, cell)) => Place { cell: Some(*cell), line: line - first + 1, column },
            None => Place { cell: None, line: line + 1, column },
        }
    }

    /// The text of the line that a byte is on, without its end.
    pub fn line_of(&self, position: u32) -> &str {
        let line = self.line_at(position);
        let end = self.lines.get(line + 1).map_or(self.text.len(), |next| *next as usize - 1);
        self.text.get(self.lines[line] as usize..end).unwrap_or("").trim_end_matches('\r')
    }

    pub(crate) fn slice(&self, range: Range) -> &str {
        self.text.get(range.bytes()).unwrap_or("")
    }
}
