//! How the program ended, and whether its numbers then mean anything.

use analysis::words::printable;
use failure::Failure;
use inputs::Input;
use recording::{Exit, RunState};
use snapshot::Action;
use std::process::ExitStatus;

/// How the program of one recording ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramOutcome {
    /// By itself, or after the steps that were asked for; or it is not known.
    Fine,
    /// By an allocation that failed.
    OutOfMemory,
    /// By another exception, or its own exit code.
    Failed(String),
    /// By a signal.
    Killed,
}

impl ProgramOutcome {
    /// What a recorder noted; a snapshot alone shows only whether it ends with a failed allocation. `status` is that of the
    /// command, if we ran it.
    pub fn of(input: &Input, status: Option<ExitStatus>) -> ProgramOutcome {
        let Some(run) = &input.run else {
            return if ends_without_memory(input) {
                ProgramOutcome::OutOfMemory
            } else {
                ProgramOutcome::Fine
            };
        };
        match run.state {
            RunState::Exited(Exit::OutOfMemory) => ProgramOutcome::OutOfMemory,
            RunState::Exited(Exit::Failed) => {
                ProgramOutcome::Failed(printable(run.exception_line().unwrap_or_default()).into_owned())
            }
            RunState::Exited(Exit::Killed) => ProgramOutcome::Killed,
            // It has ended, and had no time to say so.
            RunState::Running if status.is_some() => ProgramOutcome::Killed,
            _ => ProgramOutcome::Fine,
        }
    }
}

/// Whether nothing was allocated any more after an allocation had failed.
fn ends_without_memory(input: &Input) -> bool {
    input.snapshot.devices().into_iter().any(|device| {
        let actions = input.snapshot.events.actions(input.snapshot.rows(device));
        let mut last = None;
        for (action, _) in actions.filter(|(action, _)| matches!(action, Action::Alloc | Action::Oom)) {
            last = Some(action);
        }
        last == Some(Action::Oom)
    })
}

/// A program that broke off has not shown its memory. That it ran out of it is an answer, though.
pub(crate) fn refuse(outcomes: &[ProgramOutcome], status: Option<ExitStatus>) -> anyhow::Result<()> {
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
