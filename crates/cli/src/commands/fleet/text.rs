//! `oomph fleet` as text: at most one screen, whatever the number of ranks.

use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, signed, wrap};
use analysis::SiteName;
use analysis::words::{counted, grouped, percent, printable, shortened};
use fleet::{
    Deviation, DeviationMetric, Difference, DimensionAnswer, DimensionValue, FleetAnswer, FleetFinding,
    RankLabel,
};
use snapshot::Bytes;
use std::io::Write;

/// Indentation of the lines after the first of a paragraph.
const INDENT: &str = "   ";
/// Rows of a section.
const MAX_ROWS: usize = 6;
/// Rows of a dimension that was asked for.
const MAX_ASKED_ROWS: usize = 24;
/// Share of a peak below which two values of a dimension are one row.
const EQUAL_PEAKS: f64 = 0.005;
/// Most characters of a name.
const MAX_NAME: usize = 40;

/// Prints the answer. `asked` is whether a dimension was asked for.
pub(crate) fn print(
    answer: &FleetAnswer,
    asked: bool,
    inputs: &[String],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    header(answer, terminal)?;
    failure(answer, terminal)?;
    peaks(answer, terminal)?;
    for dimension in &answer.dimensions {
        table(dimension, if asked { MAX_ASKED_ROWS } else { MAX_ROWS }, terminal)?;
    }
    deviations(answer, terminal)?;
    findings(answer, terminal)?;
    differing(answer, terminal)?;
    unread(answer, terminal)?;
    next(answer, inputs, terminal)
}

fn header(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = terminal.paint(Style::Bold, &counted(answer.expected as u64, "rank"));
    let mut parts = Vec::new();
    if answer.nodes > 0 {
        parts.push(counted(answer.nodes as u64, "node"));
    }
    match &answer.jobs[..] {
        [] => {}
        [job] => parts.push(format!("job {}", shortened(&printable(job), MAX_NAME))),
        jobs => parts.push(counted(jobs.len() as u64, "job")),
    }
    let (broken, missing) = (answer.broken.len() as u64, answer.missing.len() as u64);
    if broken + missing > 0 {
        parts.push(format!("{} read", grouped(answer.read as u64)));
    }
    if broken > 0 {
        parts.push(format!("{} cannot be read", grouped(broken)));
    }
    if missing > 0 {
        parts.push(format!("{} missing", grouped(missing)));
    }
    let parts: String = parts.iter().map(|part| format!(" · {part}")).collect();
    Ok(writeln!(terminal.out(), "{title}{parts}")?)
}

fn failure(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(failure) = &answer.failure else { return Ok(()) };
    let node = failure.node.as_ref().map(|node| format!(" on {}", name(node))).unwrap_or_default();
    let site = failure.site.as_ref().map(|site| format!(" at {}", site.short())).unwrap_or_default();
    let requested = failure.requested.map(|bytes| format!(": {} did not fit", Bytes(bytes)));
    let first = format!("{}{node} first{site}{}", rank(&failure.first), requested.unwrap_or_default());
    writeln!(terminal.out())?;
    labeled(Style::Red, "✗ OUT OF MEMORY", &format!("  {first}"), terminal)?;
    if let Some(difference) = failure.difference.as_ref().filter(|of| of.bytes > 0) {
        let cause = cause(difference).map(|cause| format!(": {cause}")).unwrap_or_default();
        let text = format!("It held {} more than ranks at its coordinates{cause}.", amount(difference.bytes));
        paragraph("   ", "   ", &text, None, terminal)?;
    }
    let endings: Vec<String> = failure
        .endings
        .iter()
        .map(|ending| {
            let word = match ending.ended.as_str() {
                "out_of_memory" => "ran out of memory",
                "unknown" => "ended in a way that is not recorded",
                "running" => "exited without reporting (killed or crashed)",
                word => word,
            };
            format!("{} {word}", grouped(ending.ranks as u64))
        })
        .collect();
    let in_order: Vec<u32> = failure.ranks.iter().filter_map(|label| label.rank).collect();
    let others = match failure.ranks.len() {
        1 => String::new(),
        _ => format!("In order of time: ranks {}. ", numbers(&in_order)),
    };
    paragraph("   ", "   ", &format!("{others}Of all ranks, {}.", endings.join(", ")), None, terminal)
}

