//! `oomph report`: what is wrong, what fills memory, and where it comes from.

pub(super) mod findings_text;
mod host_text;
mod ledger_text;
mod live_text;
mod phases_text;
mod ranks;
mod summary;
pub(super) mod text;

use crate::ExitCode;
use crate::args::{By, ReportArgs};
use crate::commands::document;
use crate::terminal::{Failure, TALK, Terminal};
use analysis::{Device, DeviceSummary, Diagnosis, Moment, Severity};
use documents::ReportDocument;
use inputs::Input;
use std::path::PathBuf;

pub(crate) fn run(args: &ReportArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let files = inputs::expand(&args.inputs)?;
    if files.len() > MAX_RANK_ROWS && !args.json && !args.summary && args.at.is_none() && args.by == By::Site
    {
        return many_ranks(args, &files, terminal);
    }
    let mut report = Report::new(args, files.len());
    for file in &files {
        let input = inputs::load(file, &TALK)?;
        let devices = input.devices();
        report.add(&input, &devices, terminal)?;
    }
    report.finish(terminal)
}

/// More ranks than this are compared as a fleet, not in a table with a row for each.
const MAX_RANK_ROWS: usize = 16;

/// The report of more ranks than a table has room for.
fn many_ranks(args: &ReportArgs, files: &[PathBuf], terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let shown: Vec<String> = args.inputs.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let files: Vec<String> = files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let records = fleet::read(&fleet::list(&files)?, &TALK);
    let mut answer = fleet::FleetAnswer::new(&records, None)?;
    fleet::open_outliers(&mut answer, &TALK);
    super::fleet::text::print(&answer, false, &shown, terminal)?;
    let is_severe = |limit: Severity| {
        let limits = [Severity::Low, Severity::Medium, Severity::High].map(Severity::name);
        let from = limits.iter().position(|name| *name == limit.name()).unwrap_or(0);
        answer.findings.iter().any(|finding| limits[from..].contains(&finding.severity.as_str()))
    };
    Ok(u8::from(args.fail_on.is_some_and(|limit| is_severe(limit.into()))))
}

/// Builder of a report. Inputs are added one by one, so that only one rank is in memory at a time.
pub(crate) struct Report<'a> {
    args: &'a ReportArgs,
    is_ranks: bool,
    json: Option<ReportDocument>,
    summaries: Vec<DeviceSummary>,
    worst: Option<Severity>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(args: &'a ReportArgs, inputs: usize) -> Report<'a> {
        let json = args.json.then(ReportDocument::default);
        Report { args, is_ranks: inputs > 1, json, summaries: Vec::new(), worst: None }
    }

    pub(crate) fn add(
        &mut self,
        input: &Input,
        devices: &[Device<'_>],
        terminal: &mut Terminal,
    ) -> anyhow::Result<()> {
        let args = self.args;
        if let Some(moment) = args.at.filter(|_| !self.is_ranks || args.json) {
            for device in devices {
                check_moment(moment, device, &input.name)?;
            }
        }
        if args.summary && self.json.is_none() {
            return summary::print(devices, terminal);
        }
        // Moments of other devices are not moments of pinned memory.
        let has_moment = matches!(args.at, None | Some(Moment::Peak | Moment::End));
        let pinned = input.snapshot.pinned_snapshot().filter(|_| has_moment && !self.is_ranks);
        let pinned = pinned.as_ref().map(analysis::devices).unwrap_or_default();
        let answers: Vec<Diagnosis<'_>> = devices.iter().chain(&pinned).map(Diagnosis::new).collect();
        let findings = answers.iter().flat_map(|answer| &answer.findings);
        self.worst = findings.map(|finding| finding.severity).max().max(self.worst);
        if self.is_ranks {
            self.summaries.extend(device_summaries(&input.name, &answers));
        }
        match &mut self.json {
            Some(document) => document.add(input, &answers, &args.into()),
            None if !self.is_ranks => text::print(input, &answers, args, terminal)?,
            None => {}
        }
        Ok(())
    }

    pub(crate) fn finish(self, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
        let Report { args, is_ranks, json, summaries, worst } = self;
        if is_ranks && !args.json && !args.summary && (args.at.is_some() || args.by != By::Site) {
            terminal
                .say("note: --at and --by are for one input; the ranks are compared at their peaks, by line");
        }
        match json {
            Some(mut document) => {
                if is_ranks {
                    document.compare_ranks(&summaries);
                }
                document::print(&document, terminal)?;
            }
            None if is_ranks && !args.summary => ranks::print(&summaries, terminal)?,
            None => {}
        }
        let fails = args.fail_on.is_some_and(|limit| worst >= Some(limit.into()));
        Ok(u8::from(fails))
    }
}

/// The summaries of the devices of one input. An empty input counts as a rank, too.
fn device_summaries(name: &str, answers: &[Diagnosis<'_>]) -> Vec<DeviceSummary> {
    if answers.is_empty() {
        return vec![DeviceSummary::empty(name)];
    }
    answers.iter().map(|answer| DeviceSummary::new(name, &answer.model, &answer.findings)).collect()
}

/// The summaries of every device of some inputs; nothing of the snapshots stays in memory.
pub(super) fn summaries(files: &[PathBuf]) -> anyhow::Result<Vec<DeviceSummary>> {
    let mut summaries = Vec::new();
    for file in inputs::expand(files)? {
        let input = inputs::load(&file, &TALK)?;
        let devices = input.devices();
        summaries.extend(summaries_of(&input, &devices));
    }
    Ok(summaries)
}

/// The summaries of every device of one input.
pub(crate) fn summaries_of(input: &Input, devices: &[Device<'_>]) -> Vec<DeviceSummary> {
    let answers: Vec<Diagnosis<'_>> = devices.iter().map(Diagnosis::new).collect();
    device_summaries(&input.name, &answers)
}

/// Fails for a moment that the history does not have.
fn check_moment(moment: Moment, device: &Device<'_>, name: &str) -> anyhow::Result<()> {
    if device.position_of(moment).is_some() {
        return Ok(());
    }
    let failure = match moment {
        Moment::Oom => Failure::new(
            format!("`{name}` has no out-of-memory event"),
            Some(format!("none of the {} recorded events is an `oom`", device.history.len())),
            Some("`--at peak` shows the highest point instead"),
        ),
        _ => Failure::new(
            format!("`{name}` has no such event"),
            Some(format!("its history has {} events, counted from 0", device.history.len())),
            Some("`--at end` shows the last moment"),
        ),
    };
    Err(failure.into())
}
