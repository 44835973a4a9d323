//! `oomph report`: what fills memory, and where it comes from.

use super::{report_json, report_text, summary};
use crate::args::ReportArgs;
use crate::inputs;
use crate::terminal::{Failure, Terminal};
use analysis::{Device, Moment};
use std::process::ExitCode;

pub(crate) fn run(args: &ReportArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let files = inputs::expand(&args.inputs)?;
    let mut json = args.json.then(report_json::Document::new);
    for (place, file) in files.iter().enumerate() {
        let input = inputs::load(file, terminal)?;
        let devices = analysis::devices(&input.snapshot);
        for device in &devices {
            check_moment(args.at, device, &input.name)?;
        }
        match &mut json {
            Some(document) => document.add(&input.name, &devices, args, &input.snapshot),
            None if args.summary => summary::print(&devices, terminal)?,
            None => {
                if place > 0 {
                    report_text::separator(terminal)?;
                }
                report_text::print(&input, &devices, args, terminal)?;
            }
        }
    }
    if let Some(document) = json {
        document.print(terminal)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asking for a moment that never was is a mistake worth a word, not an empty table.
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
