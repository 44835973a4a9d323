//! The verdict as text: the result, every limit, next steps.

use crate::commands::report::text::change_line;
use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use crate::words::signed;
use analysis::difference;
use analysis::words::{counted, grouped};
use gate::BaselineComparison;
use gate::{BudgetVerdict, DeviceVerdict};
use gate::{LimitResult, LimitState};
use snapshot::Bytes;
use std::io::Write;

/// Number of changed lines of code, and of categories, to list.
const MAX_LINES: usize = 5;
const MAX_CATEGORIES: usize = 4;
/// Columns of a limit's name.
const NAME_COLUMNS: usize = 17;

pub(super) fn print(
    verdict: &BudgetVerdict,
    recording: Option<&str>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    headline(verdict, terminal)?;
    for device in &verdict.devices {
        print_device(device, terminal)?;
    }
    let written = verdict.written.iter().map(|written| format!("baseline: {written}"));
    let remarks: Vec<String> = verdict
        .notes
        .iter()
        .map(|note| format!("note: {note}"))
        .chain(written)
        .chain(next(verdict, recording))
        .collect();
    if !remarks.is_empty() {
        writeln!(terminal.out())?;
    }
    for remark in remarks {
        paragraph(" ", "       ", &remark, None, terminal)?;
    }
    Ok(())
}

fn headline(verdict: &BudgetVerdict, terminal: &mut Terminal) -> anyhow::Result<()> {
    let state = verdict.state();
    let all = verdict.results().count();
    let of_state = verdict.results().filter(|judgement| judgement.state() == state).count();
    let limits = counted(all as u64, "limit");
    let (words, how_many) = match state {
        // Only a baseline was asked for.
        LimitState::Kept if all == 0 => ("measured", String::new()),
        LimitState::Kept => (state.words(), format!(": {limits} met")),
        LimitState::Broken => (state.words(), format!(": {of_state} of {limits} exceeded")),
        LimitState::Unmeasured => (state.words(), format!(": {of_state} of {limits}")),
    };
    let words = terminal.paint(style(state), &format!("{} {words}", mark(state)));
    Ok(writeln!(terminal.out(), "{words}{how_many}")?)
}

fn mark(state: LimitState) -> &'static str {
    match state {
        LimitState::Kept => "✓",
        LimitState::Broken => "✗",
        LimitState::Unmeasured => "?",
    }
}

fn style(state: LimitState) -> Style {
    match state {
        LimitState::Kept => Style::Green,
        LimitState::Broken => Style::Red,
        LimitState::Unmeasured => Style::Yellow,
    }
}

fn print_device(device: &DeviceVerdict, terminal: &mut Terminal) -> anyhow::Result<()> {
    let measured = &device.measured;
    let (peak, reserved) = (measured.peak_allocated, measured.replayed.as_ref().ok());
    let reserved = reserved.map(|replayed| format!(", {} reserved", replayed.reserved)).unwrap_or_default();
    let steps = counted(measured.steps as u64, "step");
    let text = format!(
        "{} · {steps} · peak {peak} allocated ({} bytes){reserved}",
        measured.name(),
        grouped(peak.0)
    );
    writeln!(terminal.out())?;
    paragraph(" ", "   ", &text, None, terminal)?;
    for judgement in &device.results {
        print_judgement(judgement, terminal)?;
    }
    Ok(())
}

fn print_judgement(judgement: &LimitResult, terminal: &mut Terminal) -> anyhow::Result<()> {
    let state = judgement.state();
    let label = terminal.paint(style(state), &format!("{} {:<NAME_COLUMNS$}", mark(state), judgement.limit));
    let indent = " ".repeat(NAME_COLUMNS + 6);
    let mut first = format!("   {label} ");
    let mut say = |text: &str, style: Option<Style>, terminal: &mut Terminal| {
        paragraph(&std::mem::replace(&mut first, indent.clone()), &indent, text, style, terminal)
    };
    for breach in &judgement.breaches {
        say(&breach.message, None, terminal)?;
        if let Some(advice) = &breach.advice {
            say(advice, Some(Style::Dim), terminal)?;
        }
    }
    match &judgement.unmeasured {
        Some(why) => {
            say(&format!("could not measure: {}", why.what), None, terminal)?;
            say(&why.hint, Some(Style::Dim), terminal)?;
        }
        None if judgement.breaches.is_empty() => say(&judgement.found, None, terminal)?,
        None => {}
    }
    match &judgement.comparison {
        Some(comparison) if state == LimitState::Broken => moved(comparison, terminal),
        _ => Ok(()),
    }
}

