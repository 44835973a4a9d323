//! Messages in words, with the memory that they describe as a bar.

use super::{ExplainedLog, serving_text};
use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, sentence, wrap};
use analysis::messages::{
    Explanation, MemoryPart, MemoryShare, Message, MessageCause, groups, programs, written,
};
use analysis::words::{counted, grouped, printable};
use std::io::Write;

/// Text for a log without messages.
pub(super) fn nothing(explained: &ExplainedLog) -> String {
    format!(
        "no out-of-memory message in {} ({}): looked for those of {}",
        printable(&explained.name),
        counted(explained.lines, "line"),
        programs().join(", "),
    )
}

pub(super) fn print(explained: &ExplainedLog, terminal: &mut Terminal) -> anyhow::Result<()> {
    let serving = explained.serving.as_ref();
    if explained.messages.is_empty() && serving.is_none() {
        return paragraph(" ", " ", &nothing(explained), None, terminal);
    }
    let messages = match explained.messages.len() as u64 + explained.more {
        // The engine's own words are not counted.
        0 => String::new(),
        messages => format!(" · {}", counted(messages, "message")),
    };
    let (name, lines) = (printable(&explained.name), counted(explained.lines, "line"));
    let engine = serving.map_or_else(String::new, |report| format!(" · {}", serving_text::engine(report)));
    writeln!(terminal.out(), "{name} · {lines}{messages}{engine}")?;
    if let Some(report) = serving {
        writeln!(terminal.out())?;
        serving_text::print(report, terminal)?;
    }
    for (verdict, group) in &groups(&explained.messages) {
        let is_answered = serving.is_some_and(|report| group.iter().any(|message| report.answers(message)));
        // Without PyTorch's numbers, the message has nothing to add to what was said about the engine.
        if is_answered && group[0].numbers.allocated.is_none() {
            continue;
        }
        writeln!(terminal.out())?;
        print_group(verdict, group, is_answered, terminal)?;
    }
    Ok(())
}

/// Prints messages with one explanation. `is_answered` says that what to do about them was printed already.
fn print_group(
    verdict: &Explanation,
    group: &[&Message],
    is_answered: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let first = group[0];
    let style = if verdict.cause == MessageCause::Unknown { Style::Yellow } else { Style::Red };
    let mark = if verdict.cause == MessageCause::Unknown { "?" } else { "✗" };
    let mark = terminal.paint(style, mark);
    for (place, line) in wrap(&verdict.summary, terminal.width().saturating_sub(3)).iter().enumerate() {
        let start = if place == 0 { format!(" {mark} ") } else { "   ".to_owned() };
        let line = terminal.paint(Style::Bold, line);
        writeln!(terminal.out(), "{start}{line}")?;
    }
    paragraph("   ", "   ", &where_from(group), Some(Style::Dim), terminal)?;
    if let Some(site) = &first.site {
        let place = terminal.paint(Style::Bold, &site.short());
        let code = site.code.as_ref().map(|code| {
            terminal.paint(Style::Cyan, &format!("   {}", printable(&source::shortened_line(code))))
        });
        writeln!(terminal.out(), "   {place}  {}{}", printable(&site.function), code.unwrap_or_default())?;
    }
    print_bar(&first.parts(), terminal)?;
    for detail in &verdict.details {
        paragraph("   ", "   ", &sentence(detail), None, terminal)?;
    }
    if is_answered {
        return Ok(());
    }
    paragraph("   ", "        ", &format!("fix: {}", verdict.fix), Some(Style::Green), terminal)?;
    if !verdict.unknowns.is_empty() {
        let unknowns = format!("not in the message: {}", verdict.unknowns.join(" · "));
        paragraph("   ", "     ", &unknowns, Some(Style::Dim), terminal)?;
    }
    for (place, step) in verdict.steps.iter().enumerate() {
        let label = if place == 0 { " next: " } else { "       " };
        let command = terminal.paint(Style::Bold, &step.command);
        let is_short = label.len() + step.command.len() + 3 + step.why.chars().count() <= terminal.width();
        let gap = if is_short { "   ".to_owned() } else { format!("\n{}", " ".repeat(10)) };
        writeln!(terminal.out(), "{label}{command}{gap}{}", step.why)?;
    }
    Ok(())
}

