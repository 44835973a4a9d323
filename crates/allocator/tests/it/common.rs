//! Paths of the recordings and their labels.

#![allow(dead_code)] // each test file uses some of it

use serde_json::Value;
use std::path::{Path, PathBuf};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Recordings of a folder, by name.
pub(crate) fn recordings(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(fixtures().join(folder))
        .expect("the folder exists")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.to_string_lossy().contains(".pickle"))
        .collect();
    files.sort();
    files
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("the file exists")).expect("JSON")
}

/// A number of `memory_stats()` in a label.
pub(crate) fn stat(label: &Value, key: &str) -> u64 {
    label["final_stats"][key].as_u64().unwrap_or_else(|| panic!("{key} is in the label"))
}
