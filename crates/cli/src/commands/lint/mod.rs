//! `oomph lint`: code that keeps or wastes GPU memory.

mod diff;
mod github;
mod statistics;
mod text;

pub(super) use text::style;

use crate::ExitCode;
use crate::args::{LintArgs, LintFormat};
use crate::commands::document;
use crate::terminal::{Failure, Terminal, shown_path};
use analysis::words::printable;
use documents::LintDocument;
use project::LintResults;

/// Exit code if a file is not Python.
const NOT_PYTHON: ExitCode = 2;

pub(crate) fn run(args: &LintArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if args.statistics && matches!(args.format, LintFormat::Sarif | LintFormat::Github) {
        return Err(Failure::new("--statistics supports text and JSON only", None, None).into());
    }
    let looked = project::check(&args.into())?;
    for warning in &looked.warnings {
        terminal.say(&format!("warning: {}", printable(warning)));
    }
    for error in &looked.errors {
        terminal.say(&format!("error: {}", printable(error)));
    }
    if looked.checked == 0 {
        let is_empty = looked.warnings.is_empty() && looked.errors.is_empty();
        return Err(nothing_checked(args, is_empty).into());
    }
    let found = looked.files.iter().any(|file| !file.found.is_empty() || args.diff && file.fixed > 0);
    print(args, &looked, terminal)?;
    if !looked.errors.is_empty() {
        return Ok(NOT_PYTHON);
    }
    Ok(u8::from(found && !args.exit_zero))
}

fn print(args: &LintArgs, looked: &LintResults, terminal: &mut Terminal) -> anyhow::Result<()> {
    let format = if args.json { LintFormat::Json } else { args.format };
    if args.diff {
        return diff::print(looked, args, terminal);
    }
    // Fixed standard input goes to standard output, with nothing else.
    if let Some(source) = &looked.output {
        std::io::Write::write_all(terminal.data(), source)?;
        text::summary(looked, args, terminal);
        return Ok(());
    }
    match format {
        LintFormat::Text if args.statistics => statistics::print(looked, terminal)?,
        LintFormat::Json if args.statistics => {
            return document::print_sorted(&LintDocument::statistics(looked), terminal);
        }
        LintFormat::Text => text::print(looked, terminal)?,
        LintFormat::Json => return document::print(&LintDocument::findings(looked), terminal),
        LintFormat::Sarif => return document::print(&documents::sarif(looked), terminal),
        LintFormat::Github => return github::print(looked, terminal),
    }
    text::summary(looked, args, terminal);
    Ok(())
}

fn nothing_checked(args: &LintArgs, is_empty: bool) -> Failure {
    if !is_empty {
        return Failure::new("nothing could be checked", None, None);
    }
    let paths: Vec<String> = args.paths.iter().map(|path| format!("`{}`", shown_path(path))).collect();
    Failure::new(
        format!("no Python file and no notebook in {}", paths.join(", ")),
        Some(
            "files that git ignores, hidden folders, environments and build folders are left out".to_owned(),
        ),
        Some("a file or folder named on the command line is always checked"),
    )
}
