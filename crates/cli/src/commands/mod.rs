//! One file per command: load, one call, output.

pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod report;
mod report_json;
mod report_text;
mod summary;
