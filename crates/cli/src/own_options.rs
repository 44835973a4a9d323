//! Which arguments are oomph's and which are the program's that it runs.
//!
//! What stands before the script is ours, what stands behind it is the script's. A few of our options may stand behind it
//! as well, because people write them there: `oomph predict train.py --batch 8 --gpu h100`. Behind `--` everything is the
//! script's.

use crate::cards::Card;
use std::ffi::{OsStr, OsString};

/// Commands that run a program.
const RUNNERS: [&str; 2] = ["predict", "run"];

/// Options that are taken from behind the script: whether they have a value.
const BEHIND: [(&str, bool); 6] = [
    ("--gpu", true),
    ("--gpu-memory", true),
    ("--gpus", true),
    ("--vary", true),
    ("--try", true),
    ("--json", false),
];

/// Options in front of the script that have a value, so that it is not taken for the script.
const WITH_VALUE: [&str; 12] = [
    "--gpu",
    "--gpu-memory",
    "--gpus",
    "--vary",
    "--try",
    "--steps",
    "--python",
    "--output",
    "-o",
    "--color",
    "--pretend",
    "--max-events",
];

/// The arguments in the order that the parser understands: ours, `--`, the script and its own.
pub(crate) fn in_front(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut rest = arguments.into_iter().peekable();
    let mut own: Vec<OsString> = Vec::new();
    // The program's name, the command, and global options before it.
    let is_runner = loop {
        let Some(argument) = rest.next() else { break false };
        let is_first = own.is_empty();
        let is_command =
            !is_first && !is_option(&argument) && own.last().is_none_or(|last| last != "--color");
        let is_runner = is_command && RUNNERS.iter().any(|runner| argument == *runner);
        own.push(argument);
        if is_command {
            break is_runner;
        }
    };
    if !is_runner {
        own.extend(rest);
        return own;
    }
    let mut program: Vec<OsString> = Vec::new();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            program.extend(rest);
            break;
        }
        if program.is_empty() && argument == "-m" {
            program.push(argument);
            program.extend(rest.next());
        } else if program.is_empty() && is_option(&argument) {
            let takes_value = WITH_VALUE.iter().any(|option| argument == *option);
            own.push(argument);
            if takes_value {
                own.extend(rest.next());
            }
        } else if !program.is_empty() && is_ours_behind(&argument, rest.peek().map(OsString::as_os_str)) {
            let has_value = BEHIND.iter().any(|(option, has_value)| *has_value && argument == *option);
            own.push(argument);
            if has_value {
                own.extend(rest.next());
            }
        } else {
            program.push(argument);
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

fn is_ours_behind(argument: &OsStr, next: Option<&OsStr>) -> bool {
    let text = argument.to_string_lossy();
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (&*text, next.map(|next| next.to_string_lossy().into_owned())),
    };
    match name {
        // Many programs have a `--gpu 0` of their own.
        "--gpu" => value.is_some_and(|value| Card::find(&value).is_some()),
        _ => BEHIND.iter().any(|(option, _)| name == *option),
    }
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
    }

    #[test]
    fn other_commands_are_left_alone() {
        assert_eq!(sorted("report a.pickle --json"), "report a.pickle --json");
        assert_eq!(sorted("report predict --gpu h100"), "report predict --gpu h100");
        assert_eq!(sorted(""), "");
        assert_eq!(sorted("predict --help"), "predict --help");
    }
}
