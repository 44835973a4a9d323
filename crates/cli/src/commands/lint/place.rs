//! Places as people read them.

use lint::SourcePosition;

/// `20`, or `cell 3:2` in a notebook.
pub(super) fn short(place: SourcePosition) -> String {
    match place.cell {
        Some(cell) => format!("cell {cell}:{}", place.line),
        None => place.line.to_string(),
    }
}

/// `20:13`, or `cell 3:2:5`.
pub(super) fn exact(place: SourcePosition) -> String {
    format!("{}:{}", short(place), place.column)
}
