//! The arguments of `oomph check`.

use super::programs::{EmulateArgs, InterpreterArgs, is_script, steps};
use super::size;
use crate::Host;
use clap::{Args, ValueEnum};
use gate::Tolerance;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    override_usage = "oomph check [OPTIONS] INPUT...\n       \
        oomph check [OPTIONS] [--emulate NAME] SCRIPT [ARGS]...\n       \
        oomph check [OPTIONS] [--emulate NAME] -- COMMAND...",
    after_help = "\
Examples:
  oomph check snapshot.pickle --max-peak 20GiB --no-leaks
  oomph check --emulate h100 --max-peak 60GiB -- python train.py      in CI, without a GPU
  oomph check --emulate h100 --baseline m.json --update -- python train.py  writes the baseline
  oomph check --emulate h100 --baseline m.json -- python train.py     compares with it
  oomph check --format text --format junit=memory.xml --max-peak 20GiB recording/

Options go before the script or `--`; everything after it belongs to the program.
What each limit measures, and the baseline's format: docs/reference/check.md.
An example for GitHub Actions: docs/how-to/gate-ci.md.
Exit codes: 0 within the budget, 1 over it or out of memory, 2 could not measure."
)]
pub(crate) struct CheckArgs {
    /// Snapshots or recordings, as for `oomph report`; or a script or `-m MODULE` to measure, with arguments
    #[arg(value_name = "INPUT", allow_hyphen_values = true)]
    pub(crate) inputs: Vec<OsString>,

    /// A command to run and measure
    #[arg(last = true, value_name = "COMMAND", allow_hyphen_values = true, conflicts_with = "inputs")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    interpreter: InterpreterArgs,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) emulate: EmulateArgs,

    /// Stop the command after N steps instead of running it to the end
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) steps: Option<u32>,

    /// Keep the recording of the command in this folder
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Replace a recording in that folder, or write next to other files in it
    #[arg(long, requires = "output")]
    pub(crate) force: bool,

    /// Output format: text, json, junit or github; with =FILE, to a file. May be repeated
    #[arg(long = "format", value_name = "FORMAT[=FILE]", value_parser = CheckOutput::parse)]
    outputs: Vec<CheckOutput>,

    /// Print JSON: the same as --format json
    #[arg(long, conflicts_with = "outputs")]
    json: bool,
}

impl CheckArgs {
    /// Whether the positional arguments are a script to run, not files to read.
    pub(super) fn has_script(&self) -> bool {
        is_script(&self.inputs)
    }

    /// The snapshots and recordings to read; none if a program is run.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        if self.has_script() { Vec::new() } else { self.inputs.iter().map(PathBuf::from).collect() }
    }

    /// The command to run; empty if files are read.
    pub(crate) fn command(&self, host: &Host) -> Vec<OsString> {
        let words = if self.has_script() { &self.inputs } else { &self.command };
        let python = is_script(words).then(|| self.interpreter.path(host).into_os_string());
        python.into_iter().chain(words.iter().cloned()).collect()
    }

    /// What to write. If every format goes to a file, the terminal still gets the text.
    pub(crate) fn outputs(&self) -> Vec<CheckOutput> {
        let plain = |format| CheckOutput { format, file: None };
        if self.json {
            return vec![plain(CheckFormat::Json)];
        }
        let mut outputs = self.outputs.clone();
        if outputs.iter().all(|output| output.file.is_some()) {
            outputs.push(plain(CheckFormat::Text));
        }
        outputs
    }
}

/// Limits on a run's memory.
#[derive(Args, Clone, Default, Debug)]
pub(crate) struct LimitArgs {
    /// Maximum memory allocated on a device at any time
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_peak: Option<u64>,

    /// Maximum memory reserved on a device at any time: the recorded requests, replayed from an empty pool
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_reserved: Option<u64>,

    /// Allow no leaks
    #[arg(long)]
    pub(crate) no_leaks: bool,

