//! `oomph diff A B`: what has changed from one run to another.

mod text;

use crate::ExitCode;
use crate::args::DiffArgs;
use crate::commands::{document, report};
use crate::terminal::{Failure, Terminal, shown_path};
use analysis::words::counted;
use analysis::{DevicePair, DeviceSummary};
use documents::DiffDocument;

pub(crate) fn run(args: &DiffArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let side = |path| report::summaries(std::slice::from_ref(path));
    show(&side(&args.before)?, &side(&args.after)?, args, terminal)
}

/// Shows the difference between two sides, device by device.
pub(crate) fn show(
    before: &[DeviceSummary],
    after: &[DeviceSummary],
    args: &DiffArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    if before.len() != after.len() || before.is_empty() {
        let count = |side: &[DeviceSummary]| counted(side.len() as u64, "device");
        return Err(Failure::new(
            "the two sides cannot be paired",
            Some(format!(
                "`{}` has {} and `{}` has {}",
                shown_path(&args.before),
                count(before),
                shown_path(&args.after),
                count(after)
            )),
            Some("give one snapshot on each side, or two folders with the same ranks"),
        )
        .into());
    }
    let followed: Vec<DevicePair> =
        before.iter().zip(after).map(|(before, after)| DevicePair::new(before, after)).collect();
    if args.json {
        document::print_sorted(&DiffDocument::new(&followed, args.top), terminal)?;
        return Ok(0);
    }
    text::print(&followed, args.top, terminal)?;
    Ok(0)
}
