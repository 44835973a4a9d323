//! One folder per command: `mod.rs` loads and makes one call, `text.rs` only renders. JSON comes from
//! `documents`.

mod annotation;
pub(crate) mod attach;
pub(crate) mod bundle;
pub(crate) mod check;
pub(crate) mod diff;
pub(crate) mod doctor;
mod document;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod exporter;
pub(crate) mod fit;
pub(crate) mod fleet;
pub(crate) mod generate;
pub(crate) mod holders;
pub(crate) mod lint;
pub(crate) mod mcp;
pub(crate) mod predict;
pub(crate) mod query;
pub(crate) mod report;
pub(crate) mod rule;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod simulate;
pub(crate) mod summarize;
pub(crate) mod view;
pub(crate) mod watch;