    /// Maximum growth per step, in bytes; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = growth)]
    pub(crate) max_growth: Option<u64>,

    /// Maximum share of reserved memory that is never needed at one time
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub(crate) max_fragmentation: Option<f64>,

    /// Compare with the numbers in this file; commit it to git
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,

    /// How far a number may exceed the baseline: a share or a size [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = tolerance, requires = "baseline")]
    pub(crate) tolerance: Option<Tolerance>,

    /// Write the baseline instead of comparing with it
    #[arg(long, requires = "baseline")]
    pub(crate) update: bool,
}

impl From<&LimitArgs> for gate::Budget {
    fn from(limits: &LimitArgs) -> gate::Budget {
        let LimitArgs {
            max_peak,
            max_reserved,
            no_leaks,
            max_growth,
            max_fragmentation,
            tolerance,
            update,
            ..
        } = *limits;
        let baseline = limits.baseline.clone();
        gate::Budget {
            max_peak,
            max_reserved,
            no_leaks,
            max_growth,
            max_fragmentation,
            baseline,
            tolerance,
            update,
        }
    }
}

/// How far a number may be above the baseline: `1%` or `64MiB`.
pub fn tolerance(text: &str) -> Result<Tolerance, String> {
    let is_bare = text.bytes().all(|letter| letter.is_ascii_digit() || letter == b'.');
    match text {
        "0" => Ok(Tolerance::Size(0)),
        _ if text.ends_with('%') => percentage(text).map(Tolerance::Share),
        _ if is_bare => Err(format!("expected a share or a size: {text}% or {text}MiB")),
        _ => size(text).map(Tolerance::Size),
    }
}

/// `20%`, `20` or `2.5 %` as a share.
fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end().parse::<f64>();
    let percent = number.ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(|percent| percent / 100.0).ok_or_else(|| "expected a percentage such as 20%".to_owned())
}

/// Growth per step: a size, or 0 for none.
pub fn growth(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

/// A format, and where to write it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CheckOutput {
    pub(crate) format: CheckFormat,
    /// Where it goes, if not to standard output.
    pub(crate) file: Option<PathBuf>,
}

impl CheckOutput {
    fn parse(text: &str) -> Result<CheckOutput, String> {
        let (name, file) = match text.split_once('=') {
            Some((name, file)) => (name, Some(file)),
            None => (text, None),
        };
        if file.is_some_and(str::is_empty) {
            return Err(format!("expected the name of a file: {name}=FILE"));
        }
        let format = CheckFormat::from_str(name, true)
            .map_err(|_| "expected text, json, junit or github, optionally with =FILE".to_owned())?;
        Ok(CheckOutput { format, file: file.map(PathBuf::from) })
    }
}

/// Format of the verdict.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckFormat {
    /// For people
    Text,
    /// The numbers and the verdict
    Json,
    /// JUnit XML: a test case for each limit and device
    Junit,
    /// Annotations of GitHub Actions
    Github,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_a_share_or_a_size() {
        assert_eq!(tolerance("1%"), Ok(Tolerance::Share(0.01)));
        assert_eq!(tolerance("2.5 %"), Ok(Tolerance::Share(0.025)));
        assert_eq!(tolerance("64MiB"), Ok(Tolerance::Size(64 << 20)));
        assert_eq!(tolerance("0"), Ok(Tolerance::Size(0)));
        assert_eq!(tolerance("5"), Err("expected a share or a size: 5% or 5MiB".to_owned()));
        for wrong in ["-1%", "101%", "%", "", "much", "NaN%"] {
            assert!(tolerance(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_format_may_have_a_file() {
        let parsed = |text| CheckOutput::parse(text).map(|output| (output.format, output.file));
        assert_eq!(parsed("JSON"), Ok((CheckFormat::Json, None)));
        assert_eq!(parsed("junit=a=b.xml"), Ok((CheckFormat::Junit, Some("a=b.xml".into()))));
        assert!(parsed("junit=").is_err() && parsed("xml").is_err());
    }
}
