//! `oomph report` as text.

use super::{findings_text, host_text, ledger_text, live_text, phases_text};
use crate::args::{By, ReportArgs};
use crate::terminal::{Style, Terminal};
use crate::words::{paragraph, signed};
use analysis::words::{counted, grouped, printable, share, shortened};
use analysis::{Category, Device, DeviceLedger, Diagnosis, RunModel, RunPhases, UsageChange};
use inputs::{Input, run_remark};
use snapshot::Bytes;
use std::io::Write;

/// Columns of the memory timeline.
const TIMELINE_COLUMNS: usize = 64;

/// Prints the report of one input.
pub(crate) fn print(
    input: &Input,
    answers: &[Diagnosis<'_>],
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    if answers.is_empty() {
        let name = terminal.paint(Style::Bold, &input.name);
        writeln!(terminal.out(), "{name} · {}", input.snapshot.torch)?;
        writeln!(terminal.out(), "\n nothing was allocated and no event was recorded")?;
        return Ok(());
    }
    for (place, Diagnosis { model, findings }) in answers.iter().enumerate() {
        if place > 0 {
            writeln!(terminal.out())?;
        }
        header(input, model, terminal)?;
        findings_text::print(model, findings, terminal)?;
        what_fills(model, args, terminal)?;
        if let Some(phases) = RunPhases::new(model) {
            phases_text::print(model, &phases, terminal)?;
        }
        if !model.device.history.is_empty() && !model.device.is_pinned() {
            findings_text::nothing_else(model, findings, terminal)?;
        }
        notes(model.device, terminal)?;
    }
    if let Some(host) = &input.recording.host {
        host_text::print(host, terminal)?;
    }
    next(input, answers, args, terminal)
}

/// The peak, what it is made of, and the lines that hold it.
pub(crate) fn what_fills(
    model: &RunModel<'_>,
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    totals(model, terminal)?;
    if !model.device.is_pinned() {
        categories(model, terminal)?;
    }
    live_text::print(model, args, terminal)
}

fn header(input: &Input, model: &RunModel<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &model.device.history;
    let completeness = match (history.is_empty(), history.complete) {
        (true, _) => "no history".to_owned(),
        (false, true) => format!("{}, complete", counted(history.len() as u64, "event")),
        (false, false) => format!("{}, truncated", counted(history.len() as u64, "event")),
    };
    let steps = match model.device.steps.main_count() {
        0 => String::new(),
        count => format!(" · {} ({})", counted(count as u64, "step"), model.device.steps.source.name()),
    };
    let name = terminal.paint(Style::Bold, &input.name);
    // A recorder knows the exact release; a plain snapshot shows only which releases write such files.
    let torch = match input.run.as_ref().and_then(|run| run.torch.as_deref()) {
        Some(torch) => format!("torch {}", printable(torch)),
        None => input.snapshot.torch.to_string(),
    };
    let card = model.device.recording.gpu(history.device).map(|card| printable(&card.name));
    let card = card.filter(|card| !card.is_empty() && !model.device.is_cpu());
    let card = card.map(|card| format!(", {card}")).unwrap_or_default();
    let device = model.device.name();
    writeln!(terminal.out(), "{name} · {device}{card} · {torch} · {completeness}{steps}")?;
    if let Some(ended) = input.run.as_ref().and_then(run_remark) {
        paragraph(" ", " ", &ended, Some(Style::Yellow), terminal)?;
    }
    Ok(())
}

fn totals(model: &RunModel<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &model.device.history;
    let (peak, end) = (history.allocated_peak, history.end);
    writeln!(terminal.out())?;
    if !history.is_empty() {
        let when = match peak.position {
            0 => "before the first event".to_owned(),
            position => {
                let step =
                    model.device.steps.main_of_event(position - 1).map(|step| format!(", step {}", step + 1));
                format!("event {}{}", grouped(position as u64 - 1), step.unwrap_or_default())
            }
        };
        let label = terminal.paint(Style::Bold, "peak");
        let reserved = reserved(model, history.reserved_peak.bytes);
        writeln!(terminal.out(), " {label} {} allocated{reserved} · {when}", peak.bytes)?;
    }
    let mut rest = vec![format!("{} allocated{}", end.allocated, reserved(model, end.reserved))];
    let unused = end.reserved - end.active;
    if unused > Bytes::ZERO && !model.device.is_cpu() {
        let split = match end.inactive_split {
            Bytes::ZERO => String::new(),
            split => format!(", {split} of it inactive_split"),
        };
        rest.push(format!("{unused} cached{split}"));
    }
    if end.active > end.allocated {
        rest.push(format!("{} freed but waiting for another stream", end.active - end.allocated));
    }
    let label = terminal.paint(Style::Bold, "end");
    writeln!(terminal.out(), " {label}  {}", rest.join(" · "))?;
    if let Some(ledger) = DeviceLedger::highest(model.device.recording, history.device)
        && ledger.process.is_some()
    {
        ledger_text::print(&ledger, terminal)?;
    } else if let Some(non_pytorch) = model.device.recording.non_pytorch(history.device)
        && non_pytorch.process + non_pytorch.others > Bytes::ZERO
    {
        let others = match non_pytorch.others {
            Bytes::ZERO => String::new(),
            bytes => format!(" · {bytes} in other processes"),
        };
        let process = non_pytorch.process;
        writeln!(
            terminal.out(),
            " non-PyTorch memory  {process} in this process (CUDA context, libraries){others}"
        )?;
    }
    if history.len() > 1 {
        let columns = TIMELINE_COLUMNS.min(terminal.width().saturating_sub(" allocated ".len()));
        let timeline = terminal.paint(Style::Cyan, &timeline(&history.samples, columns));
        writeln!(terminal.out(), " allocated {timeline}")?;
    }
    Ok(())
}

/// `, 2 GiB reserved`; on the CPU nothing is reserved beyond what is allocated.
fn reserved(model: &RunModel<'_>, bytes: Bytes) -> String {
    if model.device.is_cpu() { String::new() } else { format!(", {bytes} reserved") }
}

/// The allocated bytes over the history, as a row of bars.
fn timeline(samples: &[Bytes], columns: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = samples.iter().max().map_or(1, |bytes| bytes.0.max(1));
    let columns = samples.len().min(columns);
    (0..columns)
        .map(|column| {
            let range = column * samples.len() / columns..(column + 1) * samples.len() / columns;
            let height = samples[range].iter().max().map_or(0, |bytes| bytes.0);
            BARS[(height as u128 * 7).div_ceil(u128::from(highest)) as usize]
        })
        .collect()
}

/// What the peak is made of.
fn categories(model: &RunModel<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    const BAR_COLUMNS: usize = 20;
    let peak = model.device.history.allocated_peak;
    let held = model.categories.at(&model.device.history, peak.position);
    let mut parts: Vec<(Category, Bytes)> = Category::ALL.iter().map(|&of| (of, held.get(of))).collect();
    parts.retain(|(_, bytes)| *bytes > Bytes::ZERO && bytes.0 >= peak.bytes.0 / 100);
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let Some(&(first, bytes)) = parts.first() else { return Ok(()) };
    let others: Vec<String> = parts[1..].iter().map(|(of, bytes)| format!("{} {bytes}", of.name())).collect();
    let text =
        format!("{} {bytes} {}  {}", first.name(), bar(bytes, peak.bytes, BAR_COLUMNS), others.join(" · "));
    paragraph("   ", "   ", &text, None, terminal)
}

/// A bar of up to `width` characters.
pub(crate) fn bar(part: Bytes, whole: Bytes, width: usize) -> String {
    let full = (share(part, whole) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(full.min(width)), "░".repeat(width - full.min(width)))
}

/// What one line holds now and held before.
pub(crate) fn change_line(change: &UsageChange, terminal: &mut Terminal) -> anyhow::Result<()> {
    let site = match &change.site {
        Some(site) => {
            let inside = if change.in_backward { ", backward" } else { "" };
            let moved = change.moved_from.map(|line| format!(" (was line {line})")).unwrap_or_default();
            format!("{}  {}{inside}{moved}", site.short(), shortened(&printable(&site.function), 40))
        }
        None => "(no stack)".to_owned(),
    };
    let by = terminal.paint(Style::Bold, &format!("{:>10}", signed(change.by())));
    writeln!(terminal.out(), "   {by}  {site}  {} → {}", change.before, change.after)?;
    Ok(())
}

fn notes(device: &Device<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let settings = &device.snapshot.settings;
    let text = match (settings.recorded, settings.conf.as_str()) {
        (false, _) => "not in the file (before torch 2.3)".to_owned(),
        (true, "") => "PyTorch's defaults".to_owned(),
        (true, conf) => conf.to_owned(),
    };
    if device.is_cpu() {
        writeln!(terminal.out())?;
    } else {
        writeln!(terminal.out(), "\n allocator settings: {text}")?;
    }
    for caveat in device.caveats() {
        let label = terminal.paint(Style::Yellow, "note:");
        writeln!(terminal.out(), " {label} {caveat}")?;
    }
    Ok(())
}

/// Next steps.
fn next(
    input: &Input,
    answers: &[Diagnosis<'_>],
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let has_modules = answers.iter().any(|answer| !answer.model.device.modules.is_empty());
    let other = match (args.by, args.at) {
        (By::Site, None) if has_modules => {
            "--by module for the layers · --by stack for the call stacks · --at end for what is left"
        }
        (By::Site, None) => "--by stack for the call stacks · --at end for what is left",
        (By::Site, _) => "--by stack for the call stacks · --top 30 for more",
        (By::Category | By::Stack | By::Module | By::Size, _) => {
            "--by site for the lines · --top 30 for more"
        }
    };
    // Other settings or another GPU may solve these.
    let mut findings = answers.iter().flat_map(|answer| &answer.findings);
    let can_be_replayed = findings.any(|finding| finding.kind.can_be_replayed());
    let mut commands = String::new();
    if input.is_file {
        commands.push_str(&format!("oomph view {} to see it · ", printable(&input.name)));
        if can_be_replayed {
            commands.push_str(&format!(
                "oomph simulate --search {} for other allocator settings · ",
                printable(&input.name)
            ));
        }
    }
    // An emulated GPU has no driver to trace.
    let is_emulated = input.run.as_ref().is_some_and(|run| !run.emulation.non_pytorch.is_empty());
    if !is_emulated && answers.iter().any(|answer| ledger_text::is_worth_tracing(&answer.model)) {
        commands.push_str("oomph run --trace-driver for the owners of non-PyTorch memory · ");
    }
    paragraph(" ", "   ", &format!("next: {commands}{other}"), Some(Style::Dim), terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeline_is_drawn_to_scale() {
        assert_eq!(timeline(&[Bytes(0), Bytes(1), Bytes(50), Bytes(100)], TIMELINE_COLUMNS), "▁▂▅█");
        assert_eq!(timeline(&[Bytes::ZERO], TIMELINE_COLUMNS), "▁");
        assert_eq!(timeline(&vec![Bytes(5); 1000], 30).chars().count(), 30);
    }
}