/// `line 4, printed 3 times`, `8 ranks ran out: 0–7; requests from 20.00 MiB to 2.00 GiB; …`
fn where_from(group: &[&Message]) -> String {
    let first = group[0];
    let who = first.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    let times = group.iter().map(|message| message.count).sum::<u64>();
    let place = format!("{who}line {}", grouped(first.line()));
    if let [_] = group {
        return if times > 1 { format!("{place}, printed {} times", grouped(times)) } else { place };
    }
    let mut ranks: Vec<u64> = group.iter().filter_map(|message| message.rank).map(u64::from).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let count = match ranks.len() {
        0 | 1 => format!("{} of this kind", counted(group.len() as u64, "message")),
        count => format!("{} ranks ran out: {}", count, ranges(&ranks)),
    };
    let requests = || group.iter().filter_map(|message| message.numbers.requested);
    let requests = match (requests().min(), requests().max()) {
        (Some(least), Some(most)) if least < most => {
            format!("; requests from {} to {}", written(least), written(most))
        }
        _ => String::new(),
    };
    format!("{count}{requests}; the first is shown here: {place}")
}

/// `0–3, 7`
fn ranges(sorted: &[u64]) -> String {
    let runs = sorted.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}–{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Glyph and color of a part; the glyphs differ without color.
fn look(part: MemoryPart) -> (char, Style) {
    match part {
        MemoryPart::Tensors | MemoryPart::Held => ('█', Style::Cyan),
        MemoryPart::Cached => ('▒', Style::Yellow),
        MemoryPart::PrivatePools => ('▓', Style::Yellow),
        MemoryPart::Own => ('▚', Style::Bold),
        MemoryPart::Others => ('▞', Style::Red),
        MemoryPart::Unexplained => ('░', Style::Red),
        MemoryPart::Free => ('·', Style::Green),
    }
}

/// Columns of the widest bar.
const BAR_COLUMNS: usize = 76;

fn print_bar(parts: &[MemoryShare], terminal: &mut Terminal) -> anyhow::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let width = BAR_COLUMNS.min(terminal.width().saturating_sub(4));
    let mut bar = String::new();
    for (share, cells) in parts.iter().zip(cells(parts, width)) {
        let (glyph, style) = look(share.part);
        bar += &terminal.paint(style, &glyph.to_string().repeat(cells));
    }
    writeln!(terminal.out(), "\n   {bar}")?;
    let mut line = String::new();
    let mut used = 0;
    for share in parts {
        let (glyph, style) = look(share.part);
        let text = format!("{} {}", share.part.name(), written(share.bytes));
        let length = text.chars().count() + 2;
        if used > 0 && used + 3 + length > width {
            writeln!(terminal.out(), "   {line}")?;
            (line, used) = (String::new(), 0);
        }
        if used > 0 {
            line.push_str("   ");
            used += 3;
        }
        line += &format!("{} {text}", terminal.paint(style, &glyph.to_string()));
        used += length;
    }
    Ok(writeln!(terminal.out(), "   {line}\n")?)
}

/// Cells for each part, at least one, that fill the width: what is rounded goes to the largest.
fn cells(parts: &[MemoryShare], width: usize) -> Vec<usize> {
    let whole: u64 = parts.iter().map(|share| share.bytes.0).sum();
    let cell = |bytes: u64| (bytes as f64 / whole.max(1) as f64 * width as f64).round().max(1.0) as usize;
    let mut cells: Vec<usize> = parts.iter().map(|share| cell(share.bytes.0)).collect();
    let used: usize = cells.iter().sum();
    if let Some(largest) = cells.iter_mut().max() {
        *largest = (*largest + width).saturating_sub(used).max(1);
    }
    cells
}
