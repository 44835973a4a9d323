//! Limits behind the command that is checked.

use crate::args::Limits;
use clap::Parser;
use std::ffi::OsString;

/// Limits may also stand at the end of the command, if none stands in front: that is where people add them.
pub(super) fn limits<'a>(command: &'a [OsString], limits: &Limits) -> (&'a [OsString], Limits) {
    /// The limits alone, as a command line.
    #[derive(Parser)]
    struct Behind {
        #[command(flatten)]
        limits: Limits,
    }
    if limits.is_empty() {
        for start in 1..command.len() {
            let tail = std::iter::once(OsString::new()).chain(command[start..].iter().cloned());
            if let Ok(Behind { limits }) = Behind::try_parse_from(tail) {
                return (&command[..start], limits);
            }
        }
    }
    (command, limits.clone())
}

#[cfg(test)]
mod tests {
    use super::super::super::predict::shown;
    use super::*;
    use crate::args::Tolerance;

    fn split(text: &str) -> (String, Limits) {
        let command: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        let (command, limits) = limits(&command, &Limits::default());
        (shown(command), limits)
    }

    #[test]
    fn limits_are_found_behind_the_command() {
        let (command, limits) = split("python train.py --lr 3 --max-peak 60GiB --no-leaks");
        assert_eq!(command, "python train.py --lr 3");
        assert_eq!((limits.max_peak, limits.no_leaks), (Some(60 << 30), true));
        let (command, limits) = split("python train.py --max-growth 0 --baseline m.json --tolerance 2%");
        assert_eq!(command, "python train.py");
        assert_eq!((limits.max_growth, limits.tolerance), (Some(0), Some(Tolerance::Share(0.02))));
        let (command, limits) = split("python train.py --max-peak 60GiB --lr 3");
        assert_eq!(command, "python train.py --max-peak 60GiB --lr 3");
        assert!(limits.is_empty());
    }
}
