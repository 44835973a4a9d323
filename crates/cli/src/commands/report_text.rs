//! The first screen of `oomph report`, for people.

use crate::args::ReportArgs;
use crate::inputs::Input;
use crate::terminal::{Style, Terminal};
use analysis::{Device, Group, Key, Live, Moment, Origin, Rest, Site};
use snapshot::{Bytes, FrameId, PoolId, Snapshot};
use std::io::Write;
use std::path::Path;

/// Columns of the picture of the course.
const COURSE: usize = 64;

/// Between two inputs.
pub(super) fn separator(terminal: &mut Terminal) -> anyhow::Result<()> {
    Ok(writeln!(terminal.out())?)
}

/// Prints the report of one input.
pub(super) fn print(
    input: &Input,
    devices: &[Device<'_>],
    args: &ReportArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    if devices.is_empty() {
        let name = terminal.paint(Style::Bold, &input.name);
        writeln!(terminal.out(), "{name} · {}", input.snapshot.torch)?;
        writeln!(terminal.out(), "\n nothing was allocated and no event was recorded")?;
        return Ok(());
    }
    for (place, device) in devices.iter().enumerate() {
        if place > 0 {
            separator(terminal)?;
        }
        header(input, device, terminal)?;
        totals(device, terminal)?;
        ooms(device, terminal)?;
        live(device, args, terminal)?;
        pools(device, terminal)?;
        notes(device, terminal)?;
    }
    next(args, terminal)
}

fn header(input: &Input, device: &Device<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &device.history;
    let completeness = match (history.is_empty(), history.complete) {
        (true, _) => "no history".to_owned(),
        (false, true) => format!("{} events, complete", grouped(history.len() as u64)),
        (false, false) => format!("{} events, truncated", grouped(history.len() as u64)),
    };
    let name = terminal.paint(Style::Bold, &input.name);
    writeln!(terminal.out(), "{name} · GPU {} · {} · {completeness}", history.device, input.snapshot.torch)?;
    Ok(())
}

fn totals(device: &Device<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &device.history;
    let (peak, end) = (history.allocated_peak, history.end);
    writeln!(terminal.out())?;
    if !history.is_empty() {
        let when = match peak.position {
            0 => "before the first event".to_owned(),
            position => {
                format!("event {} of {}", grouped(position as u64 - 1), grouped(history.len() as u64))
            }
        };
        let label = terminal.paint(Style::Bold, "peak");
        let reserved = history.reserved_peak.bytes;
        writeln!(terminal.out(), " {label} {} allocated, {reserved} reserved · {when}", peak.bytes)?;
    }
    let mut rest = vec![format!("{} allocated, {} reserved", end.allocated, end.reserved)];
    let unused = end.reserved - end.active;
    if unused > Bytes::ZERO {
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
    if history.len() > 1 {
        let course = terminal.paint(Style::Cyan, &course(&history.samples));
        writeln!(terminal.out(), " allocated {course}")?;
    }
    Ok(())
}

/// The allocated bytes over the history, as a row of bars.
fn course(samples: &[Bytes]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = samples.iter().max().map_or(1, |bytes| bytes.0.max(1));
    let columns = samples.len().min(COURSE);
    (0..columns)
        .map(|column| {
            let range = column * samples.len() / columns..(column + 1) * samples.len() / columns;
            let height = samples[range].iter().max().map_or(0, |bytes| bytes.0);
            BARS[(height as u128 * 7).div_ceil(u128::from(highest)) as usize]
        })
        .collect()
}

fn ooms(device: &Device<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(position) = device.position_of(Moment::Oom) else { return Ok(()) };
    let (index, count) = (position - 1, device.history.stats.ooms);
    let event = device.snapshot.events.get(device.history.rows.start + index);
    let label = terminal.paint(Style::Red, "OOM");
    let times = if count == 1 { "once".to_owned() } else { format!("{} times", grouped(count)) };
    writeln!(
        terminal.out(),
        "\n {label} {times}; the last, event {}, asked for {} while the device had {} free",
        grouped(index as u64),
        event.size,
        Bytes(event.addr)
    )?;
    Ok(())
}

fn live(device: &Device<'_>, args: &ReportArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let Some(position) = device.position_of(args.at) else { return Ok(()) };
    let live = device.live_at(position, args.by.into());
    let moment = match args.at {
        Moment::Peak if !device.history.is_empty() => "at the peak".to_owned(),
        Moment::Peak | Moment::End => "at the end".to_owned(),
        Moment::Oom => "at the last OOM".to_owned(),
        Moment::Event(event) => format!("after event {}", grouped(event as u64)),
    };
    let (key, plural) = match args.by.into() {
        Key::Site => ("line", "lines"),
        Key::Stack => ("call stack", "call stacks"),
        Key::Size => ("block size", "block sizes"),
    };
    let title = terminal.paint(Style::Bold, &format!("live {moment}, by {key}"));
    writeln!(terminal.out(), "\n {title}  {} in {}", live.bytes, blocks(live.count))?;
    let (shown, rest) = live.top(args.top);
    match args.by.into() {
        Key::Stack => stacks(device, shown, &live, terminal)?,
        Key::Site | Key::Size => table(device.snapshot, shown, &live, terminal)?,
    }
    if rest.groups > 0 {
        let Rest { groups, bytes, count } = rest;
        let text = format!(
            "     and {} more {}: {bytes} in {}",
            grouped(groups),
            if groups == 1 { key } else { plural },
            blocks(count)
        );
        let text = terminal.paint(Style::Dim, &text);
        writeln!(terminal.out(), "{text}")?;
    }
    Ok(())
}

fn table(snapshot: &Snapshot, groups: &[Group], live: &Live, terminal: &mut Terminal) -> anyhow::Result<()> {
    let names: Vec<(String, String)> = groups.iter().map(|group| name(snapshot, group)).collect();
    let width = |column: fn(&(String, String)) -> &String| {
        names.iter().map(|names| column(names).chars().count()).max().unwrap_or(0)
    };
    let (first, second) = (width(|names| &names.0), width(|names| &names.1));
    for (place, (group, (line, function))) in groups.iter().zip(&names).enumerate() {
        let line = terminal.paint(Style::Bold, &format!("{line:<first$}"));
        writeln!(
            terminal.out(),
            " {:>3}  {line}  {function:<second$}  {:>8}  {:>5}  {:>12}",
            place + 1,
            group.bytes.to_string(),
            share(group.bytes, live.bytes),
            blocks(group.count)
        )?;
    }
    Ok(())
}

fn stacks(device: &Device<'_>, groups: &[Group], live: &Live, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (place, group) in groups.iter().enumerate() {
        let bytes = terminal.paint(Style::Bold, &group.bytes.to_string());
        let share = share(group.bytes, live.bytes);
        writeln!(terminal.out(), " {:>3}  {bytes}  {share}  {}", place + 1, blocks(group.count))?;
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
    let (file, function) = (snapshot.strings.get(frame.file), snapshot.strings.get(frame.function));
    let file = ["/site-packages/", "/dist-packages/"]
        .iter()
        .find_map(|folder| file.rsplit_once(folder).map(|(_, package)| package))
        .unwrap_or(file);
    if frame.line == 0 { format!("{function}  {file}") } else { format!("{file}:{}  {function}", frame.line) }
}

/// What to call a group: a place and a function.
fn name(snapshot: &Snapshot, group: &Group) -> (String, String) {
    match group.origin {
        Origin::Site(Site::User(frame)) => place(snapshot, frame),
        Origin::Site(Site::Library(frame)) => {
            let (line, function) = place(snapshot, frame);
            (line, format!("{function} (library)"))
        }
        Origin::Site(Site::Native) => ("(C++ only)".to_owned(), String::new()),
        Origin::Site(Site::Unknown | Site::Before) | Origin::Stack(_) => {
            (without_stack(group), String::new())
        }
        Origin::Size(size) => (format!("{size} blocks"), format!("{} bytes each", grouped(size.0))),
    }
}

fn without_stack(group: &Group) -> String {
    if group.from_before == group.count {
        "(from before the history begins)".to_owned()
    } else {
        "(no stack: backward() or C++)".to_owned()
    }
}

fn place(snapshot: &Snapshot, frame: FrameId) -> (String, String) {
    let frame = snapshot.stacks.frame(frame);
    let file = snapshot.strings.get(frame.file);
    let short =
        Path::new(file).file_name().map_or(file.to_owned(), |name| name.to_string_lossy().into_owned());
    (format!("{short}:{}", frame.line), shortened(snapshot.strings.get(frame.function), 40))
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most - 1).collect();
    format!("{start}…")
}

/// Memory beyond the default pool, which looks lost to those who do not know of it.
fn pools(device: &Device<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let mut private: Vec<(PoolId, Bytes, Bytes)> = Vec::new();
    for (pool, counters) in device.pools_at_end() {
        if pool.pool != PoolId::DEFAULT {
            match private.iter_mut().find(|(id, ..)| *id == pool.pool) {
                Some((_, allocated, reserved)) => {
                    *allocated += counters.allocated;
                    *reserved += counters.reserved;
                }
                None => private.push((pool.pool, counters.allocated, counters.reserved)),
            }
        }
    }
    for (PoolId(a, b), allocated, reserved) in private {
        let owner = if b == 0 { "a CUDA graph" } else { "a MemPool or graph pool" };
        writeln!(
            terminal.out(),
            "\n private pool ({a}, {b}) of {owner}: {allocated} allocated of {reserved} reserved at the end"
        )?;
    }
    Ok(())
}

fn notes(device: &Device<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let settings = &device.snapshot.settings;
    let text = match (settings.recorded, settings.conf.as_str()) {
        (false, _) => "not in the file (before torch 2.3)".to_owned(),
        (true, "") => "PyTorch's defaults".to_owned(),
        (true, conf) => conf.to_owned(),
    };
    writeln!(terminal.out(), "\n allocator settings: {text}")?;
    let caveats: Vec<&String> = device.history.caveats.iter().chain(&device.snapshot.caveats).collect();
    for caveat in caveats {
        let label = terminal.paint(Style::Yellow, "note:");
        writeln!(terminal.out(), " {label} {caveat}")?;
    }
    Ok(())
}

/// Where to go on from here.
fn next(args: &ReportArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let other = match (args.by.into(), args.at) {
        (Key::Site, Moment::Peak) => "--by stack for the call stacks · --at end for what is left · --summary",
        (Key::Site, _) => "--by stack for the call stacks · --top 30 for more",
        (Key::Stack | Key::Size, _) => "--by site for the lines · --top 30 for more",
    };
    let text = terminal.paint(Style::Dim, &format!(" next: {other}"));
    Ok(writeln!(terminal.out(), "{text}")?)
}

fn share(part: Bytes, whole: Bytes) -> String {
    let percent = part.0 as f64 * 100.0 / whole.0.max(1) as f64;
    if percent > 0.0 && percent < 0.5 { "<1 %".to_owned() } else { format!("{percent:.0} %") }
}

fn blocks(count: u64) -> String {
    if count == 1 { "1 block".to_owned() } else { format!("{} blocks", grouped(count)) }
}

/// 1234567 → 1,234,567
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_course_is_drawn_to_scale() {
        assert_eq!(course(&[Bytes(0), Bytes(1), Bytes(50), Bytes(100)]), "▁▂▅█");
        assert_eq!(course(&[Bytes::ZERO]), "▁");
        assert_eq!(course(&vec![Bytes(5); 1000]).chars().count(), COURSE);
    }
}
