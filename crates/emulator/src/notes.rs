//! Notes for oomph about the run, apart from its memory: a file of lines `KIND<TAB>TEXT`, each written once.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

const NOTES_VARIABLE: &str = "OOMPH_EMULATOR_NOTES";

/// Reports an entry point that the emulator does not cover, and returns the "not supported" status of its
/// family.
pub(crate) fn uncovered(name: &str, status: i32) -> i32 {
    if note("uncovered", name) {
        print(&format!("`{name}` is not covered by the emulator; the call fails with status {status}"));
    }
    status
}

/// Notes that a size comes from a model, not from the library itself.
pub(crate) fn modeled(what: &str) {
    note("modeled", what);
}

/// Writes a line unless it was already written; returns whether it was new.
pub(crate) fn note(kind: &str, text: &str) -> bool {
    static WRITTEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let line = format!("{kind}\t{text}\n");
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !written.get_or_insert_default().insert(line.clone()) {
        return false;
    }
    // Without a file, or with a full disk, the run continues: notes only qualify the answer.
    if let Some(path) = std::env::var_os(NOTES_VARIABLE)
        && let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
    true
}

/// Prints a line to standard error, which the user's program shares.
pub(crate) fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "oomph (emulated GPU): {text}");
}
