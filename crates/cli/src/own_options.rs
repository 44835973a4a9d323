//! Which arguments are oomph's and which are those of the program that it runs.
//!
//! What comes before the script is ours. The script and everything after it is the program's, byte for byte, whatever it looks like;
//! a `--` of ours may come before the script.

use crate::args::{Cli, Limits};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory};
use std::ffi::{OsStr, OsString};

/// Commands that run a script.
const RUNNERS: [&str; 2] = ["predict", "run"];

/// The arguments with `--` before the script, as the parser understands them.
pub(crate) fn in_front(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut rest = arguments.into_iter().peekable();
    let mut own: Vec<OsString> = rest.next().into_iter().collect();
    let mut cli = Cli::command();
    cli.build();
    // Global options before the command.
    take_options(&cli, &mut rest, &mut own);
    let runner = rest.peek().and_then(|name| RUNNERS.iter().find(|runner| name == *runner));
    if let Some(command) = runner.and_then(|name| cli.find_subcommand(name)) {
        own.extend(rest.next());
        take_options(command, &mut rest, &mut own);
        if rest.peek().is_some_and(|next| next != "--") {
            own.push("--".into());
        }
    }
    own.extend(rest);
    own
}

/// Moves our options with their values, up to `--`, `-m` or what is not an option.
fn take_options(
    command: &clap::Command,
    rest: &mut std::iter::Peekable<impl Iterator<Item = OsString>>,
    own: &mut Vec<OsString>,
) {
    while let Some(argument) = rest.next_if(|argument| is_option(argument)) {
        let has_value = has_value(command, &argument);
        own.push(argument);
        if has_value {
            own.extend(rest.next());
        }
    }
}

fn is_option(argument: &OsStr) -> bool {
    argument.to_string_lossy().starts_with('-') && !["-", "--", "-m"].iter().any(|other| argument == *other)
}

/// Whether the next argument is the value of this one.
fn has_value(command: &clap::Command, argument: &OsStr) -> bool {
    let text = argument.to_string_lossy();
    command.get_arguments().any(|known| {
        let is_it = match text.strip_prefix("--") {
            Some(name) => known.get_long() == Some(name),
            // Several letters may share a dash; the last has the value.
            None => known.get_short().is_some() && known.get_short() == text.chars().last(),
        };
        is_it && known.get_action().takes_values()
    })
}

/// What to do about a required option that is missing and seems to be among the program's own arguments.
pub(crate) fn hint(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return None;
    }
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else { return None };
    let place = arguments.iter().position(|argument| argument == "--")?;
    let (own, program) = (&arguments[..place], &arguments[place + 1..]);
    let script = if program.first()? == "-m" { 2 } else { 1 };
    let option = missing.iter().find_map(|name| {
        let name = name.split_whitespace().next()?;
        found(program.get(script..)?, |argument| (argument == name).then_some(true))
    })?;
    // The first argument is the path of this program.
    let words = [&["oomph".into()], own.get(1..)?, &[option.into()], &program[..script]].concat();
    Some(format!("options of oomph go before the script: {} …", shown(&words)))
}

/// What to do about a limit of `oomph check` that seems to be among the arguments of its command.
pub(crate) fn limit_behind(command: &[OsString]) -> Option<String> {
    let limits = Limits::augment_args(clap::Command::new("check"));
    let takes_value = |name: &str| {
        let known = limits.get_arguments().find(|known| known.get_long() == name.strip_prefix("--"));
        known.filter(|known| known.get_long().is_some()).map(|known| known.get_action().takes_values())
    };
    let option = found(command.get(1..)?, takes_value)?;
    let first: Vec<OsString> = command.iter().take(2).cloned().collect();
    Some(format!("options of oomph go before `--`: oomph check {option} -- {} …", shown(&first)))
}

/// The first of some options among a program's arguments, with its value. `takes_value` knows the options, and whether a value
/// follows.
fn found(program: &[OsString], takes_value: impl Fn(&str) -> Option<bool>) -> Option<String> {
    program.iter().enumerate().find_map(|(place, argument)| {
        let argument = argument.to_string_lossy();
        let name = argument.split('=').next()?;
        let takes_value = takes_value(name)? && name == argument;
        let value = program.get(place + 1).filter(|_| takes_value);
        Some(
            value.map_or_else(
                || argument.to_string(),
                |value| format!("{argument} {}", value.to_string_lossy()),
            ),
        )
    })
}

