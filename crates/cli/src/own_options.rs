//! Which arguments are oomph's and which are the program's that it runs.
//!
//! What stands before the script is ours, what stands behind it is the script's. A few of our options may stand behind it
//! as well, because people write them there: `oomph predict train.py --batch 8 --gpu h100`. Behind `--` everything is the
//! script's.

use crate::args::Cli;
use crate::cards::Card;
use clap::CommandFactory;
use std::ffi::{OsStr, OsString};

/// Commands that run a program.
const RUNNERS: [&str; 2] = ["predict", "run"];

/// Options that are taken from behind the script, where the command has them.
const BEHIND: [&str; 6] = ["gpu", "gpu-memory", "gpus", "vary", "try", "json"];

/// The arguments in the order that the parser understands: ours, `--`, the script and its own.
pub(crate) fn in_front(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut rest = arguments.into_iter().peekable();
    let mut own: Vec<OsString> = rest.next().into_iter().collect();
    let mut cli = Cli::command();
    cli.build();
    // Global options before the command.
    while let Some(argument) = rest.next_if(|argument| is_option(argument)) {
        let has_value = has_value(&cli, &argument);
        own.push(argument);
        if has_value {
            own.extend(rest.next());
        }
    }
    let runner = rest.peek().and_then(|name| RUNNERS.iter().find(|runner| name == *runner));
    let Some(command) = runner.and_then(|name| cli.find_subcommand(name)) else {
        own.extend(rest);
        return own;
    };
    own.extend(rest.next());
    let mut program: Vec<OsString> = Vec::new();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            program.extend(rest);
            break;
        }
        let is_ours = match program.is_empty() {
            true => is_option(&argument) && argument != "-m",
            false => is_ours_behind(command, &argument, rest.peek().map(OsString::as_os_str)),
        };
        let list = if is_ours { &mut own } else { &mut program };
        let takes_next =
            if is_ours { has_value(command, &argument) } else { list.is_empty() && argument == "-m" };
        list.push(argument);
        if takes_next {
            list.extend(rest.next());
        }
    }
    if !program.is_empty() {
        own.push("--".into());
        own.extend(program);
    }
    own
}

fn is_option(argument: &OsStr) -> bool {
    argument.to_string_lossy().starts_with('-')
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

fn is_ours_behind(command: &clap::Command, argument: &OsStr, next: Option<&OsStr>) -> bool {
    let text = argument.to_string_lossy();
    let Some(text) = text.strip_prefix("--") else { return false };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, next.map(|next| next.to_string_lossy().into_owned())),
    };
    BEHIND.contains(&name)
        && command.get_arguments().any(|known| known.get_long() == Some(name))
        // Many programs have a `--gpu 0` of their own.
        && (name != "gpu" || value.is_some_and(|value| Card::find(&value).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(text: &str) -> String {
        let arguments = text.split_whitespace().map(OsString::from);
        let sorted = in_front(std::iter::once("oomph".into()).chain(arguments));
        sorted[1..].iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_script_keeps_what_is_its_own() {
        assert_eq!(
            sorted("predict train.py --batch 8 --gpu h100"),
            "predict --gpu h100 -- train.py --batch 8"
        );
        assert_eq!(sorted("predict --gpu l4 train.py --gpu 0"), "predict --gpu l4 -- train.py --gpu 0");
        assert_eq!(sorted("predict --steps 5 train.py --steps 9"), "predict --steps 5 -- train.py --steps 9");
        assert_eq!(sorted("predict --gpu=l4 train.py -- --json"), "predict --gpu=l4 -- train.py --json");
        assert_eq!(sorted("predict -m pkg.train --json -x"), "predict --json -- -m pkg.train -x");
        assert_eq!(sorted("--color never predict --gpu t4 a.py"), "--color never predict --gpu t4 -- a.py");
        assert_eq!(sorted("predict -qo dir --gpu t4 -o d a.py"), "predict -qo dir --gpu t4 -o d -- a.py");
        assert_eq!(sorted("run -o rec a.py --gpu h100 --json"), "run -o rec --json -- a.py --gpu h100");
    }

    #[test]
    fn other_commands_are_left_alone() {
        assert_eq!(sorted("report a.pickle --json"), "report a.pickle --json");
        assert_eq!(sorted("report predict --gpu h100"), "report predict --gpu h100");
        assert_eq!(sorted(""), "");
        assert_eq!(sorted("predict --help"), "predict --help");
    }
}