fn peaks(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    let of = &answer.allocated;
    let label = terminal.paint(Style::Bold, "peak");
    let (low, high) = (Bytes(of.lowest), Bytes(of.highest));
    let highest = of.highest_rank.as_ref().map(|label| format!(" · highest on {}", rank(label)));
    let range = if answer.read == 1 {
        format!("{high} allocated")
    } else if low.to_string() == high.to_string() {
        format!("{high} allocated on every rank")
    } else {
        let median = Bytes(of.median);
        format!("{low} to {high} allocated, median {median}{}", highest.unwrap_or_default())
    };
    writeln!(terminal.out(), "\n {label} {range}")?;
    let agree = if answer.spread < 0.0005 {
        "to the byte, or nearly".to_owned()
    } else {
        format!("to {:.1}%", answer.spread * 100.0)
    };
    let names: Vec<String> = answer.dimensions.iter().map(|dimension| name(&dimension.name)).collect();
    let text = match names.is_empty() {
        true if answer.deviations.is_empty() && answer.read > 1 => format!("ranks agree {agree}"),
        true => return Ok(()),
        false => format!("at the same {}, ranks agree {agree}", names.join(" and ")),
    };
    Ok(writeln!(terminal.out(), "      {text}")?)
}

/// Values of a dimension, one row each; neighbors with equal peaks share one.
fn table(dimension: &DimensionAnswer, rows: usize, terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = terminal.paint(Style::Bold, &format!("by {}", name(&dimension.name)));
    writeln!(terminal.out(), "\n {title}  explains {} of the differences", percent(dimension.explained))?;
    let mut merged: Vec<(&DimensionValue, &DimensionValue, usize)> = Vec::new();
    for value in &dimension.values {
        match merged.last_mut() {
            Some((first, last, ranks)) if is_equal(first.peak, value.peak) => {
                (*last, *ranks) = (value, *ranks + value.ranks);
            }
            _ => merged.push((value, value, value.ranks)),
        }
    }
    // The rows that differ most are worth the screen.
    let mut order: Vec<usize> = (0..merged.len()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(merged[row].0.difference.bytes.unsigned_abs()));
    let mut shown: Vec<usize> = order.into_iter().take(rows).collect();
    shown.sort_unstable();
    let label = |(first, last, _): &(&DimensionValue, &DimensionValue, usize)| match first.value == last.value
    {
        true => name(&first.value),
        false => format!("{} to {}", name(&first.value), name(&last.value)),
    };
    let width = shown.iter().map(|&row| label(&merged[row]).chars().count()).max().unwrap_or(0);
    let of = dimension.values.len();
    for &row in &shown {
        let (first, _, ranks) = &merged[row];
        let count = counted(*ranks as u64, "rank");
        let line = format!(
            "   {:<width$} of {of}  {count:>11}  {:>9}",
            label(&merged[row]),
            Bytes(first.peak).to_string()
        );
        let difference = &first.difference;
        let is_normal = is_equal(first.peak, first.peak.saturating_add_signed(-difference.bytes));
        let more = match cause(difference) {
            _ if is_normal => String::new(),
            Some(cause) => format!("  {:>10}  {cause}", signed(difference.bytes)),
            None => format!("  {:>10}", signed(difference.bytes)),
        };
        writeln!(terminal.out(), "{line}{more}")?;
    }
    more(merged.len(), shown.len(), "value", terminal)
}

fn is_equal(a: u64, b: u64) -> bool {
    a.abs_diff(b) as f64 <= a.max(b) as f64 * EQUAL_PEAKS
}

fn deviations(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    if answer.deviations.is_empty() {
        return Ok(());
    }
    let title = terminal.paint(Style::Bold, "out of line with ranks at the same coordinates");
    writeln!(terminal.out(), "\n {title}")?;
    let groups = alike(&answer.deviations);
    for group in groups.iter().take(MAX_ROWS) {
        let Deviation { node, metric, value, difference, .. } = group[0];
        let ranks: Vec<RankLabel> = group.iter().flat_map(|one| one.ranks.clone()).collect();
        let who = match (node, &ranks[..]) {
            (Some(node), _) if group.len() == 1 => format!("{} ({})", name(node), list(&ranks, ranks.len())),
            (_, [one]) => rank(one),
            _ => list(&ranks, ranks.len()),
        };
        let what = match metric {
            DeviationMetric::Allocated => "",
            DeviationMetric::Reserved => " reserved",
            DeviationMetric::NonPytorch => " non-PyTorch memory",
        };
        let up_to = if group.len() > 1 { "up to " } else { "" };
        let cause = cause(difference).map(|cause| format!(" · {cause}")).unwrap_or_default();
        let text = match up_to {
            "" => format!("{who}  {}{what}, {}{cause}", Bytes(*value), signed(difference.bytes)),
            _ => format!("{who}  {up_to}{}{what}{cause}", signed(difference.bytes)),
        };
        paragraph("   ", "     ", &text, None, terminal)?;
        if let Some(reason) = group.iter().find_map(|one| one.unread.as_deref()) {
            let text = format!("not compared line by line: {reason}");
            paragraph("     ", "     ", &text, None, terminal)?;
        }
    }
    more(groups.len(), MAX_ROWS, "deviation", terminal)
}

