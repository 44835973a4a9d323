//! The JSON of `oomph doctor --json`.

use doctor::{Check, CheckState};
use schemars::JsonSchema;
use serde::Serialize;

/// Whether programs can be recorded on this machine.
#[derive(Serialize, JsonSchema)]
pub struct DoctorDocument {
    /// Version of the format.
    version: u32,
    /// Whether programs can be recorded.
    ok: bool,
    /// What was looked at.
    checks: Vec<CheckReport>,
}

/// One thing that was looked at.
#[derive(Serialize, JsonSchema)]
struct CheckReport {
    /// What it is about: `python`, `torch`, `driver`, …
    name: &'static str,
    /// `ok`; `warning` if something does not work without it; `failed` if programs cannot be recorded.
    state: &'static str,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl DoctorDocument {
    /// Lists what was looked at.
    pub fn new(checks: Vec<Check>) -> DoctorDocument {
        let ok = doctor::is_usable(&checks);
        DoctorDocument { version: 1, ok, checks: checks.into_iter().map(CheckReport::from).collect() }
    }
}

impl From<Check> for CheckReport {
    fn from(Check { name, state, found, hint }: Check) -> CheckReport {
        let state = match state {
            CheckState::Ok => "ok",
            CheckState::Warning => "warning",
            CheckState::Failed => "failed",
        };
        CheckReport { name, state, found, hint }
    }
}
