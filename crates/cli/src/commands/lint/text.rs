//! Findings as text: the site, the message, the source line, the advice.

use super::diff;
use crate::args::LintArgs;
use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::words::{counted, grouped, is_hidden, printable};
use lint::{Applicability, Diagnostic, RuleSeverity};
use project::{LintResults, LintedFile};
use std::io::Write;
use unicode_width::UnicodeWidthChar;

/// Columns of a tab.
const TAB_COLUMNS: usize = 4;

pub(super) fn print(looked: &LintResults, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (index, (file, found)) in looked.findings().enumerate() {
        if index > 0 {
            writeln!(terminal.out())?;
        }
        finding(file, found, terminal)?;
    }
    Ok(())
}

fn finding(file: &LintedFile, found: &Diagnostic, terminal: &mut Terminal) -> anyhow::Result<()> {
    let start = file.source.place(found.range.start);
    let place = format!("{}:{}", printable(&file.name), start.exact());
    let place = terminal.paint(Style::Bold, &place);
    let severity = terminal.paint(style(found.severity), found.severity.name());
    writeln!(terminal.out(), "{place}: {severity} {} {}", found.rule.code, found.rule.name)?;
    paragraph("   ", "   ", &printable(&found.message), None, terminal)?;
    snippet(file, found, start.line, terminal)?;
    let fix = match found.fix.as_ref().map(|fix| fix.applicability) {
        Some(Applicability::Safe) => "   (auto-fix: --fix)",
        Some(Applicability::Unsafe) => "   (auto-fix: --fix --unsafe-fixes)",
        None => "",
    };
    if !found.advice.is_empty() {
        let text = format!("fix: {}{fix}", printable(&found.advice));
        paragraph("   ", "        ", &text, Some(Style::Green), terminal)?;
    }
    Ok(())
}

pub(in crate::commands) fn style(severity: RuleSeverity) -> Style {
    match severity {
        RuleSeverity::High => Style::Red,
        RuleSeverity::Medium => Style::Yellow,
        RuleSeverity::Low => Style::Cyan,
    }
}

/// The line, and below it what the finding is about.
fn snippet(
    file: &LintedFile,
    found: &Diagnostic,
    number: usize,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let line = file.source.line_of(found.range.start);
    let column = file.source.place(found.range.start).column - 1;
    let length = file.source.text().get(found.range.start as usize..found.range.end as usize);
    let length = length.map_or(1, |text| text.split(['\r', '\n']).next().unwrap_or("").chars().count());
    let number = number.to_string();
    let room = terminal.width().saturating_sub(number.len() + "    │ ".len());
    let (code, carets) = marked(line, column, length, room);
    let (bar, gap) = (terminal.paint(Style::Dim, "│"), " ".repeat(number.len()));
    let number = terminal.paint(Style::Dim, &number);
    let carets = terminal.paint(style(found.severity), &carets);
    writeln!(terminal.out(), "   {number} {bar} {code}\n   {gap} {bar} {carets}")?;
    Ok(())
}

/// A line as shown in `room` columns, and carets below `length` of its characters from `column` on.
fn marked(line: &str, column: usize, length: usize, room: usize) -> (String, String) {
    // What each column shows; nothing behind the first of a wide character.
    let mut cells: Vec<Option<char>> = Vec::new();
    let (mut start, mut end) = (None, None);
    for (index, letter) in line.chars().enumerate() {
        if index == column {
            start = Some(cells.len());
        }
        if index == column + length {
            end = Some(cells.len());
        }
        match letter {
            '\t' => cells.resize(cells.len() / TAB_COLUMNS * TAB_COLUMNS + TAB_COLUMNS, Some(' ')),
            letter if is_hidden(letter) => cells.push(Some('?')),
            letter => {
                let width = letter.width().unwrap_or(0);
                cells.extend((0..width).map(|place| (place == 0).then_some(letter)));
            }
        }
    }
    while cells.last() == Some(&Some(' ')) {
        cells.pop();
    }
    let start = start.unwrap_or(cells.len());
    let end = end.unwrap_or(cells.len()).max(start + 1);
    let mut first = 0;
    if cells.len() > room {
        // The whole of it if it fits, and what is around it.
        let around = room.saturating_sub((end - start).min(room / 2)) / 2;
        first = start.saturating_sub(around).min(cells.len() - room.min(cells.len()));
    }
    let last = (first + room).min(cells.len());
    let is_cut = (first > 0, last < cells.len());
    let shown = cells.get(first..last).unwrap_or_default();
    let mut code: String = String::new();
    for (place, cell) in shown.iter().enumerate() {
        match cell {
            _ if place == 0 && is_cut.0 || place + 1 == shown.len() && is_cut.1 => code.push('…'),
            Some(letter) => code.push(*letter),
            // Half of a wide character is cut off.
            None if place == 1 && is_cut.0 => code.push(' '),
            None => {}
        }
    }
    let carets = end.min(first + room).saturating_sub(start).max(1);
    (code, format!("{}{}", " ".repeat(start.saturating_sub(first)), "^".repeat(carets)))
}

