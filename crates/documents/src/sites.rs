//! Lines of code, and what they hold.

use analysis::{SiteName, UsageChange};
use schemars::JsonSchema;
use serde::Serialize;
use snapshot::{FrameId, Snapshot, StackId};

/// A line of code.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReportedSite {
    /// Path of the file.
    file: String,
    /// Line number, from 1.
    line: u32,
    /// Name of the function.
    function: String,
}

impl ReportedSite {
    /// The line of a frame.
    pub(crate) fn of(snapshot: &Snapshot, frame: FrameId) -> ReportedSite {
        ReportedSite::from(&SiteName::of(snapshot, frame))
    }
}

impl From<&SiteName> for ReportedSite {
    fn from(site: &SiteName) -> ReportedSite {
        ReportedSite { file: site.file.clone(), line: site.line, function: site.function.clone() }
    }
}

/// The lines of a call stack, the innermost first.
pub(crate) fn stack_report(snapshot: &Snapshot, stack: StackId) -> Vec<ReportedSite> {
    snapshot.stacks.frames(stack).iter().map(|&frame| ReportedSite::of(snapshot, frame)).collect()
}

/// What one line holds in two runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChangeReport {
    /// The line; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<ReportedSite>,
    /// Line number in the first run, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_from: Option<u32>,
    /// Whether the memory was allocated in the backward pass.
    in_backward: bool,
    /// Bytes in the first run.
    before: u64,
    /// Bytes in the second run.
    after: u64,
}

impl From<&UsageChange> for ChangeReport {
    fn from(change: &UsageChange) -> ChangeReport {
        ChangeReport {
            site: change.site.as_ref().map(ReportedSite::from),
            moved_from: change.moved_from,
            in_backward: change.in_backward,
            before: change.before.0,
            after: change.after.0,
        }
    }
}
