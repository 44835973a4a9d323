//! What oomph has to know of the run besides its memory: a file of lines `KIND<TAB>TEXT`, each written once.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

const VARIABLE: &str = "OOMPH_EMULATOR_NOTES";

/// An entry point that this emulator does not answer: says so and gives the family's own "not supported".
pub(crate) fn uncovered(name: &str, status: i32) -> i32 {
    if note("uncovered", name) {
        say(&format!("`{name}` is not covered: the call fails with status {status}"));
    }
    status
}

/// A size that is a model of ours, not the library's own answer.
pub(crate) fn modelled(what: &str) {
    note("modelled", what);
}

/// Writes a line unless it was written before; whether it was new.
pub(crate) fn note(kind: &str, text: &str) -> bool {
    static WRITTEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let line = format!("{kind}\t{text}\n");
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !written.get_or_insert_default().insert(line.clone()) {
        return false;
    }
    // Without a file, or with a full disk, the run goes on: notes only qualify the answer.
    if let Some(path) = std::env::var_os(VARIABLE)
        && let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = file.write_all(line.as_bytes());
    }
    true
}

/// A line to standard error, where the user's own program talks as well.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "oomph (emulated GPU): {text}");
}
