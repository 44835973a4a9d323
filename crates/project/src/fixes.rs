//! Fixed files: whether they can be written, and how.

use crate::LintedFile;
use analysis::words::printable;
use similar::TextDiff;
use std::io::Write;
use std::path::Path;

const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// Why a file is left as it is; `bytes` are what is on disk.
pub(crate) fn obstacle(file: &LintedFile, bytes: &[u8]) -> Option<&'static str> {
    if file.source.is_notebook() {
        Some("notebooks are not changed; apply the fixes by hand")
    } else if std::str::from_utf8(bytes).is_err() {
        Some("not UTF-8, so it is not changed")
    } else {
        None
    }
}

/// The fixed text, with the byte order mark that the file had.
pub(crate) fn whole(before: &[u8], after: &str) -> Vec<u8> {
    [if before.starts_with(UTF8_BOM) { UTF8_BOM } else { b"" }, after.as_bytes()].concat()
}

/// Writes a temporary file first, so that no reader ever sees half a file.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let permissions = std::fs::metadata(&path)?.permissions();
    if permissions.readonly() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(permissions)?;
    file.persist(&path)?;
    Ok(())
}

/// The change as a unified diff.
pub(crate) fn unified(name: &str, before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().header(&printable(name), &printable(name)).to_string()
}
