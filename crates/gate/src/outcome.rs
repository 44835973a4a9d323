//! How the program ended, and whether its numbers are then meaningful.

use analysis::words::printable;
use failure::Failure;
use inputs::Input;
use recording::{Exit, RunState};
use snapshot::Action;
use std::process::ExitStatus;

/// How the program of one recording ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramOutcome {
    /// It finished, was stopped after the requested steps, or its end is unknown.
    Fine,
    /// An allocation failed.
    OutOfMemory,
    /// Another exception ended it; its first line.
    Failed(String),
    /// A signal ended it.
    Killed,
}

impl ProgramOutcome {
    /// Returns the outcome noted by the recorder. A snapshot alone shows only whether it ends with a failed
    /// allocation. `status` is the exit status of the command, if it was run for this check.
    pub fn of(input: &Input, status: Option<ExitStatus>) -> ProgramOutcome {
        let Some(run) = &input.run else {
            return if ends_with_oom(input) { ProgramOutcome::OutOfMemory } else { ProgramOutcome::Fine };
        };
        match run.state {
            RunState::Exited(Exit::OutOfMemory) => ProgramOutcome::OutOfMemory,
            RunState::Exited(Exit::Failed) => {
                ProgramOutcome::Failed(printable(run.exception_line().unwrap_or_default()).into_owned())
            }
            RunState::Exited(Exit::Killed) => ProgramOutcome::Killed,
            // The process has ended without reporting.
            RunState::Running if status.is_some() => ProgramOutcome::Killed,
            _ => ProgramOutcome::Fine,
        }
    }
}

/// Returns whether no allocation succeeded after one had failed.
fn ends_with_oom(input: &Input) -> bool {
    input.snapshot.devices().into_iter().any(|device| {
        let actions = input.snapshot.events.actions(input.snapshot.rows(device));
        let mut last = None;
        for (action, _) in actions.filter(|(action, _)| matches!(action, Action::Alloc | Action::Oom)) {
            last = Some(action);
        }
        last == Some(Action::Oom)
    })
}

/// Fails if the program ended early, other than by running out of memory: its numbers are then incomplete.
pub(crate) fn check_outcomes(outcomes: &[ProgramOutcome], status: Option<ExitStatus>) -> anyhow::Result<()> {
    if outcomes.contains(&ProgramOutcome::OutOfMemory) {
        return Ok(());
    }
    let (what, cause) = match outcomes.iter().find(|outcome| **outcome != ProgramOutcome::Fine) {
        Some(ProgramOutcome::Failed(why)) => {
            ("the program failed, so its memory could not be measured", Some(why.clone()))
        }
        Some(_) => ("the program was killed, so its memory could not be measured", None),
        None => match status.filter(|status| !status.success()) {
            Some(status) => {
                ("the command failed, so its memory could not be measured", Some(status.to_string()))
            }
            None => return Ok(()),
        },
    };
    let hint =
        if status.is_some() { "its own message is above" } else { "`oomph report` shows what was recorded" };
    Err(Failure::new(what, cause.filter(|text| !text.is_empty()), Some(hint)).into())
}
