//! The phases of a program as text: what each needs, and what stays after it.

use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::words::{counted, printable, share, shortened, site_name};
use analysis::{EndedPhase, LedgerOwner, PhaseLine, PhaseSummary, RunModel, RunPhases};
use snapshot::Bytes;
use std::io::Write;
use std::time::Duration;
use watch::verdict::duration;

/// What stays after a phase is worth a line from so much on, as a share of the highest peak.
const MIN_STAYED: Bytes = Bytes(1 << 20);
const MIN_STAYED_SHARE: f64 = 0.01;
/// What is cached at a change of phases is worth a line from so much on, as a share of what is reserved.
const MIN_CACHED: Bytes = Bytes(1 << 30);
const MIN_CACHED_SHARE: f64 = 0.25;
/// Share of the process from which the difference between what it has and what PyTorch counts is no rounding.
const MIN_UNMAPPED_SHARE: f64 = 0.02;
/// Lines of code that are named.
const MAX_LINES: usize = 3;
/// Phases that are printed one by one.
const MAX_PHASES: usize = 12;
/// Characters of a name that are printed.
const MAX_NAME: usize = 20;
/// Shown where a phase has not ended.
const UNKNOWN: &str = "–";

/// Prints a table of the phases, and what to know about them.
pub(super) fn print(model: &RunModel<'_>, found: &RunPhases, terminal: &mut Terminal) -> anyhow::Result<()> {
    let shown = &found.phases[..found.phases.len().min(MAX_PHASES)];
    let columns = columns(shown, model.device.is_cpu());
    let names: Vec<String> = shown.iter().map(|phase| shortened(&printable(&phase.name), MAX_NAME)).collect();
    let width = names.iter().map(|name| name.chars().count() + 2).max().unwrap_or(0).max("phases".len());
    let row = |place: Option<usize>| -> String {
        let cell = |(head, cells): &(&str, Vec<String>)| {
            let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(head.len());
            let cell = place.map_or(*head, |place| &cells[place]);
            format!("  {cell:>width$}")
        };
        columns.iter().map(cell).collect()
    };
    writeln!(terminal.out())?;
    let head = terminal.paint(Style::Bold, &format!("{:width$}", "phases"));
    writeln!(terminal.out(), " {head}{}", row(None))?;
    for (place, name) in names.iter().enumerate() {
        writeln!(terminal.out(), " {:width$}{}", format!("  {name}"), row(Some(place)))?;
    }
    if found.phases.len() > MAX_PHASES {
        writeln!(terminal.out(), "   and {} more", found.phases.len() - MAX_PHASES)?;
    }
    for remark in remarks(model, found) {
        paragraph("   ", "     ", &remark, None, terminal)?;
    }
    Ok(())
}

/// Heads and cells.
fn columns(phases: &[PhaseSummary], is_cpu: bool) -> Vec<(&'static str, Vec<String>)> {
    let of = |cell: fn(&PhaseSummary) -> String| phases.iter().map(cell).collect::<Vec<String>>();
    let mut columns = vec![
        ("times", of(|phase| phase.times.to_string())),
        ("time", of(|phase| duration(Duration::from_micros(phase.microseconds)))),
        ("peak", of(|phase| phase.peak.bytes.to_string())),
    ];
    if !is_cpu {
        columns.push(("reserved", of(|phase| phase.reserved_peak.to_string())));
    }
    columns.push(("after", of(|phase| at_end(phase, |last| Some(last.after.allocated)))));
    if phases.iter().any(|phase| phase.last.as_ref().is_some_and(|last| last.after.process.is_some())) {
        columns.push(("process", of(|phase| at_end(phase, |last| last.after.process))));
    }
    columns.push(("stayed", of(|phase| at_end(phase, |last| Some(last.stayed)))));
    columns
}

fn at_end(phase: &PhaseSummary, amount: fn(&EndedPhase) -> Option<Bytes>) -> String {
    let found = phase.last.as_ref().and_then(amount);
    found.map_or(UNKNOWN.to_owned(), |bytes| bytes.to_string())
}

fn remarks(model: &RunModel<'_>, found: &RunPhases) -> Vec<String> {
    let highest = found.phases.iter().map(|phase| phase.peak.bytes).max().unwrap_or_default();
    let is_worth_it = |bytes: Bytes| bytes >= MIN_STAYED && share(bytes, highest) >= MIN_STAYED_SHARE;
    let mut remarks = Vec::new();
    // What a program sets up at first is there to stay.
    for phase in found.phases.iter().filter(|phase| phase.times > 1 || phase.is_named) {
        let Some(last) = &phase.last else { continue };
        let name = shortened(&printable(&phase.name), MAX_NAME);
        if last.releases {
            remarks.push(after_release(model, &name, last));
        } else if is_worth_it(last.stayed) {
            remarks.push(format!("{} stayed after {name}: {}", last.stayed, lines(model, &last.lines)));
        }
    }
    let cached = |at: &analysis::PhaseMoment| at.reserved - at.allocated;
    let change = found.changes.iter().max_by_key(|change| cached(&change.at));
    if let Some(change) = change.filter(|change| {
        let bytes = cached(&change.at);
        bytes >= MIN_CACHED && share(bytes, change.at.reserved) >= MIN_CACHED_SHARE
    }) {
        let name = |name: &str| shortened(&printable(name), MAX_NAME);
        remarks.push(format!(
            "{} was cached when {} began after {}: only PyTorch's allocator can use it, unless \
             `torch.cuda.empty_cache()` returns it",
            cached(&change.at),
            name(&change.to),
            name(&change.from)
        ));
    }
    if found.is_cut {
        remarks.push("later phases were not recorded: there were too many".to_owned());
    }
    remarks
}

/// What is still there when a phase has released memory.
fn after_release(model: &RunModel<'_>, name: &str, last: &EndedPhase) -> String {
    let allocated = format!("{} allocated by PyTorch ({})", last.stayed, lines(model, &last.lines));
    let Some(process) = last.after.process else { return format!("after {name}: {allocated}") };
    // Non-PyTorch memory stays as it was. If the sum is more than the process has, an allocator below
    // PyTorch's has unmapped memory.
    let others = last.before.process.map_or(Bytes::ZERO, |before| before - last.before.reserved);
    let unmapped = others + last.after.reserved - process;
    if share(unmapped, process) >= MIN_UNMAPPED_SHARE {
        return format!(
            "{process} stayed after {name}: {others} of non-PyTorch memory, and {} of the {} that PyTorch \
             counts as reserved; the rest of that has no memory behind it",
            process - others,
            last.after.reserved
        );
    }
    let mut parts = Vec::new();
    if last.stayed > Bytes::ZERO {
        parts.push(allocated);
    }
    let ledger = last.ledger.iter().flat_map(|ledger| &ledger.rows);
    parts.extend(
        ledger
            .filter(|row| row.owner != LedgerOwner::Tensors)
            .take(MAX_LINES)
            .map(|row| format!("{} {}", row.bytes, printable(row.owner.name()))),
    );
    format!("{process} stayed after {name}: {}", parts.join(", "))
}

fn lines(model: &RunModel<'_>, lines: &[PhaseLine]) -> String {
    let mut parts: Vec<String> = lines
        .iter()
        .take(MAX_LINES)
        .map(|line| {
            let name = line.frame.map(|frame| site_name(model.device.snapshot, frame));
            format!("{} at {}", line.bytes, name.as_deref().unwrap_or("lines that were not recorded"))
        })
        .collect();
    if lines.len() > MAX_LINES {
        parts.push(counted((lines.len() - MAX_LINES) as u64, "more line"));
    }
    parts.join(", ")
}
