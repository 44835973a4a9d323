//! Live blocks in groups, as text.

use crate::args::{By, ReportArgs};
use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use analysis::words::{counted, grouped, percent, printable, share, shortened};
use analysis::{Category, Device, Live, LiveGroup, Moment, Origin, Rest, RunModel, Site, in_package};
use snapshot::{Bytes, FrameId, Snapshot};
use std::io::Write;

/// Prints the groups of one device's live blocks.
pub(crate) fn print(model: &RunModel<'_>, args: &ReportArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let device = model.device;
    let at = args.moment(device);
    let Some(position) = device.position_of(at) else { return Ok(()) };
    let live = model.live_at(position, args.key());
    let moment = match at {
        Moment::Peak if !device.history.is_empty() => "at the peak".to_owned(),
        Moment::Peak | Moment::End => "at the end".to_owned(),
        Moment::Oom => "at the last OOM".to_owned(),
        Moment::Event(event) => format!("after event {}", grouped(event as u64)),
    };
    let (key, plural) = match args.by {
        By::Site => ("line", "lines"),
        By::Category => ("category", "categories"),
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
            "modules were not recorded: use `oomph run` with torch 2.10 or later"
        }
        By::Module if live.by_layer => {
            "modules inside a numbered layer count with it; a larger --top separates them"
        }
        _ => return Ok(()),
    };
    paragraph("     ", "     ", note, Some(Style::Dim), terminal)
}

/// Space between two columns.
const GAP: &str = "  ";

fn table(
    device: &Device<'_>,
    groups: &[LiveGroup],
    live: &Live,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let figures = |group: &LiveGroup| {
        let share = percent(share(group.bytes, live.bytes));
        format!("{:>8}  {share:>5}  {:>12}", group.bytes.to_string(), counted(group.count, "block"))
    };
    let figures: Vec<String> = groups.iter().map(figures).collect();
    let numbers: Vec<String> = (1..=groups.len()).map(|number| format!(" {number:>3}")).collect();
    let widest = |column: &[String]| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
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
        let columns = [widest(&numbers), first, second, widest(&figures)];
        columns.iter().sum::<usize>() + GAP.len() * (columns.len() - 1) <= terminal.width()
    };
    // A module's categories are listed as far as they fit the line.
    let names = (1..=MAX_CATEGORIES).rev().map(named).find(fits).unwrap_or_else(|| named(1));
    let (first, second) = widths(&names);
    for ((number, (line, function)), figures) in numbers.iter().zip(&names).zip(&figures) {
        let line = terminal.paint(Style::Bold, &format!("{line:<first$}"));
        writeln!(terminal.out(), "{number}{GAP}{line}{GAP}{function:<second$}{GAP}{figures}")?;
    }
    Ok(())
}

fn stacks(
    device: &Device<'_>,
    groups: &[LiveGroup],
    live: &Live,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
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
    let file = in_package(file).unwrap_or(file);
    if frame.line == 0 { format!("{function}  {file}") } else { format!("{file}:{}  {function}", frame.line) }
}

/// What to call a group: a site and a function.
fn name(device: &Device<'_>, group: &LiveGroup, parts: usize) -> (String, String) {
    let (line, mut what) = device.words_for(group.origin);
    match group.origin {
        Origin::Site(Site::Unknown | Site::Before) => return (without_stack(group), what),
        Origin::Module(_) => what = split(group, parts),
        Origin::Site(Site::User(_) | Site::Backward(_) | Site::BackwardOf(_)) => {
            what.extend(
                group
                    .module
                    .map(|module| format!(" · {}", shortened(&printable(device.modules.path(module)), 40))),
            );
        }
        _ => {}
    }
    (line, what)
}

/// Maximum number of categories listed per module.
const MAX_CATEGORIES: usize = 4;

/// What a group is for, the largest parts.
fn split(group: &LiveGroup, most: usize) -> String {
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

fn without_stack(group: &LiveGroup) -> String {
    if group.from_before == group.count {
        "(from before the history begins)".to_owned()
    } else {
        "(no stack: backward() or C++)".to_owned()
    }
}
