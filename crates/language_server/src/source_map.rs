//! Text of a file, or of the cells of a notebook, as one source, and where each part of it is in the editor.

use crate::positions::{DocumentText, PositionEncoding};
use gen_lsp_types::{Position, Range, TextEdit};
use lint::{PythonSource, SourceRange};
use similar::{DiffTag, TextDiff};
use std::rc::Rc;

/// Source with the open texts that it consists of.
pub(crate) struct SourceMap {
    pub(crate) source: PythonSource,
    pub(crate) encoding: PositionEncoding,
    parts: Vec<MappedPart>,
}

/// Text of a file or of a cell.
pub(crate) struct OpenPart {
    pub(crate) uri: String,
    pub(crate) version: i32,
    pub(crate) text: Rc<DocumentText>,
}

struct MappedPart {
    part: OpenPart,
    /// Where it is in the source; `None` for a cell that is not Python.
    range: Option<SourceRange>,
    /// Bytes in front that the source does not contain: a byte order mark.
    skipped: usize,
}

impl SourceMap {
    pub(crate) fn of_file(part: OpenPart, encoding: PositionEncoding) -> SourceMap {
        let text = part.text.text();
        let source = PythonSource::python(text.as_bytes());
        let skipped = text.len() - source.text().len();
        let range = Some(SourceRange { start: 0, end: source.text().len() as u32 });
        SourceMap { source, encoding, parts: vec![MappedPart { part, range, skipped }] }
    }

    /// Joins the code cells of a notebook, with their numbers.
    pub(crate) fn of_cells(parts: Vec<(usize, OpenPart)>, encoding: PositionEncoding) -> SourceMap {
        let codes = parts.iter().map(|(number, part)| (*number, part.text.text().to_owned()));
        let source = PythonSource::code_cells(codes);
        let places: Vec<(usize, SourceRange)> =
            source.cells().map(|(number, _)| number).zip(source.cell_ranges()).collect();
        let mapped = parts.into_iter().map(|(number, part)| {
            let place = places.iter().find(|(cell, _)| *cell == number).map(|(_, range)| *range);
            let range = place.filter(|range| source.slice(*range) == part.text.text());
            MappedPart { part, range, skipped: 0 }
        });
        SourceMap { parts: mapped.collect(), source, encoding }
    }

    /// Returns the open texts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &OpenPart> {
        self.parts.iter().map(|mapped| &mapped.part)
    }

    /// Returns where a range of the source is in the editor.
    pub(crate) fn locate(&self, range: SourceRange) -> Option<(&OpenPart, Range)> {
        self.parts.iter().find_map(|MappedPart { part, range: place, skipped }| {
            let place = place.filter(|place| place.start <= range.start && range.end <= place.end)?;
            let at = |position: u32| (position - place.start) as usize + skipped;
            Some((part, part.text.range(at(range.start)..at(range.end), self.encoding)))
        })
    }

    /// Returns the byte of the source at a position in the editor.
    pub(crate) fn offset(&self, uri: &str, position: Position) -> Option<u32> {
        let MappedPart { part, range, skipped } = self.parts.iter().find(|mapped| mapped.part.uri == uri)?;
        let offset = part.text.offset(position, self.encoding).saturating_sub(*skipped);
        range.map(|range| range.start + offset as u32)
    }

    /// Returns the edits that turn the source into another one, by open text.
    pub(crate) fn edits(&self, after: &PythonSource) -> Vec<(&OpenPart, Vec<TextEdit>)> {
        let whole = SourceRange { start: 0, end: after.text().len() as u32 };
        let ranges: Vec<SourceRange> =
            if after.is_notebook() { after.cell_ranges().collect() } else { vec![whole] };
        // Each cell of the source before has one in the source after.
        let befores: Vec<SourceRange> = match self.source.is_notebook() {
            true => self.source.cell_ranges().collect(),
            false => self.parts.iter().filter_map(|mapped| mapped.range).collect(),
        };
        let of_part = |mapped: &MappedPart| {
            let index = befores.iter().position(|before| Some(*before) == mapped.range)?;
            let new = after.slice(*ranges.get(index)?);
            Some(self.edits_of(mapped, new))
        };
        let all = self.parts.iter().filter_map(|mapped| Some((&mapped.part, of_part(mapped)?)));
        all.filter(|(_, edits)| !edits.is_empty()).collect()
    }

    /// Returns the edits for the lines that differ, without what they have in common.
    fn edits_of(&self, mapped: &MappedPart, new: &str) -> Vec<TextEdit> {
        let document = &mapped.part.text;
        let old = &document.text()[mapped.skipped..];
        let diff = TextDiff::from_lines(old, new);
        let length = |lines: &[&str]| lines.iter().map(|line| line.len()).sum::<usize>();
        let changed = diff.ops().iter().filter(|op| op.tag() != DiffTag::Equal);
        let edit = |op: &similar::DiffOp| {
            let start = length(&diff.old_slices()[..op.old_range().start]);
            let before = diff.old_slices()[op.old_range()].concat();
            let after = diff.new_slices()[op.new_range()].concat();
            let equal = |(a, b): &(char, char)| a == b;
            let front: usize =
                before.chars().zip(after.chars()).take_while(equal).map(|(a, _)| a.len_utf8()).sum();
            let ends = before[front..].chars().rev().zip(after[front..].chars().rev());
            let back: usize = ends.take_while(equal).map(|(a, _)| a.len_utf8()).sum();
            let start = mapped.skipped + start;
            let bytes = start + front..start + before.len() - back;
            TextEdit {
                range: document.range(bytes, self.encoding),
                new_text: after[front..after.len() - back].to_owned(),
            }
        };
        changed.map(edit).collect()
    }
}