/// Writes the summary line to stderr.
pub(super) fn summary(looked: &LintResults, args: &LintArgs, terminal: &Terminal) {
    let (found, fixed) = (looked.findings().count(), looked.fixed());
    let mut parts = Vec::new();
    if fixed > 0 {
        parts.push(format!("{} fixed", counted(fixed as u64, "finding")));
    }
    let files = counted(looked.checked as u64, "file");
    if found == 0 {
        let nothing = if fixed > 0 { "nothing left" } else { "nothing found" };
        parts.push(format!("{nothing} in {files}"));
    } else {
        let with = looked.files.iter().filter(|file| !file.found.is_empty()).count() as u64;
        let of_each = [RuleSeverity::High, RuleSeverity::Medium, RuleSeverity::Low].into_iter();
        let of_each = of_each.map(|severity| (looked.count(severity), severity.name()));
        let of_each: Vec<String> =
            of_each.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
        let found = counted(found as u64, "finding");
        parts.push(format!("{found} ({}) in {} of {files}", of_each.join(", "), grouped(with)));
        let all = [Applicability::Safe, Applicability::Unsafe].into_iter();
        let fixable: usize =
            all.filter(|kind| *kind <= args.allowed()).map(|kind| looked.fixable(kind)).sum();
        if fixable > 0 {
            parts.push(format!("{fixable} can be fixed with --fix"));
        }
        parts.extend(diff::unsafe_fixes(looked, args, fixable + fixed > 0));
        if let Some((_, first)) = looked.findings().next() {
            parts.push(format!("run `oomph rule {}` for details", first.rule.code));
        }
    }
    if !looked.errors.is_empty() {
        parts.push(format!("{} could not be checked", counted(looked.errors.len() as u64, "file")));
    }
    terminal.say(&parts.join(" · "));
}

#[cfg(test)]
mod tests {
    use super::marked;

    #[track_caller]
    fn check(line: &str, column: usize, length: usize, room: usize, expected: [&str; 2]) {
        let (code, carets) = marked(line, column, length, room);
        assert_eq!([&*code, &*carets], expected);
    }

    #[test]
    fn carets_stand_below_what_they_mark() {
        check("    losses.append(loss)", 18, 4, 80, ["    losses.append(loss)", "                  ^^^^"]);
        check("\tlosses.append(loss)", 15, 4, 80, ["    losses.append(loss)", "                  ^^^^"]);
        check("x = f('日本', y)", 12, 1, 80, ["x = f('日本', y)", "              ^"]);
        check("a\x1b[31mb", 6, 1, 80, ["a?[31mb", "      ^"]);
    }

    #[test]
    fn a_long_line_is_cut_around_what_is_marked() {
        let line = format!("{}loss{}", "a".repeat(100), "b".repeat(100));
        check(&line, 100, 4, 20, ["…aaaaaaalossbbbbbbb…", "        ^^^^"]);
        check(&line, 0, 4, 20, ["aaaaaaaaaaaaaaaaaaa…", "^^^^"]);
        check(&line, 200, 4, 20, ["…bbbbbbbbbbbbbbbbbbb", "                ^^^^"]);
        check(&line, 4, 150, 20, ["aaaaaaaaaaaaaaaaaaa…", "    ^^^^^^^^^^^^^^^^"]);
    }

    #[test]
    fn what_goes_beyond_its_line_is_marked_to_the_end_of_it() {
        check("f(", 0, 9, 80, ["f(", "^^"]);
        check("", 0, 0, 80, ["", "^"]);
    }
}
