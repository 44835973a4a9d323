//! `oomph query`: SQL over the tables of a snapshot.

mod text;

use crate::ExitCode;
use crate::args::QueryArgs;
use crate::commands::{document, export as tables};
use crate::terminal::{TALK, Terminal};
use documents::QueryDocument;
use export::QueryLimits;
use std::time::Duration;

pub(crate) fn run(args: &QueryArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let input = inputs::load(&tables::only(&args.input)?, &TALK)?;
    let devices = input.devices();
    let time = Duration::from_secs(args.time_limit);
    let limits = QueryLimits { offset: args.offset, rows: args.limit as usize, time };
    let answer = export::query(&input.snapshot, &devices, &args.statement, limits)?;
    match args.json {
        true => document::print(&QueryDocument::new(answer, args.offset), terminal)?,
        false => text::print(&answer, args.offset, terminal)?,
    }
    Ok(0)
}
