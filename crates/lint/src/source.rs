//! Text of a file, and positions in it.

use crate::edit::{Edit, apply};
use crate::notebook;
use crate::tree::SourceRange;

/// Python source of a file or a notebook.
#[derive(Clone, Debug)]
pub struct PythonSource {
    pub(crate) text: String,
    /// Start of each line, in bytes.
    lines: Vec<u32>,
    /// Code cells of a notebook, in order; empty for a file.
    cells: Vec<Cell>,
    is_notebook: bool,
}

/// Code cell of a notebook.
#[derive(Clone, Debug)]
struct Cell {
    /// Number among all cells, from one.
    number: usize,
    /// First line in the joined text, from zero.
    line: usize,
    /// Its code in the joined text, without the line break that joins it to the next.
    range: SourceRange,
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
        let cells = notebook::code_cells(std::str::from_utf8(bytes).ok()?)?;
        Some(PythonSource::code_cells(cells.into_iter().map(|cell| (cell.number, cell.code))))
    }

    /// Joins code cells: their numbers among all cells of the notebook, from one, and their code.
    pub fn code_cells(cells: impl Iterator<Item = (usize, String)>) -> PythonSource {
        // `%%bash` turns the whole cell into something else.
        let python = cells.filter(|(_, code)| !code.trim_start().starts_with("%%"));
        PythonSource::of_cells(python.map(|(number, code)| {
            // A cell that is not Python (an exercise, a shell) must not hide the others.
            match crate::syntax::parse(&code, true) {
                Ok(_) => (number, code),
                Err(_) => (number, "\n".repeat(code.matches('\n').count())),
            }
        }))
    }

    fn of_cells(codes: impl Iterator<Item = (usize, String)>) -> PythonSource {
        let (mut text, mut cells, mut line) = (String::new(), Vec::new(), 0);
        for (number, code) in codes {
            let start = text.len() as u32;
            text.push_str(&code);
            cells.push(Cell { number, line, range: SourceRange { start, end: text.len() as u32 } });
            line += code.matches('\n').count() + 1;
            text.push('\n');
        }
        PythonSource::new(text, cells, true)
    }

    fn new(text: String, cells: Vec<Cell>, is_notebook: bool) -> PythonSource {
        let starts = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at as u32 + 1);
        let lines = std::iter::once(0).chain(starts).collect();
        PythonSource { text, lines, cells, is_notebook }
    }

    /// Returns the source after some edits; `None` if they do not fit it, or each other, or go beyond a cell.
    pub fn edited(&self, edits: &[Edit]) -> Option<PythonSource> {
        let all: Vec<&Edit> = edits.iter().collect();
        if !self.is_notebook {
            let whole = SourceRange { start: 0, end: self.text.len() as u32 };
            return Some(PythonSource::new(apply(&self.text, whole, &all)?, Vec::new(), false));
        }
        let mut done = 0;
        let mut codes = Vec::with_capacity(self.cells.len());
        for cell in &self.cells {
            let own: Vec<&Edit> =
                all.iter().copied().filter(|edit| cell.range.contains(edit.range)).collect();
            done += own.len();
            codes.push((cell.number, apply(&self.text, cell.range, &own)?));
        }
        (done == edits.len()).then(|| PythonSource::of_cells(codes.into_iter()))
    }

    /// Returns the code cells of a notebook: their numbers among all cells, from one, and their code.
    pub fn cells(&self) -> impl Iterator<Item = (usize, &str)> {
        self.cells.iter().map(|cell| (cell.number, self.slice(cell.range)))
    }

    /// Returns where the code cells are in the joined text, in the order of [`PythonSource::cells`].
    pub fn cell_ranges(&self) -> impl Iterator<Item = SourceRange> {
        self.cells.iter().map(|cell| cell.range)
    }

    /// Returns the notebook that this source was read from, with the code of the cells that differ from
    /// `before` replaced; everything else stays as it is, byte by byte.
    pub fn into_notebook(&self, before: &PythonSource, notebook: &[u8]) -> Option<Vec<u8>> {
        let changed: Vec<(usize, &str)> = before
            .cells()
            .zip(self.cells())
            .filter(|((_, old), (_, new))| old != new)
            .map(|(_, changed)| changed)
            .collect();
        notebook::replace(std::str::from_utf8(notebook).ok()?, &changed).map(String::into_bytes)
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

    /// Returns the first byte of a line, counted from zero.
    pub(crate) fn line_start(&self, line: usize) -> Option<u32> {
        self.lines.get(line).copied()
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
        match self.cells.iter().rev().find(|cell| cell.line <= line) {
            Some(cell) => SourcePosition { cell: Some(cell.number), line: line - cell.line + 1, column },
            None => SourcePosition { cell: None, line: line + 1, column },
        }
    }

    /// Returns the text of the line that contains a byte, without its line break.
    pub fn line_of(&self, position: u32) -> &str {
        let line = self.line_at(position);
        let end = self.lines.get(line + 1).map_or(self.text.len(), |next| *next as usize - 1);
        self.text.get(self.lines[line] as usize..end).unwrap_or("").trim_end_matches('\r')
    }

    /// Returns the text of a range; empty if it does not fit the text.
    pub fn slice(&self, range: SourceRange) -> &str {
        self.text.get(range.bytes()).unwrap_or("")
    }
}
