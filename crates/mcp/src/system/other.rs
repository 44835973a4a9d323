//! Systems without a way to confine a process from inside: `roots.rs` alone decides what is read.

use std::path::PathBuf;

pub(crate) fn only_read(_: &[PathBuf]) -> anyhow::Result<()> {
    Ok(())
}

pub(crate) fn limit_memory() {}

pub(crate) fn end_with_parent() {}
