//! `oomph attach`: the recorder in a process that was started without it.

use crate::output::OutputFolder;
use crate::{system, waiting};
use inputs::ProgressReporter;
use std::path::PathBuf;
use std::time::Duration;

/// What to do in a running process.
#[derive(Clone, Copy, Debug)]
pub struct AttachRequest<'a> {
    /// Its process ID.
    pub pid: u32,
    /// How long to record; `None` writes what its memory holds now.
    pub duration: Option<Duration>,
    /// Number of steps after which to stop recording earlier.
    pub steps: Option<u32>,
    /// How long to wait for its main thread.
    pub timeout: Duration,
    /// Whether to write who holds the tensors.
    pub has_holders: bool,
    /// Folder for the recording.
    pub output: OutputFolder<'a>,
    /// Receiver of messages.
    pub progress: ProgressReporter,
}

/// A recording of a process that was started without the recorder.
#[derive(Debug)]
pub struct AttachedRecording {
    /// Snapshots, one per rank.
    pub snapshots: Vec<PathBuf>,
    /// Path of the folder as the user would type it here.
    pub folder: String,
    /// Problems that the recorder reported.
    pub problems: Vec<String>,
    /// How long the program stood still while the recording was written, if that is known.
    pub pause: Option<Duration>,
}

/// Records a running process, or writes what its memory holds now; afterwards nothing of oomph is left in
/// it. Fails where that is not safe or not allowed, with the reason.
pub fn attach(request: &AttachRequest<'_>) -> anyhow::Result<AttachedRecording> {
    crate::check_system()?;
    waiting::note_stop_signals()?;
    system::attach(request)
}
