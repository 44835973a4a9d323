//! What a rank has written last: its `rankN.json`, which comes after everything else of a recording.

use recording::RunInfo;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) struct Written {
    pub(super) stamp: Stamp,
    /// The process that records.
    pub(super) pid: Option<u32>,
    /// Whether the process has written its last.
    pub(super) is_last: bool,
}

/// Tells one state of a file from another: each is written under another name and renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    inode: u64,
    modified: (i64, i64),
}

/// What is known of a rank, if it has written anything.
pub(super) fn written(folder: &Path, rank: u32) -> Option<Written> {
    let path = folder.join(format!("rank{rank}.json"));
    let metadata = std::fs::metadata(&path).ok()?;
    let stamp = Stamp { inode: metadata.ino(), modified: (metadata.mtime(), metadata.mtime_nsec()) };
    let run = RunInfo::parse(&std::fs::read(&path).ok()?).ok()?;
    Some(Written { stamp, pid: run.pid, is_last: run.state.exit().is_some() })
}