/// Deviations for the same reason together: the line that makes the difference. Nodes stay by themselves.
fn alike(deviations: &[Deviation]) -> Vec<Vec<&Deviation>> {
    let reason = |of: &Deviation| {
        (of.metric, of.difference.bytes > 0, of.difference.site.as_ref().map(|(site, _)| site.clone()))
    };
    let mut groups: Vec<Vec<&Deviation>> = Vec::new();
    for one in deviations {
        let same = groups
            .iter_mut()
            .find(|group| one.node.is_none() && group[0].node.is_none() && reason(group[0]) == reason(one));
        match same {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

fn findings(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    // Failed allocations have been explained above; what is only worth knowing is in the ranks' own reports.
    let is_shown = |finding: &&FleetFinding| finding.severity != "low" && finding.kind != "oom";
    let shown: Vec<&FleetFinding> = answer.findings.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return Ok(());
    }
    writeln!(terminal.out())?;
    for finding in shown.iter().take(MAX_ROWS) {
        let style = if finding.severity == "high" { Style::Red } else { Style::Yellow };
        let kind = finding.kind.replace('_', " ").to_uppercase();
        let site = finding.site.as_ref().map(|site| format!("{}: ", site_words(site))).unwrap_or_default();
        let count = finding.ranks.len();
        let on = if answer.read == 1 {
            "on this rank".to_owned()
        } else if count == answer.read {
            format!("on all {} ranks", grouped(count as u64))
        } else {
            format!(
                "on {} of {} ranks: {}",
                grouped(count as u64),
                grouped(answer.read as u64),
                list(&finding.ranks, count)
            )
        };
        labeled(style, &format!("✗ {kind}"), &format!("  {site}{} · {on}", finding.summary), terminal)?;
    }
    more(shown.len(), MAX_ROWS, "finding", terminal)
}

fn differing(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    if !answer.variants.is_empty() || !answer.other_processes.is_empty() {
        writeln!(terminal.out())?;
    }
    for variant in answer.variants.iter().take(MAX_ROWS) {
        let values: Vec<String> = variant
            .values
            .iter()
            .take(3)
            .enumerate()
            .map(|(place, of)| {
                let value = if of.value.is_empty() { "defaults".to_owned() } else { name(&of.value) };
                let on = if place == 0 {
                    counted(of.ranks.len() as u64, "rank")
                } else {
                    list(&of.ranks, of.ranks.len())
                };
                format!("{value} on {on}")
            })
            .collect();
        let more = if variant.values.len() > 3 {
            format!(" · {} more", variant.values.len() - 3)
        } else {
            String::new()
        };
        let text = format!(" {} {}{more}", variant.name, values.join(" · "));
        labeled(Style::Yellow, "different settings:", &text, terminal)?;
    }
    for of in answer.other_processes.iter().take(MAX_ROWS) {
        let node = of.node.as_ref().map(|node| format!(" of {}", name(node))).unwrap_or_default();
        let seen = list(&of.ranks, of.ranks.len());
        let text = format!(" hold up to {} on GPUs{node}: {seen}", Bytes(of.bytes));
        labeled(Style::Yellow, "other processes", &text, terminal)?;
    }
    more(answer.other_processes.len(), MAX_ROWS, "node", terminal)
}

fn unread(answer: &FleetAnswer, terminal: &mut Terminal) -> anyhow::Result<()> {
    if !answer.broken.is_empty() {
        let title = terminal.paint(Style::Bold, "cannot be read");
        writeln!(terminal.out(), "\n {title}")?;
    }
    for broken in answer.broken.iter().take(MAX_ROWS) {
        let file = broken.label.source.rsplit('/').next().unwrap_or_default();
        paragraph("   ", "     ", &format!("{} {}", printable(file), broken.reason), None, terminal)?;
    }
    if answer.broken.len() > MAX_ROWS {
        let rest: Vec<RankLabel> =
            answer.broken[MAX_ROWS..].iter().map(|broken| broken.label.clone()).collect();
        paragraph("   ", "     ", &format!("and {}", list(&rest, rest.len())), None, terminal)?;
    }
    if !answer.missing.is_empty() {
        let label = terminal.paint(Style::Bold, "missing:");
        writeln!(terminal.out(), "\n {label} {}", numbers(&answer.missing))?;
    }
    Ok(())
}

fn next(answer: &FleetAnswer, inputs: &[String], terminal: &mut Terminal) -> anyhow::Result<()> {
    let input = inputs.first().map(|input| fleet::without_credentials(input)).unwrap_or_default();
    let first = answer.failure.as_ref().map(|failure| &failure.first);
    let first = first.or(answer.deviations.first().map(|deviation| &deviation.ranks[0]));
    let rank = first.or(answer.allocated.highest_rank.as_ref()).and_then(|label| label.rank);
    let rank =
        rank.map(|rank| format!("oomph fleet --rank {rank} {input} for one rank · ")).unwrap_or_default();
    let by = match &answer.axes[..] {
        [] => String::new(),
        axes => format!("--by {} · ", axes.join("|")),
    };
    writeln!(terminal.out())?;
    paragraph(" ", "   ", &format!("next: {rank}{by}--json for all of it"), Some(Style::Dim), terminal)
}

/// A paragraph that begins with a label.
fn labeled(style: Style, label: &str, text: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
    let width = terminal.width().saturating_sub(INDENT.len());
    for (place, line) in wrap(&format!("{label}{text}"), width).iter().enumerate() {
        let line = match line.strip_prefix(label) {
            Some(rest) if place == 0 => format!("{}{rest}", terminal.paint(style, label)),
            _ => line.clone(),
        };
        let indent = if place == 0 { " " } else { INDENT };
        writeln!(terminal.out(), "{indent}{line}")?;
    }
    Ok(())
}

fn more(all: usize, shown: usize, noun: &str, terminal: &mut Terminal) -> anyhow::Result<()> {
    if all > shown {
        let rest = (all - shown) as u64;
        let noun = if rest == 1 { noun.to_owned() } else { format!("{noun}s") };
        writeln!(terminal.out(), "   and {} more {noun}", grouped(rest))?;
    }
    Ok(())
}

/// `lm_head · train.py:44 forward (activation)`
fn cause(difference: &Difference) -> Option<String> {
    let module = difference.module.as_ref().map(|(module, _)| format!("`{}`", name(module)));
    let backward = if difference.in_backward { ", backward" } else { "" };
    let site = difference.site.as_ref().map(|(site, _)| format!("{}{backward}", site_words(site)));
    let parts: Vec<String> = module.into_iter().chain(site).collect();
    let category = difference.category.as_ref().map(|(category, _)| category.as_str());
    match (parts.is_empty(), category) {
        (true, category) => category.map(str::to_owned),
        (false, Some(category)) => Some(format!("{} ({category})", parts.join(" · "))),
        (false, None) => Some(parts.join(" · ")),
    }
}

fn site_words(site: &SiteName) -> String {
    format!("{} {}", site.short(), name(&site.function))
}

fn name(text: &str) -> String {
    shortened(&printable(text), MAX_NAME)
}

fn amount(bytes: i64) -> Bytes {
    Bytes(bytes.unsigned_abs())
}

fn rank(label: &RankLabel) -> String {
    let job = label.job.as_ref().map(|job| format!("job {} ", name(job))).unwrap_or_default();
    match label.rank {
        Some(rank) => format!("{job}rank {rank}"),
        None => name(label.source.rsplit('/').next().unwrap_or_default()),
    }
}

/// `rank 3`, `ranks 0 to 7, 9`; of many, the first.
fn list(labels: &[RankLabel], count: usize) -> String {
    let mut known: Vec<u32> = labels.iter().filter_map(|label| label.rank).collect();
    if count == labels.len() {
        known.sort_unstable();
    }
    if known.len() < labels.len() || labels.iter().any(|label| label.job.is_some()) {
        return counted(count as u64, "rank");
    }
    let noun = if count == 1 { "rank" } else { "ranks" };
    let rest = if count > labels.len() {
        format!(" and {} more", grouped((count - labels.len()) as u64))
    } else {
        String::new()
    };
    format!("{noun} {}{rest}", numbers(&known))
}

/// Intervals of a list.
const MAX_INTERVALS: usize = 6;

/// `0 to 7, 9`
pub(super) fn numbers(numbers: &[u32]) -> String {
    let mut intervals: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match intervals.last_mut() {
            Some(interval) if interval.1.checked_add(1) == Some(number) => interval.1 = number,
            _ => intervals.push((number, number)),
        }
    }
    let shown: Vec<String> = intervals
        .iter()
        .take(MAX_INTERVALS)
        .map(|&(first, last)| if first == last { first.to_string() } else { format!("{first} to {last}") })
        .collect();
    let rest: u32 = intervals.iter().skip(MAX_INTERVALS).map(|(first, last)| last - first + 1).sum();
    let rest = if rest > 0 { format!(" and {} more", grouped(u64::from(rest))) } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn neighbors_are_one_interval() {
        assert_eq!(numbers(&[0, 1, 2, 5, 7, 8]), "0 to 2, 5, 7 to 8");
        let odd: Vec<u32> = (0..10).map(|number| number * 2).collect();
        assert_eq!(numbers(&odd), "0, 2, 4, 6, 8, 10 and 4 more");
    }
}
