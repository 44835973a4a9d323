//! `oomph fleet`: all ranks of a job, compared.

mod ray;
pub(super) mod text;

use crate::args::{EngineArg, FleetArgs, ReportArgs};
use crate::commands::document;
use crate::commands::report::Report;
use crate::terminal::{Failure, TALK, Terminal, shown_path};
use crate::{ExitCode, Host};
use analysis::words::grouped;
use documents::{FleetDocument, FleetListDocument};
use fleet::{FleetAnswer, RankRecord, RankSource};
use std::path::Path;

pub(crate) fn run(args: &FleetArgs, host: &Host, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let ranks = fleet::list(&args.inputs)?;
    if args.list {
        document::print(&FleetListDocument::from(&ranks[..]), terminal)?;
        return Ok(0);
    }
    if let Some(number) = args.rank {
        return one_rank(&ranks, number, args, terminal);
    }
    let records = match args.engine {
        EngineArg::Local => fleet::read(&ranks, &TALK),
        EngineArg::Ray => ray::read(&args.inputs, host)?,
    };
    check_some_read(&records)?;
    if let (Some(_), Some(folder)) = (args.to, &args.output) {
        return tables(&records, folder, terminal);
    }
    let mut answer = FleetAnswer::new(&records, args.by.as_deref())?;
    fleet::open_outliers(&mut answer, &TALK);
    if args.json {
        document::print(&FleetDocument::from(&answer), terminal)?;
    } else {
        text::print(&answer, args.by.is_some(), &args.inputs, terminal)?;
    }
    Ok(0)
}

/// Fails if nothing at all could be read: the reason is most likely the same for all.
fn check_some_read(records: &[RankRecord]) -> Result<(), Failure> {
    match records.first() {
        Some(RankRecord { source, summary: Err(reason) }) if records.iter().all(|of| of.summary.is_err()) => {
            let what = format!("none of the {} snapshots can be read", grouped(records.len() as u64));
            Err(Failure::new(what, Some(format!("`{source}` {reason}")), None))
        }
        _ => Ok(()),
    }
}

/// The whole report of one rank.
fn one_rank(
    ranks: &[RankSource],
    number: u32,
    args: &FleetArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let numbers = fleet::rank_numbers(ranks);
    let mut files = ranks.iter().zip(&numbers).filter(|(_, of)| **of == Some(number)).map(|(file, _)| file);
    let Some(rank) = files.next() else {
        let mut numbers: Vec<u32> = numbers.into_iter().flatten().collect();
        numbers.sort_unstable();
        let cause = (!numbers.is_empty()).then(|| format!("there are ranks {}", text::numbers(&numbers)));
        let inputs = args.inputs.iter().take(3);
        let inputs: Vec<String> =
            inputs.map(|input| format!("`{}`", fleet::without_credentials(input))).collect();
        let what = format!("no recording of rank {number} in {}", inputs.join(", "));
        return Err(Failure::new(what, cause, Some("`oomph fleet --list` shows the files")).into());
    };
    if files.next().is_some() {
        terminal.say(&format!("note: several recordings are of this rank; this is {}", rank.file.name));
    }
    let input = fleet::load(rank, &TALK)?;
    let args = ReportArgs { json: args.json, ..ReportArgs::for_new_run() };
    let mut report = Report::new(&args, 1);
    let devices = input.devices();
    report.add(&input, &devices, terminal)?;
    report.finish(terminal)
}

fn tables(records: &[RankRecord], folder: &Path, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let advance = (TALK.steps)("writing", records.len());
    let counts = fleet::write_parquet(records, folder, &*advance)?;
    drop(advance);
    for record in records {
        if let Err(reason) = &record.summary {
            terminal.say(&format!("not written: `{}` {reason}", record.source));
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(name, rows)| format!("{name} {}", grouped(*rows))).collect();
    terminal.say(&format!("wrote {} to {}", counts.join(" · "), shown_path(folder)));
    Ok(0)
}
