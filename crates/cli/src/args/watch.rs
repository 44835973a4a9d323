//! The arguments of `oomph watch`.

use clap::Args;
use live::{ExporterAddress, WatchSource};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oomph watch                       every program of yours that is being recorded, and every GPU
  oomph watch 4242                  one process, or those it started (oomph run, torchrun)
  oomph watch oomph-recording/      the ranks that record to a folder
  oomph watch gpu7:16674            programs on another machine, where `oomph exporter` runs
  oomph watch --once                print the current state once
  oomph watch --json | jq .         for programs: one line per update

To be watched, a program runs under `oomph run train.py` or calls `oomph.record()`.
Keys: up and down select, d writes a recording, s toggles the largest lines, p pauses, ? shows
help, q quits.
What it shows and what it costs: docs/how-to/watch-a-run.md.")]
pub(crate) struct WatchArgs {
    /// A process, a recording's folder, or HOST:PORT of an exporter; default: everything you may see
    #[arg(value_name = "PID|DIR|HOST:PORT", value_parser = target)]
    pub(crate) target: Option<Target>,

    /// Print the current state, then exit; the default without a terminal
    #[arg(long)]
    pub(crate) once: bool,

    /// Print JSON: one line per update, until the watched programs exit
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    pub(crate) interval: Duration,

    /// A file with the exporter's token
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// What to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Process(u32),
    Folder(PathBuf),
    Remote(String),
}

impl WatchArgs {
    /// Where to look; fails if the token cannot be read.
    pub(crate) fn source(&self) -> std::io::Result<WatchSource> {
        Ok(match &self.target {
            None => WatchSource::All,
            Some(Target::Process(pid)) => WatchSource::Process(*pid),
            Some(Target::Folder(folder)) => WatchSource::Folder(folder.clone()),
            Some(Target::Remote(host)) => {
                let token = self.token_file.as_ref().map(std::fs::read_to_string).transpose()?;
                let token = token.map(|token| token.trim().to_owned());
                WatchSource::Remote(ExporterAddress { host: host.clone(), token })
            }
        })
    }
}

fn target(text: &str) -> Result<Target, String> {
    if let Ok(pid) = text.parse() {
        return Ok(Target::Process(pid));
    }
    let path = PathBuf::from(text);
    if path.is_dir() {
        return Ok(Target::Folder(path));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(Target::Remote(text.to_owned()))
        }
        _ => Err("expected a process ID, an existing folder, or HOST:PORT".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("expected between 0.05 and 3600 seconds".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_recognized_by_its_form() {
        assert_eq!(target("4242"), Ok(Target::Process(4242)));
        assert_eq!(target("gpu7:16674"), Ok(Target::Remote("gpu7:16674".to_owned())));
        assert_eq!(target("[::1]:16674"), Ok(Target::Remote("[::1]:16674".to_owned())));
        assert_eq!(target("."), Ok(Target::Folder(".".into())));
        assert!(target("nowhere/").is_err() && target("gpu7:").is_err() && target(":16674").is_err());
    }
}
