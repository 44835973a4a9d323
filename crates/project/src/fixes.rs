//! Fixed files: what is written, and how.

use analysis::words::printable;
use lint::PythonSource;
use similar::TextDiff;
use std::io::Write;
use std::path::Path;

const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// The fixed file: text with the byte order mark that it had, or the notebook around its code.
pub(crate) fn whole(bytes: &[u8], before: &PythonSource, after: &PythonSource) -> Option<Vec<u8>> {
    if after.is_notebook() {
        return after.into_notebook(before, bytes);
    }
    let mark = if bytes.starts_with(UTF8_BOM) { UTF8_BOM } else { b"" };
    Some([mark, after.text().as_bytes()].concat())
}

/// Writes a temporary file first, so that no reader ever sees half a file.
pub(crate) fn replace(path: &Path, bytes: Option<Vec<u8>>) -> std::io::Result<()> {
    let bytes = bytes.ok_or(std::io::ErrorKind::InvalidData)?;
    let path = std::fs::canonicalize(path)?;
    let permissions = std::fs::metadata(&path)?.permissions();
    if permissions.readonly() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(&bytes)?;
    file.as_file().set_permissions(permissions)?;
    file.persist(&path)?;
    Ok(())
}

/// The change as a unified diff; of a notebook, one for each cell.
pub(crate) fn unified(name: &str, before: &PythonSource, after: &PythonSource) -> String {
    if !after.is_notebook() {
        return of_text(name, before.text(), after.text());
    }
    let cells = before.cells().zip(after.cells());
    cells.map(|((number, old), (_, new))| of_text(&format!("{name}:cell {number}"), old, new)).collect()
}

fn of_text(name: &str, before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().header(&printable(name), &printable(name)).to_string()
}
