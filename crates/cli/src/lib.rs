//! The command line: arguments in, text, JSON or files out, and an exit code.
//!
//! [`run`] serves the binary and the console script of the wheel. Each command loads, makes one call, and
//! shows the result; data goes to stdout, messages to stderr.

pub mod api;
mod args;
mod commands;
#[cfg(target_os = "linux")]
mod huge_pages;
mod terminal;
mod words;

#[cfg(target_os = "linux")]
pub use huge_pages::HugePages;
pub use launch::Host;
#[cfg(not(target_os = "linux"))]
pub use std::alloc::System as HugePages;
pub use terminal::Failure;

use args::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use terminal::Terminal;

/// The exit code: 0 success, 1 findings, 2 error; for `oomph run` the program's own.
pub type ExitCode = u8;

/// Whether what is missing is a script, or an option that stands behind it and was taken for one of the
/// program.
fn is_behind_script(error: &clap::Error, arguments: &[OsString]) -> bool {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return false };
    let is_given = |option: &str| arguments.iter().any(|argument| argument == option);
    missing.iter().any(|name| name.contains("SCRIPT") || name.split(' ').next().is_some_and(is_given))
}

/// Runs `oomph` with these arguments (the first is the program's name).
pub fn run(arguments: impl IntoIterator<Item = OsString>, host: &Host) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match args::parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Clap repeats arguments verbatim, and any file name can be one.
            let error = args::parse(
                &arguments.iter().map(|word| terminal::shown_argument(word).into()).collect::<Vec<_>>(),
            )
            .err()
            .unwrap_or(error);
            // Help and version are not failures; a broken pipe while printing them is ignored.
            let _ = error.print();
            match error.kind() {
                ErrorKind::MissingRequiredArgument if is_behind_script(&error, &arguments) => terminal::say(
                    "hint: options of oomph go before the script; everything after it belongs to the program",
                ),
                ErrorKind::InvalidSubcommand => {
                    let meant = arguments.iter().skip(1).find_map(args::command_for);
                    meant
                        .into_iter()
                        .for_each(|meant| terminal::say(&format!("hint: did you mean `{meant}`?")));
                }
                _ => {}
            }
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    let mut terminal = Terminal::new(cli.color);
    let result = match &cli.command {
        Command::Report(args) => commands::report::run(args, &mut terminal),
        Command::Simulate(args) => commands::simulate::run(args, &mut terminal),
        Command::Fit(args) => commands::fit::run(args, host, &mut terminal),
        Command::Predict(args) => commands::predict::run(args, host, &mut terminal),
        Command::Run(args) => commands::run::run(args, host, &mut terminal),
        Command::Attach(args) => commands::attach::run(args, &mut terminal),
        Command::Watch(args) => commands::watch::run(args, &mut terminal),
        Command::Check(args) => commands::check::run(args, host, &mut terminal),
        Command::Explain(args) => commands::explain::run(args, &mut terminal),
        Command::Diff(args) => commands::diff::run(args, &mut terminal),
        Command::Fleet(args) => commands::fleet::run(args, host, &mut terminal),
        Command::Summarize(args) => commands::summarize::run(args, &mut terminal),
        Command::Holders(args) => commands::holders::run(args, &mut terminal),
        Command::View(args) => commands::view::run(args, &mut terminal),
        Command::Exporter(args) => commands::exporter::run(args, &mut terminal),
        Command::Lint(args) => commands::lint::run(args, &mut terminal),
        Command::Rule(args) => commands::rule::run(args, &mut terminal),
        Command::Server(_) => commands::server::run(&mut terminal),
        Command::Export(args) => commands::export::run(args, &mut terminal),
        Command::Query(args) => commands::query::run(args, &mut terminal),
        Command::Mcp(args) => commands::mcp::serve(args, host, &mut terminal),
        Command::Skill(args) => commands::mcp::skill(args, &mut terminal),
        Command::Bundle(args) => commands::bundle::run(args, &mut terminal),
        Command::Doctor(args) => commands::doctor::run(args, host, &mut terminal),
        Command::Completions(args) => commands::generate::completions(args, &mut terminal),
        Command::Man(args) => commands::generate::man(args, &mut terminal),
        Command::Schema(args) => commands::generate::schema(args, &mut terminal),
    };
    match result.and_then(|code| terminal.flush().map(|()| code)) {
        Ok(code) => code,
        // `oomph report … | head` closes the pipe early.
        Err(error) if is_broken_pipe(&error) => 0,
        // The user stopped the command and needs no error.
        Err(_) if let Some(signal) = launch::stop_signal() => 128 + u8::try_from(signal).unwrap_or_default(),
        Err(error) => {
            terminal.failure(&Failure::from(error));
            2
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        // serde_json hides the error of the stream that it writes to.
        let json = || cause.downcast_ref::<serde_json::Error>()?.io_error_kind();
        io.or_else(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}
