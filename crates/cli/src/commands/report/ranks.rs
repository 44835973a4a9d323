//! Several inputs as the ranks of one job: one report on how they differ.

use super::findings_text::headline;
use super::text::{bar, change_line};
use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, signed};
use analysis::words::{counted, numbered, printable};
use analysis::{DeviceSummary, RankFinding, Skew, rank_findings};
use std::io::Write;

/// Lines listed as the reason for the skew.
const MAX_LINES: usize = 5;

/// Prints the report of all ranks.
pub(crate) fn print(ranks: &[DeviceSummary], terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(skew) = analysis::skew(ranks) else {
        return Ok(writeln!(terminal.out(), "nothing was allocated and no event was recorded")?);
    };
    let highest = &ranks[skew.highest];
    let noun = if skew.is_of_ranks(ranks) { "rank" } else { "file" };
    let title = terminal.paint(Style::Bold, &counted(ranks.len() as u64, noun));
    let verdict = skew.words(ranks);
    writeln!(terminal.out(), "{title} · {verdict}\n")?;
    table(ranks, &skew, noun, terminal)?;
    if let Some(text) = skew.doubt(ranks) {
        writeln!(terminal.out())?;
        paragraph("   ", "   ", text, Some(Style::Yellow), terminal)?;
    } else if skew.is_uneven(ranks) {
        reasons(&skew, terminal)?;
    }
    findings(ranks, noun, terminal)?;
    let next = format!(" next: oomph report {}", highest.name);
    let next = terminal.paint(Style::Dim, &next);
    Ok(writeln!(terminal.out(), "\n{next}")?)
}

fn table(ranks: &[DeviceSummary], skew: &Skew, noun: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
    let names: Vec<String> = ranks.iter().map(|rank| short_name(rank, ranks)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let top = ranks[skew.highest].allocated.0;
    let header = format!(
        "   {noun}  {:<width$}  {:<30}  {:>9}  {:>9}  steps",
        "", "peak allocated", "reserved", "end"
    );
    let header = terminal.paint(Style::Dim, &header);
    writeln!(terminal.out(), "{header}")?;
    for (number, rank) in ranks.iter().enumerate() {
        let mark = if number == skew.highest { "→" } else { " " };
        writeln!(
            terminal.out(),
            " {mark} {number:>4}  {:<width$}  {:<20} {:>9}  {:>9}  {:>9}  {:>5}",
            names[number],
            bar(rank.allocated.0, top, 20),
            rank.allocated.0.to_string(),
            rank.reserved.0.to_string(),
            rank.allocated.1.to_string(),
            rank.steps
        )?;
    }
    Ok(())
}

/// The end of the path that identifies the file, and the device where a file has several.
fn short_name(rank: &DeviceSummary, ranks: &[DeviceSummary]) -> String {
    let name = std::path::Path::new(&rank.name)
        .file_name()
        .map_or(rank.name.clone(), |name| name.to_string_lossy().into_owned());
    let same_file =
        ranks.iter().filter(|other| other.name == rank.name && other.device != rank.device).count();
    let same_name =
        ranks.iter().filter(|other| other.name != rank.name && other.name.ends_with(&name)).count();
    let name = if same_name > 0 { rank.name.clone() } else { name };
    let name = printable(&name).into_owned();
    if same_file > 0 { format!("{name} {}", rank.device_name) } else { name }
}

/// What the highest rank holds that the middle one does not.
fn reasons(skew: &Skew, terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = format!(" why rank {}: what it holds at its peak against rank {}", skew.highest, skew.middle);
    let title = terminal.paint(Style::Bold, &title);
    writeln!(terminal.out(), "\n{title}")?;
    for change in skew.changes.iter().take(MAX_LINES) {
        change_line(change, terminal)?;
    }
    let categories: Vec<String> = skew
        .categories
        .iter()
        .take(4)
        .map(|(category, bytes)| format!("{} {}", category.name(), signed(*bytes)))
        .collect();
    paragraph("   ", "   ", &format!("by category: {}", categories.join(", ")), Some(Style::Dim), terminal)
}

/// Findings of all ranks, each once, with the ranks that have it.
fn findings(ranks: &[DeviceSummary], noun: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
    let merged = rank_findings(ranks);
    let preposition = if noun == "rank" { "on" } else { "in" };
    if merged.is_empty() {
        return Ok(writeln!(terminal.out(), "\n ✓ nothing stands out {preposition} any {noun}")?);
    }
    writeln!(terminal.out())?;
    for RankFinding { finding: remark, ranks: having } in merged {
        headline(remark.kind, remark.severity, &remark.summary, terminal)?;
        let site =
            remark.site.as_ref().map(|site| format!("{}  {} · ", site.short(), printable(&site.function)));
        let having =
            if having.len() == ranks.len() { format!("every {noun}") } else { numbered(noun, &having) };
        writeln!(terminal.out(), "   {}{preposition} {having}", site.unwrap_or_default())?;
        paragraph("   ", "        ", &format!("fix: {}", remark.fix), Some(Style::Green), terminal)?;
    }
    Ok(())
}
