//! Processes that have a recorder already: it is asked to write what it has, over its live socket.

use super::process::RunningProcess;
use crate::attach::{AttachRequest, AttachedRecording};
use crate::{output, waiting};
use analysis::words::shown_path;
use live::{WatchSource, WatchedRecorder, Watcher};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the first answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Has the recorder of a process write a recording; `None` if it has none that answers.
pub(super) fn dump(
    process: &RunningProcess,
    request: &AttachRequest<'_>,
) -> anyhow::Result<Option<AttachedRecording>> {
    let watcher = Watcher::start(WatchSource::Process(process.pid), POLL_INTERVAL, false)?;
    let found = || -> Option<(String, WatchedRecorder)> {
        watcher.recorders().into_iter().find(|(_, recorder)| recorder.state.pid == process.pid)
    };
    let began = Instant::now();
    while !watcher.has_polled_recorders() && began.elapsed() < ANSWER_TIMEOUT {
        thread::sleep(POLL_INTERVAL);
    }
    let Some((name, before)) = found() else { return Ok(None) };
    (request.progress.say)(&format!("process {} has a recorder: asking it to write", process.pid));
    watcher.dump(&name);
    let began = Instant::now();
    let after = loop {
        waiting::check_not_stopped()?;
        match found() {
            Some((_, now)) if now.state.dumps > before.state.dumps => break now.state,
            _ if began.elapsed() > request.timeout => {
                let cause = format!("its recorder wrote nothing for {} s", request.timeout.as_secs());
                return Err(process.refuse(cause, None).into());
            }
            _ => thread::sleep(POLL_INTERVAL),
        }
    };
    let folder = PathBuf::from(after.folder);
    let snapshot = folder.join(format!("{}.pickle", after.name.unwrap_or_default()));
    if !process.shares_files() {
        let cause = format!("its recording is in its own `{}`", shown_path(&snapshot));
        return Err(process.refuse(cause, Some("run `oomph report` inside the container")).into());
    }
    let folder = output::shown(&folder);
    Ok(Some(AttachedRecording { snapshots: vec![snapshot], folder, problems: Vec::new(), pause: None }))
}
