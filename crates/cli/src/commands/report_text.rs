//! The first screen of `oomph report`, for people.

use super::findings_text;
use super::ranks::signed;
use super::report::Answer;
use crate::args::{By, ReportArgs};
use crate::inputs::Input;
use crate::recording::Run;
use crate::terminal::{Style, Terminal};
use analysis::words::{counted, grouped, percent, place, printable, share};
use analysis::{Category, Change, Device, Group, Kind, Live, Moment, Origin, Outline, Rest, Site};
use snapshot::{Bytes, FrameId, Snapshot};
use std::io::Write;

/// Columns of the picture of the course.
const COURSE: usize = 64;

/// Prints the report of one input.
pub(super) fn print(
    input: &Input,
    answers: &[Answer<'_>],
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    if answers.is_empty() {
        let name = terminal.paint(Style::Bold, &input.name);
        writeln!(terminal.out(), "{name} · {}", input.snapshot.torch)?;
        writeln!(terminal.out(), "\n nothing was allocated and no event was recorded")?;
        return Ok(());
    }
    for (place, Answer { outline, findings }) in answers.iter().enumerate() {
        if place > 0 {
            writeln!(terminal.out())?;
        }
        header(input, outline, terminal)?;
        findings_text::print(outline, findings, terminal)?;
        what_fills(outline, args, terminal)?;
        if !outline.device.history.is_empty() {
            findings_text::nothing_else(outline, findings, terminal)?;
        }
        notes(outline.device, terminal)?;
    }
    next(input, answers, args, terminal)
}

/// The peak, what it is made of, and the lines that hold it.
pub(super) fn what_fills(
    outline: &Outline<'_>,
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    totals(outline, terminal)?;
    categories(outline, terminal)?;
    live(outline, args, terminal)
}

fn header(input: &Input, outline: &Outline<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &outline.device.history;
    let completeness = match (history.is_empty(), history.complete) {
        (true, _) => "no history".to_owned(),
        (false, true) => format!("{}, complete", counted(history.len() as u64, "event")),
        (false, false) => format!("{}, truncated", counted(history.len() as u64, "event")),
    };
    let steps = match outline.device.steps.count() {
        0 => String::new(),
        count => format!(" · {} ({})", counted(count as u64, "step"), outline.device.steps.source.name()),
    };
    let name = terminal.paint(Style::Bold, &input.name);
    // What a recorder was told is exact; a plain snapshot only shows which releases write such files.
    let torch = match input.run.as_ref().and_then(|run| run.torch.as_deref()) {
        Some(torch) => format!("torch {}", printable(torch)),
        None => input.snapshot.torch.to_string(),
    };
    let card = outline.device.recording.card(history.device).map(|card| printable(&card.name));
    let card = card.filter(|card| !card.is_empty() && !outline.device.is_cpu());
    let card = card.map(|card| format!(", {card}")).unwrap_or_default();
    let device = outline.device.name();
    writeln!(terminal.out(), "{name} · {device}{card} · {torch} · {completeness}{steps}")?;
    if let Some(ended) = input.run.as_ref().and_then(Run::remark) {
        findings_text::paragraph(" ", " ", &ended, Some(Style::Yellow), terminal)?;
    }
    Ok(())
}

fn totals(outline: &Outline<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &outline.device.history;
    let (peak, end) = (history.allocated_peak, history.end);
    writeln!(terminal.out())?;
    if !history.is_empty() {
        let when = match peak.position {
            0 => "before the first event".to_owned(),
            position => {
                let step =
                    outline.device.steps.of_event(position - 1).map(|step| format!(", step {}", step + 1));
                format!("event {}{}", grouped(position as u64 - 1), step.unwrap_or_default())
            }
        };
        let label = terminal.paint(Style::Bold, "peak");
        let reserved = reserved(outline, history.reserved_peak.bytes);
        writeln!(terminal.out(), " {label} {} allocated{reserved} · {when}", peak.bytes)?;
    }
    let mut rest = vec![format!("{} allocated{}", end.allocated, reserved(outline, end.reserved))];
    let unused = end.reserved - end.active;
    if unused > Bytes::ZERO && !outline.device.is_cpu() {
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
    if let Some(outside) = outline.device.recording.outside(history.device)
        && outside.process + outside.others > Bytes::ZERO
    {
        let others = match outside.others {
            Bytes::ZERO => String::new(),
            bytes => format!(" · {bytes} of other processes"),
        };
        let process = outside.process;
        writeln!(
            terminal.out(),
            " outside PyTorch  {process} of this process (CUDA context, libraries){others}"
        )?;
    }
    if history.len() > 1 {
        let columns = COURSE.min(terminal.width().saturating_sub(" allocated ".len()));
        let course = terminal.paint(Style::Cyan, &course(&history.samples, columns));
        writeln!(terminal.out(), " allocated {course}")?;
    }
    Ok(())
}

/// `, 2 GiB reserved`; on the CPU nothing is reserved beyond what is allocated.
fn reserved(outline: &Outline<'_>, bytes: Bytes) -> String {
    if outline.device.is_cpu() { String::new() } else { format!(", {bytes} reserved") }
}

/// The allocated bytes over the history, as a row of bars.
fn course(samples: &[Bytes], columns: usize) -> String {
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
fn categories(outline: &Outline<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    const WIDTH: usize = 20;
    let peak = outline.device.history.allocated_peak;
    let held = outline.categories.at(&outline.device.history, peak.position);
    let mut parts: Vec<(Category, Bytes)> = Category::ALL.iter().map(|&of| (of, held.get(of))).collect();
    parts.retain(|(_, bytes)| *bytes > Bytes::ZERO && bytes.0 >= peak.bytes.0 / 100);
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let Some(&(first, bytes)) = parts.first() else { return Ok(()) };
    let others: Vec<String> = parts[1..].iter().map(|(of, bytes)| format!("{} {bytes}", of.name())).collect();
    let text = format!("{} {bytes} {}  {}", first.name(), bar(bytes, peak.bytes, WIDTH), others.join(" · "));
    findings_text::paragraph("   ", "   ", &text, None, terminal)
}

/// A bar of up to `width` characters.
pub(super) fn bar(part: Bytes, whole: Bytes, width: usize) -> String {
    let full = (share(part, whole) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(full.min(width)), "░".repeat(width - full.min(width)))
}

/// What one line holds now and held before.
pub(super) fn change_line(change: &Change, terminal: &mut Terminal) -> anyhow::Result<()> {
    let place = match &change.place {
        Some(place) => {
            let inside = if change.in_backward { ", inside backward()" } else { "" };
            let moved = change.moved_from.map(|line| format!(" (was line {line})")).unwrap_or_default();
            format!("{}  {}{inside}{moved}", place.short(), shortened(&printable(&place.function), 40))
        }
        None => "(no stack)".to_owned(),
    };
    let by = terminal.paint(Style::Bold, &format!("{:>10}", signed(change.by())));
    writeln!(terminal.out(), "   {by}  {place}  {} → {}", change.before, change.after)?;
    Ok(())
}

fn live(outline: &Outline<'_>, args: &ReportArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let device = outline.device;
    let at = args.moment(device);
    let Some(position) = device.position_of(at) else { return Ok(()) };
    let live = outline.live_at(position, args.key());
    let moment = match at {
        Moment::Peak if !device.history.is_empty() => "at the peak".to_owned(),
        Moment::Peak | Moment::End => "at the end".to_owned(),
        Moment::Oom => "at the last OOM".to_owned(),
        Moment::Event(event) => format!("after event {}", grouped(event as u64)),
    };
    let (key, plural) = match args.by {
        By::Site => ("line", "lines"),
        By::Category => ("use", "uses"),
        By::Stack => ("call stack", "call stacks"),
        By::Module => ("module", "modules"),
        By::Size => ("block size", "block sizes"),
    };
    let title = terminal.paint(Style::Bold, &format!("live {moment}, by {key}"));
    writeln!(terminal.out(), "\n {title}  {} in {}", live.bytes, counted(live.count, "block"))?;
    let (shown, rest) = live.top(args.top);
    match args.by {
        By::Stack => stacks(device, shown, &live, terminal)?,
        By::Site | By::Category | By::Module | By::Size => table(device, shown, &live, terminal)?,
    }
    if rest.groups > 0 {
        let Rest { groups, bytes, count } = rest;
        let text = format!(
            "     and {} more {}: {bytes} in {}",
            grouped(groups),
            if groups == 1 { key } else { plural },
            counted(count, "block")
        );
        let text = terminal.paint(Style::Dim, &text);
        writeln!(terminal.out(), "{text}")?;
    }
    let note = match args.by {
        By::Module if device.modules.is_empty() => {
            "no recorder noted the modules: record with `oomph run`, with torch 2.10 or later"
        }
        By::Module if live.by_layer => {
            "modules inside a numbered layer count with it; a larger --top tells them apart"
        }
        _ => return Ok(()),
    };
    findings_text::paragraph("     ", "     ", note, Some(Style::Dim), terminal)
}

fn table(device: &Device<'_>, groups: &[Group], live: &Live, terminal: &mut Terminal) -> anyhow::Result<()> {
    // The columns beside the two that have names.
    const NUMBERS: usize = 40;
    let named = |parts: usize| -> Vec<(String, String)> {
        groups.iter().map(|group| name(device, group, parts)).collect()
    };
    let widths = |names: &[(String, String)]| {
        let width = |column: fn(&(String, String)) -> &String| {
            names.iter().map(|names| column(names).chars().count()).max().unwrap_or(0)
        };
        (width(|names| &names.0), width(|names| &names.1))
    };
    let fits = |names: &Vec<(String, String)>| {
        let (first, second) = widths(names);
        first + second + NUMBERS <= terminal.width()
    };
    // What a module holds is said as far as it fits the line.
    let names = (1..=SPLIT).rev().map(named).find(fits).unwrap_or_else(|| named(1));
    let (first, second) = widths(&names);
    for (place, (group, (line, function))) in groups.iter().zip(&names).enumerate() {
        let line = terminal.paint(Style::Bold, &format!("{line:<first$}"));
        writeln!(
            terminal.out(),
            " {:>3}  {line}  {function:<second$}  {:>8}  {:>5}  {:>12}",
            place + 1,
            group.bytes.to_string(),
            percent(share(group.bytes, live.bytes)),
            counted(group.count, "block")
        )?;
    }
    Ok(())
}

fn stacks(device: &Device<'_>, groups: &[Group], live: &Live, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (place, group) in groups.iter().enumerate() {
        let bytes = terminal.paint(Style::Bold, &group.bytes.to_string());
        let share = percent(share(group.bytes, live.bytes));
        writeln!(terminal.out(), " {:>3}  {bytes}  {share}  {}", place + 1, counted(group.count, "block"))?;
        let Origin::Stack(stack) = group.origin else { continue };
        let frames = device.snapshot.stacks.frames(stack);
        if frames.is_empty() {
            writeln!(terminal.out(), "        {}", without_stack(group))?;
        }
        for &frame in frames {
            let style = if device.sites.is_user(frame) { Style::Bold } else { Style::Dim };
            let line = terminal.paint(style, &frame_line(device.snapshot, frame));
            writeln!(terminal.out(), "        {line}")?;
        }
    }
    Ok(())
}

/// A frame on one line; the path of an installed package begins at the package.
fn frame_line(snapshot: &Snapshot, frame: FrameId) -> String {
    let frame = snapshot.stacks.frame(frame);
    let (file, function) =
        (snapshot.strings.get(frame.file), printable(snapshot.strings.get(frame.function)));
    let file = &*printable(file);
    let file = ["/site-packages/", "/dist-packages/"]
        .iter()
        .find_map(|folder| file.rsplit_once(folder).map(|(_, package)| package))
        .unwrap_or(file);
    if frame.line == 0 { format!("{function}  {file}") } else { format!("{file}:{}  {function}", frame.line) }
}

/// What to call a group: a place and a function.
fn name(device: &Device<'_>, group: &Group, parts: usize) -> (String, String) {
    let snapshot = device.snapshot;
    let module =
        group.module.map(|module| format!(" · {}", shortened(&printable(device.modules.path(module)), 40)));
    let module = module.unwrap_or_default();
    match group.origin {
        Origin::Site(Site::User(frame)) => {
            (place(snapshot, frame), format!("{}{module}", function(snapshot, frame)))
        }
        Origin::Site(Site::Library(frame)) => {
            (place(snapshot, frame), format!("{} (library)", function(snapshot, frame)))
        }
        Origin::Site(Site::Backward(frame)) => {
            (place(snapshot, frame), format!("{}, inside backward(){module}", function(snapshot, frame)))
        }
        Origin::Site(Site::BackwardOf(frame)) => {
            (place(snapshot, frame), format!("{}, its backward pass{module}", function(snapshot, frame)))
        }
        Origin::Module(Some(module)) => {
            (printable(device.modules.path(module)).into_owned(), split(group, parts))
        }
        Origin::Module(None) => ("outside of modules".to_owned(), split(group, parts)),
        Origin::Category(category) => (category.name().to_owned(), String::new()),
        Origin::Site(Site::Native) => ("(C++ only)".to_owned(), String::new()),
        Origin::Site(Site::Unknown | Site::Before) | Origin::Stack(_) => {
            (without_stack(group), String::new())
        }
        Origin::Size(size) => (format!("{size} blocks"), format!("{} bytes each", grouped(size.0))),
    }
}

/// Uses of a module's memory that are told apart.
const SPLIT: usize = 4;

/// What a group is for, the largest parts.
fn split(group: &Group, most: usize) -> String {
    let mut parts: Vec<(Category, Bytes)> = Category::ALL
        .iter()
        .map(|&of| (of, group.categories.get(of)))
        .filter(|(_, bytes)| bytes.0 > 0)
        .collect();
    parts.sort_by_key(|&(of, bytes)| (std::cmp::Reverse(bytes), of));
    let parts: Vec<String> =
        parts.iter().take(most).map(|(of, bytes)| format!("{} {bytes}", of.name())).collect();
    parts.join(", ")
}

fn without_stack(group: &Group) -> String {
    if group.from_before == group.count {
        "(from before the history begins)".to_owned()
    } else {
        "(no stack: backward() or C++)".to_owned()
    }
}

fn function(snapshot: &Snapshot, frame: FrameId) -> String {
    shortened(&printable(snapshot.strings.get(snapshot.stacks.frame(frame).function)), 40)
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most - 1).collect();
    format!("{start}…")
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
    let caveats: Vec<&String> = device.history.caveats.iter().chain(&device.snapshot.caveats).collect();
    for caveat in caveats {
        let label = terminal.paint(Style::Yellow, "note:");
        writeln!(terminal.out(), " {label} {caveat}")?;
    }
    Ok(())
}

/// Where to go on from here.
fn next(
    input: &Input,
    answers: &[Answer<'_>],
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let has_modules = answers.iter().any(|answer| !answer.outline.device.modules.is_empty());
    let other = match (args.by, args.at) {
        (By::Site, None) if has_modules => {
            "--by module for the layers · --by stack for the call stacks · --at end for what is left · --json for every number"
        }
        (By::Site, None) => {
            "--by stack for the call stacks · --at end for what is left · --json for every number"
        }
        (By::Site, _) => "--by stack for the call stacks · --top 30 for more",
        (By::Category | By::Stack | By::Module | By::Size, _) => {
            "--by site for the lines · --top 30 for more"
        }
    };
    // Settings or another card may be the way out of these.
    let mut findings = answers.iter().flat_map(|answer| &answer.findings);
    let can_be_replayed =
        findings.any(|finding| matches!(finding.kind, Kind::Fragmentation | Kind::Oom | Kind::Churn));
    let replay = match can_be_replayed {
        true => format!("oomph simulate --search {} for other allocator settings · ", input.name),
        false => String::new(),
    };
    findings_text::paragraph(" ", "   ", &format!("next: {replay}{other}"), Some(Style::Dim), terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_course_is_drawn_to_scale() {
        assert_eq!(course(&[Bytes(0), Bytes(1), Bytes(50), Bytes(100)], COURSE), "▁▂▅█");
        assert_eq!(course(&[Bytes::ZERO], COURSE), "▁");
        assert_eq!(course(&vec![Bytes(5); 1000], 30).chars().count(), 30);
    }
}
