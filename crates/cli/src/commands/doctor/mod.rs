//! `oomph doctor`: what was found on this machine, and whether programs can be recorded.

use crate::args::DoctorArgs;
use crate::commands::document::print_sorted;
use crate::terminal::{Style, TALK, Terminal};
use crate::words::paragraph;
use crate::{ExitCode, Host};
use doctor::{Check, CheckState};
use documents::DoctorDocument;
use std::io::Write;

pub(crate) fn run(args: &DoctorArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let python = args.interpreter.path(host);
    if launch::check_system().is_ok() {
        terminal.say("recording two small programs …");
    }
    let checks = doctor::examine(&python, host, env!("CARGO_PKG_VERSION"), TALK);
    let is_usable = doctor::is_usable(&checks);
    if args.json {
        print_sorted(&DoctorDocument::new(checks), terminal)?;
    } else {
        print(&checks, is_usable, terminal)?;
    }
    Ok(u8::from(!is_usable))
}

fn print(checks: &[Check], is_usable: bool, terminal: &mut Terminal) -> anyhow::Result<()> {
    let answer = match is_usable {
        true => terminal.paint(Style::Green, "✓ programs can be recorded"),
        false => terminal.paint(Style::Red, "✗ programs cannot be recorded"),
    };
    writeln!(terminal.out(), " {answer}\n")?;
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    for check in checks {
        let (style, mark) = match check.state {
            CheckState::Ok => (Style::Green, "✓"),
            CheckState::Warning => (Style::Yellow, "!"),
            CheckState::Failed => (Style::Red, "✗"),
        };
        let head = format!(" {} {:width$}  ", terminal.paint(style, mark), check.name);
        let indent = " ".repeat(width + 5);
        paragraph(&head, &indent, &check.found, None, terminal)?;
        if let Some(hint) = &check.hint {
            paragraph(&indent, &indent, &format!("hint: {hint}"), None, terminal)?;
        }
    }
    Ok(())
}
