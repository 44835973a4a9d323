//! The ledger of a device: its memory by owner, as text.

use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::words::{counted, printable, share};
use analysis::{DeviceLedger, LedgerOwner, RunModel};
use snapshot::Bytes;
use std::io::Write;

/// Share of the process's memory below which rows are printed together.
const MIN_SHARE: f64 = 0.002;
/// Share from which a difference is worth a line.
const MIN_UNATTRIBUTED_SHARE: f64 = 0.001;
/// Share of non-PyTorch memory from which it is worth splitting.
const MIN_SHARE_TO_TRACE: f64 = 0.1;
/// Other processes that are printed one by one.
const MAX_OTHERS: usize = 4;

/// Prints where the memory of the process is.
pub(super) fn print(ledger: &DeviceLedger, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(process) = ledger.process else { return Ok(()) };
    let when = ledger.when();
    let label = terminal.paint(Style::Bold, "process");
    writeln!(terminal.out(), " {label} {process} on the device, as nvidia-smi counts it, {when}")?;
    let (shown, small): (Vec<_>, Vec<_>) =
        ledger.rows.iter().partition(|row| share(row.bytes, process) >= MIN_SHARE);
    let mut lines: Vec<(String, Bytes, String)> = Vec::new();
    for row in shown {
        let parts = row.libraries.iter().map(|(name, bytes)| format!("{} {bytes}", printable(name)));
        let note = match row.owner {
            LedgerOwner::NonPytorch => "CUDA context, libraries, kernels, CUDA graphs".to_owned(),
            _ => parts.collect::<Vec<_>>().join(" · "),
        };
        lines.push((printable(row.owner.name()).into_owned(), row.bytes, note));
    }
    if !small.is_empty() {
        let names: Vec<_> = small.iter().map(|row| printable(row.owner.name())).collect();
        lines.push(("others".to_owned(), small.iter().map(|row| row.bytes).sum(), names.join(", ")));
    }
    let rest = ledger.unattributed.unwrap_or(0);
    if share(Bytes(rest.unsigned_abs()), process) >= MIN_UNATTRIBUTED_SHARE {
        let (name, why) = match rest {
            0.. => ("unattributed", "taken by calls that were not counted".to_owned()),
            _ => ("counted twice", "the parts are more than the process has".to_owned()),
        };
        let missed = match ledger.missed_calls {
            0 => String::new(),
            calls => format!("; {} overlapped with another thread's", counted(calls, "call")),
        };
        lines.push((name.to_owned(), Bytes(rest.unsigned_abs()), why + &missed));
    }
    let width = lines.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    for (name, bytes, note) in lines {
        let amount = bytes.to_string();
        let start = format!("   {name:width$}  {amount:>9}");
        let indent = " ".repeat(start.chars().count() + 2);
        match note.as_str() {
            "" => writeln!(terminal.out(), "{start}")?,
            note => paragraph(&format!("{start}  "), &indent, note, None, terminal)?,
        }
    }
    others(ledger, terminal)?;
    Ok(())
}

/// Returns whether a large part of the process's memory has no owner that is known.
pub(super) fn is_worth_tracing(model: &RunModel<'_>) -> bool {
    let ledger = DeviceLedger::highest(model.device.recording, model.device.history.device);
    ledger.is_some_and(|ledger| {
        let rows = ledger.rows.iter().filter(|row| row.owner == LedgerOwner::NonPytorch);
        let bytes: Bytes = rows.map(|row| row.bytes).sum();
        ledger.process.is_some_and(|process| share(bytes, process) >= MIN_SHARE_TO_TRACE)
    })
}

/// Memory of the device that is not of this process.
fn others(ledger: &DeviceLedger, terminal: &mut Terminal) -> anyhow::Result<()> {
    if ledger.others.is_empty() {
        return Ok(());
    }
    let sum: Bytes = ledger.others.iter().map(|process| process.bytes).sum();
    let mut named: Vec<String> = ledger
        .others
        .iter()
        .take(MAX_OTHERS)
        .map(|process| {
            let name = if process.name.is_empty() { "a process" } else { &process.name };
            format!("{} ({}) {}", printable(name), process.pid, process.bytes)
        })
        .collect();
    if ledger.others.len() > MAX_OTHERS {
        named.push(format!("{} more", ledger.others.len() - MAX_OTHERS));
    }
    let text = format!("{sum} in other processes: {}", named.join(" · "));
    paragraph(" ", "   ", &text, None, terminal)
}
