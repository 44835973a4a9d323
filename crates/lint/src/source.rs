//! Text of a file, and positions in it.

use crate::tree::SourceRange;
use serde_json::Value;

/// Python source of a file or a notebook.
#[derive(Debug)]
pub struct PythonSource {
    pub(crate) text: String,
    /// Start of each line, in bytes.
    lines: Vec<u32>,
    /// First line of each cell of a notebook, with the cell's number; empty for a file.
    cells: Vec<(usize, usize)>,
    is_notebook: bool,
}

/// Position for people; line and column count from one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SourcePosition {
    /// Cell of a notebook.
    pub cell: Option<usize>,
    /// Line in the cell, or in the file.
    pub line: usize,
    /// Column in characters.
    pub column: usize,
}

impl SourcePosition {
    /// Returns `20`, or `cell 3:2` in a notebook.
    pub fn short(self) -> String {
        match self.cell {
            Some(cell) => format!("cell {cell}:{}", self.line),
            None => self.line.to_string(),
        }
    }

    /// Returns `20:13`, or `cell 3:2:5` in a notebook.
    pub fn exact(self) -> String {
        format!("{}:{}", self.short(), self.column)
    }
}

impl PythonSource {
    /// Creates the source of a Python file. Bytes that are not UTF-8 are replaced: no rule looks at them.
    pub fn python(bytes: &[u8]) -> PythonSource {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        PythonSource::new(String::from_utf8_lossy(bytes).into_owned(), Vec::new(), false)
    }

    /// Joins the code cells of a notebook; `None` if it is not one.
    pub fn notebook(bytes: &[u8]) -> Option<PythonSource> {
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
            // `%%bash` turns the whole cell into something else.
            if code.trim_start().starts_with("%%") {
                continue;
            }
            // A cell that is not Python (an exercise, a shell) must not hide the others.
            let code = match crate::syntax::parse(&code, true) {
                Ok(_) => code,
                Err(_) => "\n".repeat(code.matches('\n').count()),
            };
            cells.push((line, number + 1));
            line += code.matches('\n').count() + 1;
            text.push_str(&code);
            text.push('\n');
        }
        Some(PythonSource::new(text, cells, true))
    }

    fn new(text: String, cells: Vec<(usize, usize)>, is_notebook: bool) -> PythonSource {
        let starts = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at as u32 + 1);
        let lines = std::iter::once(0).chain(starts).collect();
        PythonSource { text, lines, cells, is_notebook }
    }

    /// Returns the text; the cells of a notebook are joined.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether it comes from a notebook.
    pub fn is_notebook(&self) -> bool {
        self.is_notebook
    }

    /// Returns the number of the line, from zero, that contains a byte.
    pub(crate) fn line_at(&self, position: u32) -> usize {
        self.lines.partition_point(|start| *start <= position).saturating_sub(1)
    }

    /// Returns the line in the whole text, from one: that of [`PythonSource::place`], without cells.
    pub fn line(&self, position: u32) -> usize {
        self.line_at(position) + 1
    }

    /// Returns the line and column of a byte, and its cell in a notebook.
    pub fn place(&self, position: u32) -> SourcePosition {
        let line = self.line_at(position);
        let start = self.lines[line] as usize;
        let column = self.text.get(start..position as usize).map_or(0, |text| text.chars().count()) + 1;
        match self.cells.iter().rev().find(|(first, _)| *first <= line) {
            Some((first, cell)) => SourcePosition { cell: Some(*cell), line: line - first + 1, column },
            None => SourcePosition { cell: None, line: line + 1, column },
        }
    }

    /// Returns the text of the line that contains a byte, without its line break.
    pub fn line_of(&self, position: u32) -> &str {
        let line = self.line_at(position);
        let end = self.lines.get(line + 1).map_or(self.text.len(), |next| *next as usize - 1);
        self.text.get(self.lines[line] as usize..end).unwrap_or("").trim_end_matches('\r')
    }

    pub(crate) fn slice(&self, range: SourceRange) -> &str {
        self.text.get(range.bytes()).unwrap_or("")
    }
}
