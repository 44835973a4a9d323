//! The arguments of `oomph attach`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph attach 4242                  what fills its memory now, and what holds it
  oomph attach 4242 --for 10m        record for ten minutes: does memory grow from step to step, and where

Only the process's own user and root can attach; before Python 3.14, only on x86-64.")]
pub(crate) struct AttachArgs {
    /// A running Python process that uses torch
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,

    /// Record for this long: 60s, 10m, 2h
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,

    /// Stop recording after N steps
    #[arg(long, value_name = "N", requires = "duration", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: Option<u32>,

    /// How long to wait for its main thread, which may be busy in C code
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Leave out what holds the tensors: the program pauses while references are collected
    #[arg(long)]
    pub(crate) no_holders: bool,

    /// Folder for the recording; default: `oomph-recording`, or the first unused of `oomph-recording-2`, …
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Replace a recording in that folder, or write next to other files in it
    #[arg(long, requires = "output")]
    pub(crate) force: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a time: `60s`, `10m`, `2h`, or seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    let scale = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds = digits.parse::<f64>().unwrap_or(f64::NAN) * scale;
    let is_usable = (0.1..=7.0 * 86_400.0).contains(&seconds);
    is_usable.then(|| Duration::from_secs_f64(seconds)).ok_or("expected a time such as 60s or 10m".to_owned())
}
