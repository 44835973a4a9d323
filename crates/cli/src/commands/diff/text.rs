//! `oomph diff` as text: the verdict, the numbers, the findings, the lines.

use crate::commands::report::findings_text::headline;
use crate::commands::report::text::change_line;
use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, signed};
use analysis::words::{grouped, percent, printable};
use analysis::{Category, DevicePair, DeviceSummary, FindingChange, changes, difference, finding_changes};
use snapshot::Bytes;
use std::io::Write;

/// Prints the device with the highest peak in full, the others in a line.
pub(super) fn print(pairs: &[DevicePair<'_>], top: usize, terminal: &mut Terminal) -> anyhow::Result<()> {
    let shown = (0..pairs.len())
        .max_by_key(|&rank| (pairs[rank].after.allocated.0, std::cmp::Reverse(rank)))
        .unwrap_or(0);
    if pairs.len() > 1 {
        for (rank, DevicePair { before: a, after: b, .. }) in pairs.iter().enumerate() {
            writeln!(
                terminal.out(),
                " rank {rank:>3}  {}  peak {}",
                printable(&b.name),
                change(a.allocated.0, b.allocated.0)
            )?;
        }
        writeln!(terminal.out(), "\n rank {shown} has the highest peak:")?;
    }
    pair(&pairs[shown], top, terminal)
}

/// `2.59 GiB → 1.10 GiB  (-1.49 GiB, -57%)`
fn change(before: Bytes, after: Bytes) -> String {
    let by = difference(before, after);
    let share = by.unsigned_abs() as f64 / before.0.max(1) as f64;
    let sign = if by < 0 { '-' } else { '+' };
    if by == 0 {
        format!("{after}  (no change)")
    } else if before.0 == 0 || share < 0.005 {
        format!("{before} → {after}  ({})", signed(by))
    } else if share > 10.0 {
        format!("{before} → {after}  ({}, {}×)", signed(by), grouped(after.0 / before.0))
    } else {
        format!("{before} → {after}  ({}, {sign}{})", signed(by), percent(share))
    }
}

/// How one number has changed, in words; `None` if it has not.
fn verdict(name: &str, before: Bytes, after: Bytes) -> Option<String> {
    let by = difference(before, after);
    let share = by.unsigned_abs() as f64 / before.0.max(after.0).max(1) as f64;
    let direction = if by < 0 { "lower" } else { "higher" };
    (share >= 0.005).then(|| format!("the {name} is {} {direction}", Bytes(by.unsigned_abs())))
}

fn pair(pair: &DevicePair<'_>, top: usize, terminal: &mut Terminal) -> anyhow::Result<()> {
    let DevicePair { before: a, after: b, renamed, doubts } = pair;
    let allocated = verdict("peak", a.allocated.0, b.allocated.0);
    let reserved = verdict("reserved peak", a.reserved.0, b.reserved.0);
    let headline = match (allocated, reserved) {
        (None, None) => "the peak is the same".to_owned(),
        (None, Some(reserved)) => format!("the allocated peak is the same, {reserved}"),
        (Some(allocated), None) => allocated,
        (Some(allocated), Some(reserved)) => format!("{allocated}, {reserved}"),
    };
    let headline = terminal.paint(Style::Bold, &headline);
    writeln!(terminal.out(), "{headline}\n   from {}\n   to   {}\n", printable(&a.name), printable(&b.name))?;
    for doubt in doubts {
        paragraph(" ! ", "   ", doubt, Some(Style::Yellow), terminal)?;
    }
    for file in renamed {
        let text = format!("{} is compared with {}", printable(&file.before), printable(&file.after));
        paragraph("   ", "   ", &text, Some(Style::Dim), terminal)?;
    }
    if !doubts.is_empty() || !renamed.is_empty() {
        writeln!(terminal.out())?;
    }
    if a.settings != b.settings {
        let named = |settings: &str| {
            if settings.is_empty() { "PyTorch's defaults".to_owned() } else { settings.to_owned() }
        };
        writeln!(terminal.out(), "   {:<15} {} → {}", "settings", named(&a.settings), named(&b.settings))?;
    }
    for (name, before, after) in [
        ("peak allocated", a.allocated.0, b.allocated.0),
        ("peak reserved", a.reserved.0, b.reserved.0),
        ("end allocated", a.allocated.1, b.allocated.1),
        ("end reserved", a.reserved.1, b.reserved.1),
    ] {
        writeln!(terminal.out(), "   {name:<15} {}", change(before, after))?;
    }
    if a.steps != b.steps {
        writeln!(terminal.out(), "   {:<15} {} → {}", "steps", a.steps, b.steps)?;
    }
    findings(a, b, terminal)?;
    let differing: Vec<Category> =
        Category::ALL.into_iter().filter(|&of| a.at_peak.get(of) != b.at_peak.get(of)).collect();
    if !differing.is_empty() {
        let title = terminal.paint(Style::Bold, " at the peak, by category");
        writeln!(terminal.out(), "\n{title}")?;
        for category in differing {
            let text = change(a.at_peak.get(category), b.at_peak.get(category));
            writeln!(terminal.out(), "   {:<11} {text}", category.name())?;
        }
    }
    let changes = changes(&a.sites, &b.sites);
    if !changes.is_empty() {
        let title = terminal.paint(Style::Bold, " at the peak, by line");
        writeln!(terminal.out(), "\n{title}")?;
        for change in changes.iter().take(top) {
            change_line(change, terminal)?;
        }
        if changes.len() > top {
            let rest = changes[top..].iter().fold(0i64, |sum, change| sum.saturating_add(change.by()));
            let text = format!("   and {} more: {}", changes.len() - top, signed(rest));
            let text = terminal.paint(Style::Dim, &text);
            writeln!(terminal.out(), "{text}")?;
        }
    }
    Ok(())
}

fn findings(a: &DeviceSummary, b: &DeviceSummary, terminal: &mut Terminal) -> anyhow::Result<()> {
    let finding_changes = finding_changes(&a.findings, &b.findings);
    if finding_changes.is_empty() {
        return Ok(writeln!(terminal.out(), "\n ✓ no findings in either")?);
    }
    for (change, title) in [
        (FindingChange::Appeared, " new findings"),
        (FindingChange::Stayed, " findings in both"),
        (FindingChange::Gone, " resolved findings"),
    ] {
        let with_change: Vec<_> = finding_changes.iter().filter(|found| found.0 == change).collect();
        if with_change.is_empty() {
            continue;
        }
        let title = terminal.paint(Style::Bold, title);
        writeln!(terminal.out(), "\n{title}")?;
        for (_, remark, earlier) in with_change {
            let place = remark.site.as_ref().map(|site| format!(" · {}", site.short())).unwrap_or_default();
            headline(remark.kind, remark.severity, &format!("{}{place}", remark.summary), terminal)?;
            if let Some(earlier) = earlier.filter(|earlier| earlier.summary != remark.summary) {
                paragraph(
                    "   ",
                    "           ",
                    &format!("before: {}", earlier.summary),
                    Some(Style::Dim),
                    terminal,
                )?;
            }
        }
    }
    Ok(())
}
