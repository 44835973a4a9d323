//! The last recording of a rank: its `rankN.json`, which is written after all other files.

use crate::system;
use recording::RunInfo;
use std::path::Path;
use std::time::SystemTime;

/// State of a rank's recording.
pub(super) struct LastRecording {
    /// Identifies this version of the file.
    pub(super) stamp: Stamp,
    /// Process that records.
    pub(super) pid: Option<u32>,
    /// Whether the program has ended, so that this recording is the last.
    pub(super) is_last: bool,
}

/// Distinguishes versions of a file: each is written under another name and renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    file: u64,
    modified: SystemTime,
}

/// Returns the last recording of a rank, if it has written one.
pub(super) fn last_recording(folder: &Path, rank: u32) -> Option<LastRecording> {
    let path = folder.join(format!("rank{rank}.json"));
    let metadata = std::fs::metadata(&path).ok()?;
    let stamp = Stamp { file: system::file_number(&metadata), modified: metadata.modified().ok()? };
    let run = RunInfo::parse(&std::fs::read(&path).ok()?).ok()?;
    Some(LastRecording { stamp, pid: run.pid, is_last: run.state.exit().is_some() })
}