fn shown(words: &[OsString]) -> String {
    crate::commands::predict::shown(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use clap::Parser;

    fn arguments(text: &str) -> Vec<OsString> {
        std::iter::once("/usr/bin/oomph").chain(text.split_whitespace()).map(OsString::from).collect()
    }

    fn sorted(text: &str) -> String {
        shown(&in_front(arguments(text))[1..])
    }

    /// The program and its arguments, as the parser gives them to the commands.
    fn program(text: &str) -> String {
        let cli = Cli::try_parse_from(in_front(arguments(text))).expect("arguments");
        match cli.command {
            Command::Run(args) => shown(&args.program.command),
            Command::Predict(args) => shown(&args.program.command),
            Command::Check(args) => shown(&args.command),
            _ => panic!("no program"),
        }
    }

    #[test]
    fn everything_after_the_script_is_the_programs() {
        let theirs = "a.py --gpus 4 --gpu h100 --json --try amp --vary x=1 --gpu-memory 8GiB -o x --force --help -- --json -- -m";
        for own in [
            "run",
            "run --",
            "run -o rec --json",
            "predict --gpu l4",
            "predict --gpu=l4 -q --",
            "check --no-leaks --",
        ] {
            assert_eq!(program(&format!("{own} {theirs}")), theirs, "{own}");
        }
        let module = "-m torch.distributed.run --nproc-per-node 2 -- a.py --json -- x";
        assert_eq!(program(&format!("run {module}")), module);
        assert_eq!(program(&format!("run -- {module}")), module);
        assert_eq!(program("run - x"), "- x");
    }

    #[test]
    fn values_of_our_options_are_not_the_script() {
        assert_eq!(sorted("predict --steps 5 train.py --steps 9"), "predict --steps 5 -- train.py --steps 9");
        assert_eq!(sorted("--color never predict --gpu t4 a.py"), "--color never predict --gpu t4 -- a.py");
        assert_eq!(sorted("predict --color never --gpu t4 a.py"), "predict --color never --gpu t4 -- a.py");
        assert_eq!(sorted("predict -qo dir --gpu t4 -o d a.py"), "predict -qo dir --gpu t4 -o d -- a.py");
    }

    #[test]
    fn other_commands_are_left_alone() {
        assert_eq!(sorted("report a.pickle --json"), "report a.pickle --json");
        assert_eq!(sorted("report predict --gpu h100"), "report predict --gpu h100");
        assert_eq!(sorted(""), "");
        assert_eq!(sorted("predict --help"), "predict --help");
    }

    #[test]
    fn a_required_option_behind_the_script_is_pointed_out() {
        let hinted = |text: &str| {
            let arguments = in_front(arguments(text));
            hint(&Cli::try_parse_from(&arguments).expect_err("an error"), &arguments)
        };
        let expected = |command: &str| Some(format!("options of oomph go before the script: {command} …"));
        assert_eq!(
            hinted("predict -q train.py --batch 8 --gpu h100"),
            expected("oomph predict -q --gpu h100 train.py")
        );
        assert_eq!(
            hinted("predict -m pkg.train --gpu=h100"),
            expected("oomph predict --gpu=h100 -m pkg.train")
        );
        assert_eq!(hinted("predict train.py --batch 8"), None);
        assert_eq!(hinted("predict --gpu l4"), None);
    }

    #[test]
    fn a_limit_behind_the_command_is_pointed_out() {
        let behind =
            |text: &str| limit_behind(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(
            behind("python train.py --lr 3 --max-peak 60GiB").as_deref(),
            Some("options of oomph go before `--`: oomph check --max-peak 60GiB -- python train.py …")
        );
        assert_eq!(
            behind("python train.py --no-leaks x").as_deref(),
            Some("options of oomph go before `--`: oomph check --no-leaks -- python train.py …")
        );
        assert_eq!(behind("python train.py --lr 3"), None);
    }
}
