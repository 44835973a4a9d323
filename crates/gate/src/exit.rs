//! How the program exited, and whether its numbers are then meaningful.

use analysis::words::printable;
use failure::Failure;
use inputs::Input;
use recording::{Exit, RunState};
use snapshot::Action;
use std::process::ExitStatus;

/// How the program of one recording exited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramExit {
    /// The exit; `None` if it is unknown.
    exit: Option<Exit>,
    /// First line of the exception that ended the program.
    exception: Option<String>,
}

impl ProgramExit {
    /// Returns the exit noted by the recorder. A snapshot alone shows only whether it ends with a failed
    /// allocation. `status` is the exit status of the command, if it was run for this check.
    pub(crate) fn of(input: &Input, status: Option<ExitStatus>) -> ProgramExit {
        let Some(run) = &input.run else {
            let exit = ends_with_oom(input).then_some(Exit::OutOfMemory);
            return ProgramExit { exit, exception: None };
        };
        let exit = match run.state {
            RunState::Exited(exit) => Some(exit),
            // The process has ended without reporting.
            RunState::Running if status.is_some() => Some(Exit::Killed),
            RunState::Running | RunState::Unknown => None,
        };
        ProgramExit { exit, exception: run.exception_line().map(|line| printable(line).into_owned()) }
    }

    /// Whether an allocation failed and ended the program.
    pub(crate) fn is_oom(&self) -> bool {
        self.exit == Some(Exit::OutOfMemory)
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
pub(crate) fn check_exits(exits: &[ProgramExit], status: Option<ExitStatus>) -> anyhow::Result<()> {
    if exits.iter().any(ProgramExit::is_oom) {
        return Ok(());
    }
    let failed = exits.iter().find(|program| matches!(program.exit, Some(Exit::Failed | Exit::Killed)));
    let (what, cause) = match failed {
        Some(program) if program.exit == Some(Exit::Failed) => {
            ("the program failed, so its memory could not be measured", program.exception.clone())
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
