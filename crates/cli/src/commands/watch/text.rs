//! The current state as text, for `--once` and for output that is not a terminal.

use crate::terminal::{Style, Terminal};
use analysis::words::{grouped, printable};
use live::{DeviceCounters, Gpu, WatchedRecorder};
use snapshot::Bytes;
use std::io::Write;
use watch::bar::{driver_parts, parts};
use watch::details::{NO_RECORDER_NOTE, site_text};
use watch::palette::Part;
use watch::state::{WatchRow, WatchState};
use watch::verdict::{GrowthVerdict, Tone, process_status};

/// Lines of code to show.
const MAX_SITES: usize = 5;

pub(super) fn print(look: &WatchState, terminal: &mut Terminal) -> anyhow::Result<()> {
    for row in &look.rows {
        match row {
            WatchRow::Recorded { recorder, device, split, .. } => {
                let step = grouped(recorder.state.count);
                let title = format!("{}, process {}, step {step}", row.title(), recorder.state.pid);
                let title = terminal.paint(Style::Bold, &title);
                writeln!(terminal.out(), "{title}")?;
                print_parts(&parts(split), split.total, terminal)?;
                print_verdict(recorder, device, terminal)?;
            }
            WatchRow::DriverOnly(gpu) => print_bare(gpu, terminal)?,
        }
    }
    look.notes.iter().for_each(|note| terminal.say(&format!("note: {note}")));
    if look.rows.is_empty() {
        terminal.say("nothing to watch: no program of yours is being recorded");
        if let Some(why) = &look.no_driver {
            terminal.say(&format!("and no GPU can be seen: {why}"));
        }
    }
    Ok(())
}

fn print_parts(parts: &[(Part, Bytes)], total: Option<Bytes>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let words: Vec<String> = parts.iter().map(|(part, bytes)| format!("{} {bytes}", part.name())).collect();
    let total = total.map(|total| format!(" of {total}")).unwrap_or_default();
    Ok(writeln!(terminal.out(), "  {}{total}", words.join(", "))?)
}

fn print_verdict(
    recorder: &WatchedRecorder,
    device: &DeviceCounters,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let verdict = GrowthVerdict::new(recorder, device.device);
    let style = match verdict.tone {
        Tone::Bad => Style::Red,
        Tone::Unsure => Style::Yellow,
        Tone::Good => Style::Green,
        Tone::Quiet => Style::Dim,
    };
    let sentence = terminal.paint(style, &verdict.sentence);
    writeln!(terminal.out(), "  {sentence}")?;
    if let Some((_, words)) = process_status(recorder) {
        writeln!(terminal.out(), "  {}", printable(&words))?;
    }
    for site in recorder.sites(device.device).iter().take(MAX_SITES) {
        let grows = site.bytes_per_step.map(|bytes| format!(", +{bytes} per step")).unwrap_or_default();
        writeln!(terminal.out(), "  {:>9}  {}{grows}", site.bytes.to_string(), site_text(site))?;
    }
    Ok(())
}

fn print_bare(gpu: &Gpu, terminal: &mut Terminal) -> anyhow::Result<()> {
    let title = terminal.paint(Style::Bold, &format!("GPU {}, {}", gpu.index, printable(&gpu.name)));
    writeln!(terminal.out(), "{title}")?;
    print_parts(&driver_parts(gpu), Some(Bytes(gpu.total)), terminal)?;
    for process in &gpu.processes {
        let bytes = Bytes(process.bytes).to_string();
        writeln!(terminal.out(), "  {bytes:>9}  process {} {}", process.pid, printable(&process.name))?;
    }
    NO_RECORDER_NOTE.iter().try_for_each(|line| Ok(writeln!(terminal.out(), "  {line}")?))
}
