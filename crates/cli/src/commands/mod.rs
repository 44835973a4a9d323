//! One file per command: load, one call, output.

pub(crate) mod check;
pub(crate) mod diff;
pub(crate) mod export;
mod findings_json;
mod findings_text;
pub(crate) mod generate;
pub(crate) mod holders;
mod holders_json;
mod holders_text;
pub(crate) mod lint;
mod live_json;
mod live_text;
pub(crate) mod predict;
mod predict_json;
mod predict_text;
mod ranks;
pub(crate) mod report;
mod report_json;
mod report_text;
pub(crate) mod rule;
pub(crate) mod run;
pub(crate) mod simulate;
mod simulate_json;
mod simulate_text;
mod summary;
pub(crate) mod vary;
pub(crate) mod view;
