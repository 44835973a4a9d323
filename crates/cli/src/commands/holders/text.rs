//! `oomph holders` as text.

use crate::args::HoldersArgs;
use crate::terminal::{Style, Terminal};
use crate::words::paragraph;
use crate::words::signed;
use analysis::words::{counted, grouped, percent, printable};
use analysis::{Held, HeldTensor, HoldersView};
use heap::{Branch, Cycle, HolderKind};
use recording::DumpReason;
use snapshot::Bytes;
use source::stores;
use std::io::Write;

pub(super) fn print(
    view: &HoldersView<'_>,
    args: &HoldersArgs,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    header(view, terminal)?;
    if view.changes.is_some() {
        changes(view, args, terminal)?;
    } else if args.tree {
        tree(view, args, terminal)?;
    } else if args.path && args.of.is_none() {
        paths(view, args, terminal)?;
    } else if args.cycles {
        cycles(view, terminal)?;
    } else {
        holders(view, args, terminal)?;
        if args.of.is_none() && !view.holdings.cycles().is_empty() {
            cycles(view, terminal)?;
        }
    }
    for caveat in view.caveats() {
        paragraph("   ", "         ", &format!("note: {caveat}"), Some(Style::Dim), terminal)?;
    }
    Ok(())
}

/// What keeps one tensor.
pub(super) fn tensor(tensor: &HeldTensor, terminal: &mut Terminal) -> anyhow::Result<()> {
    let size = terminal.paint(Style::Bold, &format!("{} on {}", tensor.bytes, tensor.device));
    let state = if tensor.is_garbage { ", garbage awaiting collection" } else { "" };
    writeln!(terminal.out(), "{size}{state}, held by")?;
    for way in &tensor.ways {
        writeln!(terminal.out(), "   {}", printable(way))?;
    }
    if tensor.ways.is_empty() {
        writeln!(terminal.out(), "   no known Python object")?;
    }
    let Some(held) = &tensor.held else { return Ok(()) };
    if tensor.ways.len() == 1 {
        if let Some(line) = stores::find(&held.store, None) {
            let code = terminal.paint(Style::Cyan, &line.code);
            writeln!(terminal.out(), " stored at {}   {code}", line.site.short())?;
        }
        paragraph(" ", "      ", &format!("fix: {}", held.advice), Some(Style::Green), terminal)?;
    } else if tensor.ways.len() > 1 {
        paragraph(" ", " ", "freed when all of these are gone", None, terminal)?;
    }
    Ok(())
}

fn header(view: &HoldersView<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let name = terminal.paint(Style::Bold, view.name);
    let when = match view.dump.reason {
        None => String::new(),
        Some(DumpReason::Growing) => " · written while memory grew".to_owned(),
        Some(DumpReason::OutOfMemory) => " · written when an allocation failed".to_owned(),
        Some(DumpReason::Exit) => " · written at the end".to_owned(),
        Some(reason) => format!(" · written on {}", reason.word()),
    };
    let totals = view.totals();
    let held: Vec<String> = totals
        .iter()
        .map(|(device, storages, bytes)| {
            format!("{} on {} in {}", Bytes(*bytes), device, counted(*storages as u64, "tensor"))
        })
        .collect();
    let held = if held.is_empty() { "no tensor is held".to_owned() } else { held.join(", ") };
    writeln!(terminal.out(), "{name}{when} · {} objects", grouped(view.dump.heap.len() as u64))?;
    writeln!(terminal.out(), " held by Python objects: {held}")?;
    for (device, bytes) in view.unheld().unwrap_or_default() {
        let text = format!(" {device}: {bytes} not held by any known Python object (C++ code, workspaces)");
        let text = terminal.paint(Style::Dim, &text);
        writeln!(terminal.out(), "{text}")?;
    }
    writeln!(terminal.out())?;
    Ok(())
}

fn holders(view: &HoldersView<'_>, args: &HoldersArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let total: u64 = view.holdings.bytes.iter().sum();
    for (bytes, held) in &view.holders {
        let share = percent(bytes.0 as f64 / total.max(1) as f64);
        let path = terminal.paint(Style::Bold, &held.holder);
        writeln!(terminal.out(), "   {:>9}  {share:>5}  {path}   {}", bytes.to_string(), what(held))?;
        let indent = " ".repeat(21);
        if let Some(shared) = shared(held, *bytes) {
            paragraph(&indent, &indent, &shared, Some(Style::Dim), terminal)?;
        }
        if args.path || args.of.is_some() {
            writeln!(terminal.out(), "{indent}{}", held.by)?;
        }
        if let Some(line) =
            shows_store(held, args).then(|| stores::find(&held.store, view.site.as_ref())).flatten()
        {
            let code = terminal.paint(Style::Cyan, &line.code);
            writeln!(terminal.out(), "{indent}stored at {}   {code}", line.site.short())?;
        }
        if needs_advice(held, args) {
            paragraph(
                &indent,
                &" ".repeat(26),
                &format!("fix: {}", held.advice),
                Some(Style::Green),
                terminal,
            )?;
        }
    }
    Ok(())
}

