//! One file per command: load, one call, output.

pub(crate) mod diff;
pub(crate) mod export;
mod findings_json;
mod findings_text;
pub(crate) mod generate;
mod ranks;
pub(crate) mod report;
mod report_json;
mod report_text;
pub(crate) mod simulate;
mod simulate_json;
mod simulate_text;
mod summary;
