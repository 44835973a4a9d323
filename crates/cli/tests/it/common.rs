//! `oomph` as its users call it, from the repository's root.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

pub(crate) fn oomph(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oomph"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("oomph runs")
}

pub(crate) fn text(arguments: &[&str]) -> String {
    let output = oomph(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(arguments)).expect("JSON")
}
