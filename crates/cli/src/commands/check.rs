//! `oomph check`: a budget for memory, kept or broken.

use super::predict::shown;
use super::run;
use crate::args::{CheckArgs, Limits};
use crate::child::{Ended, Folder, Job};
use crate::inputs;
use crate::terminal::{Failure, Style, Terminal};
use crate::{Host, Status};
use analysis::{Answer, Kind, Place};
use clap::Parser;
use serde::Serialize;
use snapshot::Bytes;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

pub(crate) fn run(args: &CheckArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<Status> {
    let (command, limits) = limits_behind(&args.command, &args.limits);
    let folder;
    let files = if command.is_empty() {
        inputs::expand(&args.inputs)?
    } else {
        folder = Folder::new(None)?;
        record(args, host, command, &folder, terminal)?
    };
    if files.is_empty() {
        return Err(Failure::new(
            "nothing to check",
            None,
            Some("name a snapshot, or a command behind `--`"),
        )
        .into());
    }
    if limits.is_empty() {
        return Err(Failure::new(
            "no limit was given",
            None,
            Some("add --max-peak SIZE, --max-reserved SIZE or --no-leaks"),
        )
        .into());
    }
    let mut verdicts = Vec::new();
    for file in &files {
        let input = inputs::load(file)?;
        let devices = input.devices();
        for device in &devices {
            let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            verdicts.push(verdict(&name, &Answer::new(device), &limits));
        }
    }
    let is_broken = verdicts.iter().any(|verdict| !verdict.broken.is_empty());
    if args.json {
        serde_json::to_writer_pretty(
            terminal.out(),
            &Document { version: 1, ok: !is_broken, devices: &verdicts },
        )?;
        writeln!(terminal.out())?;
    } else {
        verdicts.iter().try_for_each(|verdict| print(verdict, terminal))?;
    }
    Ok(u8::from(is_broken))
}

/// Runs the command and gives its recordings.
fn record(
    args: &CheckArgs,
    host: &Host,
    command: &[OsString],
    folder: &Folder,
    terminal: &Terminal,
) -> anyhow::Result<Vec<PathBuf>> {
    let job = Job::new(command.to_vec(), args.pretend.pretend(host), args.steps);
    let done = run::record(job, &shown(command), folder, terminal)?;
    if let Some(rank) = done.ranks.iter().find(|rank| rank.summary.ended == Ended::Failed) {
        return Err(Failure::new(
            "the program failed, so its memory could not be measured",
            rank.summary.exception.as_deref().and_then(|text| text.lines().next()).map(str::to_owned),
            Some("its own message is above"),
        )
        .into());
    }
    Ok(done.ranks.into_iter().map(|rank| rank.snapshot).collect())
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    ok: bool,
    devices: &'a [Verdict],
}

/// One device against the limits.
#[derive(Serialize)]
struct Verdict {
    input: String,
    device: u32,
    #[serde(skip)]
    device_name: String,
    peak_allocated: u64,
    peak_reserved: u64,
    leaks: usize,
    /// What is wrong, in words.
    broken: Vec<String>,
}

fn verdict(input: &str, answer: &Answer<'_>, limits: &Limits) -> Verdict {
    let history = &answer.outline.device.history;
    let (allocated, reserved) = (history.allocated_peak.bytes, history.reserved_peak.bytes);
    let mut broken = Vec::new();
    for (what, bytes, limit) in
        [("allocated", allocated, limits.max_peak), ("reserved", reserved, limits.max_reserved)]
    {
        if let Some(limit) = limit.filter(|&limit| bytes.0 > limit) {
            let over = Bytes(bytes.0 - limit);
            broken.push(format!("peak {what} {bytes} is {over} over the limit of {}", Bytes(limit)));
        }
    }
    let leaks: Vec<_> = answer.findings.iter().filter(|finding| finding.kind == Kind::Leak).collect();
    if limits.no_leaks {
        broken.extend(leaks.iter().map(|leak| {
            let place = leak.site.map(|frame| Place::of(answer.outline.device.snapshot, frame).short());
            let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
            format!("leak{place}: {}", leak.summary)
        }));
    }
    Verdict {
        input: input.to_owned(),
        device: history.device,
        device_name: answer.outline.device.name(),
        peak_allocated: allocated.0,
        peak_reserved: reserved.0,
        leaks: leaks.len(),
        broken,
    }
}

fn print(verdict: &Verdict, terminal: &mut Terminal) -> anyhow::Result<()> {
    let (mark, style) = if verdict.broken.is_empty() {
        ("✓ within the budget", Style::Green)
    } else {
        ("✗ over the budget", Style::Red)
    };
    let mark = terminal.paint(style, mark);
    let (allocated, reserved) = (Bytes(verdict.peak_allocated), Bytes(verdict.peak_reserved));
    writeln!(
        terminal.out(),
        "{mark}  {} {}: peak {allocated} allocated ({} bytes), {reserved} reserved",
        verdict.input,
        verdict.device_name,
        verdict.peak_allocated
    )?;
    for broken in &verdict.broken {
        writeln!(terminal.out(), "  {broken}")?;
    }
    Ok(())
}

/// Limits may also stand at the end of the command, if none stands in front: that is where people add them.
fn limits_behind<'a>(command: &'a [OsString], limits: &Limits) -> (&'a [OsString], Limits) {
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
    use super::*;

    fn split(text: &str) -> (String, Limits) {
        let command: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        let (command, limits) = limits_behind(&command, &Limits::default());
        (shown(command), limits)
    }

    #[test]
    fn limits_are_found_behind_the_command() {
        let (command, limits) = split("python train.py --lr 3 --max-peak 60GiB --no-leaks");
        assert_eq!(command, "python train.py --lr 3");
        assert_eq!((limits.max_peak, limits.no_leaks), (Some(60 << 30), true));
        let (command, limits) = split("python train.py --max-peak 60GiB --lr 3");
        assert_eq!(command, "python train.py --max-peak 60GiB --lr 3");
        assert!(limits.is_empty());
    }
}
