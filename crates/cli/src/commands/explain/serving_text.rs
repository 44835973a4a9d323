//! An engine's memory as a table, and which way to turn its setting.

use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, sentence, wrap};
use analysis::messages::written;
use analysis::serving::{ServingReport, Turn};
use analysis::words::{grouped, percent, printable, share};
use snapshot::Bytes;
use std::io::Write;

/// `vLLM 0.10.2`
pub(super) fn engine(report: &ServingReport) -> String {
    let version = report.version.as_deref().map_or_else(String::new, |version| format!(" {version}"));
    format!("{}{}", report.engine.title(), printable(&version))
}

pub(super) fn print(report: &ServingReport, terminal: &mut Terminal) -> anyhow::Result<()> {
    let verdict = &report.verdict;
    let (mark, style) = if verdict.failure.is_some() { ("✗", Style::Red) } else { ("✓", Style::Green) };
    let mark = terminal.paint(style, mark);
    for (place, line) in wrap(&verdict.summary, terminal.width().saturating_sub(3)).iter().enumerate() {
        let start = if place == 0 { format!(" {mark} ") } else { "   ".to_owned() };
        let line = terminal.paint(Style::Bold, line);
        writeln!(terminal.out(), "{start}{line}")?;
    }
    let place = [
        verdict.line.map(|line| format!("line {}", grouped(line))),
        report
            .rank
            .filter(|_| report.workers > 1)
            .map(|rank| format!("rank {rank}, which has the least to spare of {} workers", report.workers)),
        report.is_default.then(|| format!("the value of {} is the default", report.engine.setting())),
    ];
    let place: Vec<String> = place.into_iter().flatten().collect();
    if !place.is_empty() {
        paragraph("   ", "   ", &place.join("; "), Some(Style::Dim), terminal)?;
    }
    print_parts(report, terminal)?;
    let arrow = match verdict.turn {
        Turn::Raise => "▲",
        Turn::Lower => "▼",
        Turn::Keep => "=",
    };
    paragraph(&format!("   {arrow} "), "     ", &verdict.fix, Some(Style::Green), terminal)?;
    for reason in &verdict.reasons {
        paragraph("     ", "     ", &sentence(reason), None, terminal)?;
    }
    for way in &verdict.alternatives {
        paragraph("   or: ", "       ", way, None, terminal)?;
    }
    Ok(())
}

/// Columns of the longest bar.
const BAR_COLUMNS: usize = 24;

/// Where the memory goes: a row for each part, and their sum.
fn print_parts(report: &ServingReport, terminal: &mut Terminal) -> anyhow::Result<()> {
    if report.parts.is_empty() {
        return Ok(());
    }
    let sum: Bytes = report.parts.iter().map(|share| share.bytes).sum();
    let whole = report.whole.unwrap_or(sum);
    let total = match (report.whole, report.is_whole_gpu) {
        (Some(_), true) => "GPU",
        (Some(_), false) => "free before it started",
        (None, _) => "known; the size of the GPU is not in the log",
    };
    let mut rows: Vec<(&str, Bytes)> =
        report.parts.iter().map(|share| (share.part.name(), share.bytes)).collect();
    rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let name_columns = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    writeln!(terminal.out())?;
    for (name, bytes) in rows {
        let cells = (share(bytes, sum) * BAR_COLUMNS as f64).round().max(1.0) as usize;
        let bar = terminal.paint(Style::Cyan, &"█".repeat(cells));
        let (size, part) = (written(bytes), percent(share(bytes, whole)));
        writeln!(terminal.out(), "   {name:name_columns$}  {size:>11}  {part:>4}  {bar}")?;
    }
    if report.excess > Bytes::ZERO {
        let excess = written(report.excess);
        writeln!(terminal.out(), "   {:name_columns$}  {excess:>11}", "too much by")?;
    }
    writeln!(terminal.out(), "   {:name_columns$}  {:>11}  {total}\n", "", written(whole))?;
    Ok(())
}
