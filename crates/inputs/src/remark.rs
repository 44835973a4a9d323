//! Remark of a report on a snapshot that was not written at the end of its program.

use analysis::words::{counted, printable};
use recording::{DumpReason, Exit, RunInfo, RunState};

/// Longest exception that is quoted, in bytes.
const MAX_EXCEPTION_BYTES: usize = 200;

/// Returns a remark on how the run ended; `None` if it ran to its end.
pub fn run_remark(run: &RunInfo) -> Option<String> {
    let steps = match run.steps {
        None | Some(0) => String::new(),
        Some(steps) => format!(" after {}", counted(steps, "step")),
    };
    match run.state {
        RunState::Exited(Exit::Killed) => {
            Some(format!("the program was killed{steps}; this was written earlier"))
        }
        // The finding about the failed allocation quotes the message in better words.
        RunState::Exited(Exit::OutOfMemory) => Some(format!("the program failed{steps}")),
        RunState::Exited(Exit::Failed) => {
            let quoted = |text: &str| {
                format!(": {}", printable(&text[..text.floor_char_boundary(MAX_EXCEPTION_BYTES)]))
            };
            let why = run.exception_line().map(quoted).unwrap_or_default();
            Some(format!("the program failed{steps}{why}"))
        }
        RunState::Running => Some(match run.reason {
            Some(DumpReason::Signal) => format!("written on a signal{steps}, while the program ran"),
            Some(DumpReason::Alarm) => format!("written on an alarm{steps}, while the program ran"),
            Some(DumpReason::OutOfMemory) => {
                format!("written when an allocation failed{steps}; the program went on")
            }
            _ => format!("written{steps}, while the program ran"),
        }),
        RunState::Exited(Exit::Finished | Exit::Stopped(_)) | RunState::Unknown => None,
    }
}
