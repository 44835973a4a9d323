//! `oomph export`: the tables of a snapshot, for other tools.

use crate::args::ExportArgs;
use crate::terminal::Terminal;
use std::process::ExitCode;

pub(crate) fn run(args: &ExportArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let _ = (args, terminal);
    anyhow::bail!("not built yet")
}
