//! Text of a document, and positions in it as clients count them.

use gen_lsp_types::{Position, Range, TextDocumentContentChangeEvent};

/// What the characters of a position are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum PositionEncoding {
    /// Bytes.
    Utf8,
    /// Units of two bytes: what clients use if they do not say otherwise.
    #[default]
    Utf16,
    /// Code points.
    Utf32,
}

impl PositionEncoding {
    /// Name in the protocol.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PositionEncoding::Utf8 => "utf-8",
            PositionEncoding::Utf16 => "utf-16",
            PositionEncoding::Utf32 => "utf-32",
        }
    }

    fn width(self, letter: char) -> usize {
        match self {
            PositionEncoding::Utf8 => letter.len_utf8(),
            PositionEncoding::Utf16 => letter.len_utf16(),
            PositionEncoding::Utf32 => 1,
        }
    }
}

/// Text with the start of each line, in bytes. As in the protocol, `\n`, `\r\n` and `\r` end a line.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DocumentText {
    text: String,
    lines: Vec<usize>,
}

impl DocumentText {
    pub(crate) fn new(text: String) -> DocumentText {
        let bytes = text.as_bytes();
        let ends = bytes.iter().enumerate().filter(|(at, byte)| match byte {
            b'\n' => true,
            b'\r' => bytes.get(at + 1) != Some(&b'\n'),
            _ => false,
        });
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        DocumentText { text, lines }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the byte at a position. One beyond the end of its line is the end of that line, and one in the
    /// middle of a character the start of it.
    pub(crate) fn offset(&self, position: Position, encoding: PositionEncoding) -> usize {
        let line = position.line as usize;
        let Some(&start) = self.lines.get(line) else { return self.text.len() };
        let end = self.lines.get(line + 1).copied().unwrap_or(self.text.len());
        let text = self.text[start..end].trim_end_matches(['\r', '\n']);
        let mut left = position.character as usize;
        for (at, letter) in text.char_indices() {
            let width = encoding.width(letter);
            if left < width {
                return start + at;
            }
            left -= width;
        }
        start + text.len()
    }

    /// Returns the position of a byte.
    pub(crate) fn position(&self, offset: usize, encoding: PositionEncoding) -> Position {
        let line = self.lines.partition_point(|start| *start <= offset).saturating_sub(1);
        let before = self.text.get(self.lines[line]..offset).unwrap_or("");
        let character: usize = before.chars().map(|letter| encoding.width(letter)).sum();
        Position { line: line as u32, character: character as u32 }
    }

    /// Returns the range of some bytes.
    pub(crate) fn range(&self, bytes: std::ops::Range<usize>, encoding: PositionEncoding) -> Range {
        Range { start: self.position(bytes.start, encoding), end: self.position(bytes.end, encoding) }
    }

    /// Returns the text after changes, each of which applies to the result of the one before.
    pub(crate) fn changed(
        &self,
        changes: Vec<TextDocumentContentChangeEvent>,
        encoding: PositionEncoding,
    ) -> DocumentText {
        changes.into_iter().fold(self.clone(), |document, change| match change {
            TextDocumentContentChangeEvent::TextDocumentContentChangeWholeDocument(whole) => {
                DocumentText::new(whole.text)
            }
            TextDocumentContentChangeEvent::TextDocumentContentChangePartial(part) => {
                let (a, b) =
                    (document.offset(part.range.start, encoding), document.offset(part.range.end, encoding));
                let mut text = document.text;
                text.replace_range(a.min(b)..a.max(b), &part.text);
                DocumentText::new(text)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENCODINGS: [PositionEncoding; 3] =
        [PositionEncoding::Utf8, PositionEncoding::Utf16, PositionEncoding::Utf32];

    #[test]
    fn characters_are_counted_as_the_client_counts_them() {
        let document = DocumentText::new("a\nx = '😀日é'; y".to_owned());
        let end = document.text().len() - 1;
        let characters = ENCODINGS.map(|encoding| document.position(end, encoding).character);
        assert_eq!(characters, [17, 12, 11]);
        for encoding in ENCODINGS {
            assert_eq!(document.offset(document.position(end, encoding), encoding), end);
        }
        // In the middle of the emoji.
        let inside = Position { line: 1, character: 6 };
        assert_eq!(document.offset(inside, PositionEncoding::Utf16), "a\nx = '".len());
    }

    #[test]
    fn positions_beyond_the_end_are_the_end() {
        let document = DocumentText::new("ab\r\nc\rd".to_owned());
        let offset = |line, character| document.offset(Position { line, character }, PositionEncoding::Utf16);
        assert_eq!([offset(0, 9), offset(1, 0), offset(1, 9), offset(2, 1), offset(9, 0)], [2, 4, 5, 7, 7]);
    }

    #[test]
    fn each_change_applies_to_the_result_of_the_one_before() {
        let change = |line, start, end, text: &str| {
            let position = |character| Position { line, character };
            let range = Range { start: position(start), end: position(end) };
            serde_json::from_value(serde_json::json!({"range": range, "text": text})).expect("a change")
        };
        let document = DocumentText::new("😀 = 1\nb".to_owned());
        let changes = vec![change(0, 0, 2, "a"), change(0, 4, 5, "2\nc"), change(2, 1, 0, "")];
        assert_eq!(document.changed(changes, PositionEncoding::Utf16).text(), "a = 2\nc\n");
    }

    const CHARACTERS: [char; 6] = ['a', '\r', '\n', 'é', '日', '😀'];

    proptest! {
        #[test]
        fn every_position_leads_back_to_its_byte(
            characters in prop::collection::vec(prop::sample::select(&CHARACTERS), 0..=30),
        ) {
            let document = DocumentText::new(String::from_iter(characters));
            for encoding in ENCODINGS {
                for (at, _) in document.text().char_indices() {
                    // `\r\n` is one end of a line: there is no position inside it.
                    let (before, after) = document.text().split_at(at);
                    let inside = before.ends_with('\r') && after.starts_with('\n');
                    let offset = document.offset(document.position(at, encoding), encoding);
                    prop_assert_eq!(offset, if inside { at - 1 } else { at });
                }
            }
        }
    }
}