/// Changes since the baseline.
fn moved(comparison: &BaselineComparison, terminal: &mut Terminal) -> anyhow::Result<()> {
    if !comparison.categories.is_empty() {
        let moved: Vec<String> =
            comparison.categories.iter().take(MAX_CATEGORIES).map(|&row| category(row)).collect();
        let title = terminal.paint(Style::Bold, "at the peak, by category");
        writeln!(terminal.out(), "     {title}")?;
        paragraph("       ", "       ", &moved.join(" · "), None, terminal)?;
    }
    if !comparison.lines.is_empty() {
        let title = terminal.paint(Style::Bold, "at the peak, by line");
        writeln!(terminal.out(), "     {title}")?;
        for change in comparison.lines.iter().take(MAX_LINES) {
            change_line(change, terminal)?;
        }
        let rest =
            comparison.lines.iter().skip(MAX_LINES).fold(0i64, |sum, change| sum.saturating_add(change.by()));
        if comparison.lines.len() > MAX_LINES {
            let text = format!("     and {} more: {}", comparison.lines.len() - MAX_LINES, signed(rest));
            let text = terminal.paint(Style::Dim, &text);
            writeln!(terminal.out(), "{text}")?;
        }
    }
    if comparison.is_cut && comparison.lines.iter().any(|line| line.before == Bytes::ZERO) {
        let text = "the baseline has the largest lines only: one that was 0 B may have been small";
        paragraph("     ", "     ", text, Some(Style::Dim), terminal)?;
    }
    Ok(())
}

fn category((of, before, after): (analysis::Category, Bytes, Bytes)) -> String {
    format!("{} {before} → {after} ({})", of.name(), signed(difference(before, after)))
}

/// Next steps.
fn next(verdict: &BudgetVerdict, recording: Option<&str>) -> Vec<String> {
    if verdict.state() == LimitState::Kept {
        return Vec::new();
    }
    let report = match recording {
        Some(recording) => format!("next: oomph report {recording}"),
        None => "next: add `-o DIR` to keep the recording, then `oomph report DIR`".to_owned(),
    };
    let is_grown = |judgement: &LimitResult| judgement.comparison.is_some() && !judgement.breaches.is_empty();
    let update = "if the change is intended, run it again with `--update` and commit the baseline";
    let update = verdict.results().any(is_grown).then(|| format!("next: {update}"));
    std::iter::once(report).chain(update).collect()
}

/// A judgement in lines of plain text.
pub(super) fn plain(judgement: &LimitResult) -> Vec<String> {
    let mut lines = Vec::new();
    for breach in &judgement.breaches {
        lines.push(breach.message.clone());
        lines.extend(
            breach.site.as_ref().map(|site| format!("{}:{} {}", site.file, site.line, site.function)),
        );
        lines.extend(breach.advice.clone());
    }
    if let Some(why) = &judgement.unmeasured {
        lines.extend([format!("could not measure: {}", why.what), why.hint.clone()]);
    }
    if let Some(comparison) =
        judgement.comparison.as_ref().filter(|_| judgement.state() == LimitState::Broken)
    {
        lines.extend(comparison.categories.iter().take(MAX_CATEGORIES).map(|&row| category(row)));
        for change in comparison.lines.iter().take(MAX_LINES) {
            let site = change.site.as_ref().map_or_else(|| "(no stack)".to_owned(), |site| site.short());
            lines.push(format!("{site} {} → {} ({})", change.before, change.after, signed(change.by())));
        }
    }
    lines
}