/// Who else holds the bytes, if they would not be freed with this holder.
fn shared(held: &Held, bytes: Bytes) -> Option<String> {
    let names = |ways: &[String]| ways.iter().map(|way| format!("`{way}`")).collect::<Vec<_>>().join(", ");
    if held.together.len() > 1 {
        return Some(format!("shared: freed when all of these are gone: {}", names(&held.together)));
    }
    if !held.also.is_empty() {
        return Some(format!("the same object is also {}", names(&held.also)));
    }
    let is_part =
        held.alike == 1 && held.retained.0.saturating_mul(2) < bytes.0 && held.retained > Bytes::ZERO;
    is_part.then(|| format!("retains only {}: the rest is also held elsewhere", held.retained))
}

/// Whether to print advice: what a program holds on purpose needs none.
fn needs_advice(held: &Held, args: &HoldersArgs) -> bool {
    args.of.is_some()
        || !matches!(
            held.kind,
            HolderKind::Variable | HolderKind::Chain | HolderKind::Container | HolderKind::Outside
        )
}

fn shows_store(held: &Held, args: &HoldersArgs) -> bool {
    needs_advice(held, args) || held.kind == HolderKind::Container
}

fn what(held: &Held) -> String {
    let class = held.class.rsplit('.').next().unwrap_or(&held.class);
    if !held.text.is_empty() {
        format!("{class} {}", printable(&held.text))
    } else if held.alike > 1 {
        format!("{} × {class}", grouped(held.alike))
    } else if held.entries > 1 {
        format!("{class} with {}", counted(held.entries, "reference"))
    } else {
        class.to_owned()
    }
}

fn cycles(view: &HoldersView<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    if view.holdings.cycles().is_empty() {
        return Ok(writeln!(terminal.out(), " no reference cycle holds tensor memory")?);
    }
    writeln!(terminal.out(), "\n reference cycles that hold memory")?;
    for cycle in view.holdings.cycles() {
        one_cycle(view, cycle, terminal)?;
    }
    Ok(())
}

fn one_cycle(view: &HoldersView<'_>, cycle: &Cycle, terminal: &mut Terminal) -> anyhow::Result<()> {
    let links = terminal.paint(Style::Bold, &printable(&view.holdings.shape(&cycle.around)));
    let state = if cycle.is_garbage { "garbage: awaiting collection" } else { "in use" };
    let count = if cycle.count > 1 { format!("{} × ", grouped(cycle.count as u64)) } else { String::new() };
    writeln!(terminal.out(), "   {:>9}         {count}{links}   {state}", Bytes(cycle.bytes()).to_string())?;
    Ok(())
}

fn tree(view: &HoldersView<'_>, args: &HoldersArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let whole = view.tree(args.depth, args.top);
    for branch in &whole.branches {
        twig(branch, 0, terminal)?;
    }
    left_out(whole.left_out, 0, terminal)
}

fn twig(branch: &Branch, depth: usize, terminal: &mut Terminal) -> anyhow::Result<()> {
    let name = terminal.paint(Style::Bold, &printable(&branch.name));
    let count =
        if branch.count > 1 { format!("{} × ", grouped(branch.count as u64)) } else { String::new() };
    let indent = "  ".repeat(depth);
    let bytes = Bytes(branch.bytes()).to_string();
    writeln!(terminal.out(), "   {bytes:>9}  {indent}{name}  {count}{}", printable(&branch.what))?;
    for inner in &branch.branches {
        twig(inner, depth + 1, terminal)?;
    }
    left_out(branch.left_out, depth + 1, terminal)
}

fn left_out(count: usize, depth: usize, terminal: &mut Terminal) -> anyhow::Result<()> {
    if count > 0 {
        let text = format!("{}… {} more", "  ".repeat(depth), grouped(count as u64));
        let text = terminal.paint(Style::Dim, &text);
        writeln!(terminal.out(), "              {text}")?;
    }
    Ok(())
}

fn paths(view: &HoldersView<'_>, args: &HoldersArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    for (device, bytes, path) in view.paths(args.top) {
        writeln!(
            terminal.out(),
            "   {:>9}  {:<6}  {}",
            Bytes(bytes).to_string(),
            device.to_string(),
            printable(&path)
        )?;
    }
    Ok(())
}

fn changes(view: &HoldersView<'_>, args: &HoldersArgs, terminal: &mut Terminal) -> anyhow::Result<()> {
    let changes = view.changes.as_deref().unwrap_or_default();
    if changes.is_empty() {
        return Ok(writeln!(terminal.out(), " nothing has changed")?);
    }
    for change in changes.iter().take(args.top) {
        let growth = signed(change.growth());
        let place = terminal.paint(Style::Bold, &printable(&change.place));
        writeln!(
            terminal.out(),
            "   {growth:>10}  {:<6}  {place}   {} → {}",
            change.device.to_string(),
            grouped(change.before.count),
            counted(change.after.count, "tensor"),
        )?;
    }
    Ok(())
}
