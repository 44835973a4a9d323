//! `oomph simulate` as text: the verdict, recorded and replayed numbers, the line to copy.

use crate::terminal::{Style, Terminal, shown_path};
use crate::words::paragraph;
use allocator::{Oom, RecordedRun};
use analysis::words::{counted, grouped, percent, printable, share};
use inputs::Input;
use snapshot::{Bytes, History, Snapshot};
use std::io::Write;
use std::path::Path;
use whatif::{Caveat, SearchAdvice, Simulation, Trial, export_line, site};

/// One what-if: does it fit, and how does it compare with the recorded run.
pub(super) fn what_if(
    simulation: &Simulation<'_>,
    trial: &Trial,
    output: Option<&Path>,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    header(simulation.name, simulation.device.snapshot, &simulation.device.history, terminal)?;
    followed(simulation, terminal)?;
    writeln!(terminal.out())?;
    match &trial.outcome.oom {
        None => fits(trial, terminal)?,
        Some(oom) => fails(simulation, trial, oom, terminal)?,
    }
    table(simulation, trial, terminal)?;
    if let Some(path) = output {
        let path = shown_path(path);
        paragraph(
            "   ",
            "   ",
            &format!("the replayed run is in {path}; `oomph diff` compares it with the recorded one"),
            None,
            terminal,
        )?;
    }
    notes(&Caveat::all(simulation, trial), terminal)?;
    if simulation.options.conf.is_none() {
        let next = format!(" next: oomph simulate --search {}", simulation.name);
        let next = terminal.paint(Style::Dim, &next);
        writeln!(terminal.out(), "\n{next}")?;
    }
    Ok(())
}

fn header(name: &str, snapshot: &Snapshot, history: &History, terminal: &mut Terminal) -> anyhow::Result<()> {
    let name = terminal.paint(Style::Bold, name);
    let completeness = if history.complete { "complete" } else { "truncated" };
    let events = counted(history.len() as u64, "event");
    writeln!(
        terminal.out(),
        "{name} · GPU {} · {} · {events}, {completeness}",
        history.device,
        snapshot.torch
    )?;
    Ok(())
}

/// Whether the model reproduces PyTorch's decisions on this run, which every figure below relies on.
fn followed(simulation: &Simulation<'_>, terminal: &mut Terminal) -> anyhow::Result<()> {
    let verification = simulation.recorded.verification();
    let text = if verification.difference.is_none() {
        format!(
            " the model reproduces the recording: all {} events match",
            grouped(verification.events as u64)
        )
    } else {
        format!(
            " the model reproduces the recording up to event {} of {}",
            grouped(verification.identical as u64),
            grouped(verification.events as u64)
        )
    };
    let text = terminal.paint(Style::Dim, &text);
    writeln!(terminal.out(), "{text}")?;
    Ok(())
}

fn fits(trial: &Trial, terminal: &mut Terminal) -> anyhow::Result<()> {
    let label = terminal.paint(Style::Green, "✓ FITS");
    let peak = Bytes(trial.outcome.peak_reserved);
    let of = match room(trial) {
        Some(room) => format!(" of {room} available to PyTorch"),
        None => String::new(),
    };
    let smallest = trial.smallest.map(|smallest| format!("a GPU with {} is enough; ", Bytes(smallest)));
    let smallest = smallest.unwrap_or_default();
    writeln!(terminal.out(), " {label}  {smallest}{peak} reserved at the peak{of}")?;
    rescued(trial, terminal)
}

/// What a run that goes on after requests that have failed says, and what it does not.
fn rescued(trial: &Trial, terminal: &mut Terminal) -> anyhow::Result<()> {
    let count = trial.outcome.rescued.len() as u64;
    if count == 0 {
        return Ok(());
    }
    let text = format!(
        "{} that failed in the recorded run would have succeeded; what the program would have done next is \
         not recorded: memory that grows from step to step fills any GPU (`oomph report` finds out)",
        counted(count, "request")
    );
    paragraph("   ", "   ", &text, None, terminal)
}

fn fails(
    simulation: &Simulation<'_>,
    trial: &Trial,
    oom: &Oom,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let label = terminal.paint(Style::Red, "✗ RUNS OUT OF MEMORY");
    let step = simulation.device.steps.main_of_event(oom.event).map(|step| format!(", step {}", step + 1));
    writeln!(terminal.out(), " {label}  at event {}{}", grouped(oom.event as u64), step.unwrap_or_default())?;
    if let Some(place) = site(simulation, oom.event) {
        let short = terminal.paint(Style::Bold, &place.short());
        writeln!(terminal.out(), "   {short}  {}", printable(&place.function))?;
    }
    let short = (oom.reserved + oom.wanted).saturating_sub(oom.room);
    let why = if oom.is_fragmentation {
        format!(
            "{} requested; {} of {} is allocated, but free memory is fragmented, largest block {}",
            Bytes(oom.requested),
            Bytes(oom.allocated),
            Bytes(oom.room),
            Bytes(oom.largest_free)
        )
    } else {
        format!(
            "{} requested with {} of {} allocated: {} short",
            Bytes(oom.requested),
            Bytes(oom.allocated),
            Bytes(oom.room),
            Bytes(short)
        )
    };
    paragraph("   ", "   ", &why, None, terminal)?;
    if let (Some(smallest), Some(total)) = (trial.smallest, trial.what.total) {
        let more = smallest.saturating_sub(total);
        let text = format!("the smallest GPU on which it fits: {}, {} more", Bytes(smallest), Bytes(more));
        paragraph("   ", "   ", &text, None, terminal)?;
    }
    if oom.was_recorded {
        let text = "the recorded run failed here as well";
        let text = if trial.outcome.finished { format!("{text} and went on") } else { text.to_owned() };
        paragraph("   ", "   ", &text, None, terminal)?;
    }
    Ok(())
}

/// The lower of the GPU's memory and the limit.
fn room(trial: &Trial) -> Option<Bytes> {
    [trial.what.available, trial.what.limit].into_iter().flatten().min().map(Bytes)
}

fn named(conf: &str) -> &str {
    if conf.is_empty() { "PyTorch's defaults" } else { conf }
}

fn table(simulation: &Simulation<'_>, trial: &Trial, terminal: &mut Terminal) -> anyhow::Result<()> {
    let history = &simulation.device.history;
    let outcome = &trial.outcome;
    let before = history.reserved_peak.bytes;
    let after = Bytes(outcome.peak_reserved);
    let (low, high) = outcome.peak_reserved_range;
    let range = if low == high { String::new() } else { format!("  {} to {}", Bytes(low), Bytes(high)) };
    let unused = |peak: Bytes, allocated: Bytes| percent(share(peak.saturating_sub(allocated), peak));
    let rows = [
        ("peak reserved", before.to_string(), format!("{after}  {}{range}", change(before, after))),
        (
            "peak allocated",
            history.allocated_peak.bytes.to_string(),
            Bytes(outcome.peak_allocated).to_string(),
        ),
        (
            "reserved but unallocated",
            unused(before, history.allocated_peak.bytes),
            unused(after, Bytes(outcome.peak_allocated)),
        ),
        ("reserved at the end", history.end.reserved.to_string(), Bytes(outcome.end_reserved).to_string()),
        ("cudaMalloc calls", grouped(history.stats.device_allocs), grouped(outcome.device_allocs)),
        ("cudaFree calls", grouped(history.stats.device_frees), grouped(outcome.device_frees)),
        ("retries", grouped(simulation.recorded.verification().retries), grouped(outcome.retries)),
    ];
    let recorded_conf = match simulation.recorded_conf() {
        "" => "defaults".to_owned(),
        conf => short(conf, 13),
    };
    let title = format!(" {:<24} {:<14} {}", "", "recorded", "replayed");
    let title = terminal.paint(Style::Bold, &title);
    writeln!(terminal.out(), "\n{title}")?;
    writeln!(terminal.out(), " {:<24} {:<14} {}", "settings", recorded_conf, named(&trial.conf))?;
    for (name, recorded, replayed) in rows {
        writeln!(terminal.out(), " {name:<24} {recorded:<14} {}", replayed.trim_end())?;
    }
    if let Some(smallest) = trial.smallest {
        writeln!(terminal.out(), " {:<24} {:<14} {}", "smallest GPU", "", Bytes(smallest))?;
    }
    Ok(())
}

/// The beginning of a text that is too long for its column.
fn short(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    format!("{}…", text.chars().take(width - 1).collect::<String>())
}

/// `-44%`; nothing where nothing has changed.
fn change(before: Bytes, after: Bytes) -> String {
    let by = after.0.abs_diff(before.0) as f64 / before.0.max(1) as f64;
    match (after.0 >= before.0, by) {
        (_, by) if by < 0.0005 => "same".to_owned(),
        (true, by) if by >= 1.0 => format!("{:.1}×", after.0 as f64 / before.0.max(1) as f64),
        (true, by) => format!("+{}", percent(by)),
        (false, by) => format!("-{}", percent(by)),
    }
}

fn notes(caveats: &[Caveat], terminal: &mut Terminal) -> anyhow::Result<()> {
    if !caveats.is_empty() {
        writeln!(terminal.out())?;
    }
    for caveat in caveats {
        paragraph(" ", "       ", &format!("note: {caveat}"), Some(Style::Dim), terminal)?;
    }
    Ok(())
}

/// The settings that were tried, the best first, and the line to copy.
pub(super) fn search(
    simulation: &Simulation<'_>,
    trials: &[Trial],
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    header(simulation.name, simulation.device.snapshot, &simulation.device.history, terminal)?;
    followed(simulation, terminal)?;
    advice(simulation, trials, terminal)?;
    let recorded = simulation.device.history.reserved_peak.bytes;
    let card = if simulation.options.smallest_gpu { "smallest GPU   " } else { "" };
    let title = format!("   peak reserved  of recorded  cudaMalloc  {card}settings");
    let title = terminal.paint(Style::Bold, &title);
    writeln!(terminal.out(), "\n{title}")?;
    for group in alike(simulation, trials) {
        let trial = group[0];
        let outcome = &trial.outcome;
        let peak = Bytes(outcome.peak_reserved);
        let mark = match (trial.fits(), trial.conf == simulation.recorded_conf()) {
            (false, _) => terminal.paint(Style::Red, "✗"),
            (true, true) => "•".to_owned(),
            (true, false) => " ".to_owned(),
        };
        let figure = match (trial.fits(), outcome.peak_reserved_range) {
            (false, _) => "out of memory".to_owned(),
            (true, (low, high)) if low == high => peak.to_string(),
            (true, _) => format!("~{peak}"),
        };
        let relative = if trial.fits() { change(recorded, peak) } else { String::new() };
        let card = match (simulation.options.smallest_gpu, trial.smallest) {
            (false, _) => String::new(),
            (true, None) => format!("{:<15}", "none"),
            (true, Some(size)) => format!("{:<15}", Bytes(size)),
        };
        let calls = grouped(outcome.device_allocs);
        let others = match group.len() - 1 {
            0 => String::new(),
            others => format!("  and {others} more with the same result"),
        };
        let conf = format!("{}{}", named(&trial.conf), terminal.paint(Style::Dim, &others));
        writeln!(terminal.out(), " {mark} {figure:<13}  {relative:<11}  {calls:>10}  {card}{conf}")?;
    }
    let mut legend = Vec::new();
    if trials.iter().any(|trial| trial.fits() && trial.conf == simulation.recorded_conf()) {
        legend.push("• the recorded settings");
    }
    if trials.iter().any(|trial| {
        trial.fits() && trial.outcome.peak_reserved_range.0 != trial.outcome.peak_reserved_range.1
    }) {
        legend.push("~ depends on addresses chosen by the driver; `--conf` shows the range");
    }
    if !legend.is_empty() {
        paragraph("   ", "   ", &legend.join(" · "), Some(Style::Dim), terminal)?;
    }
    // The table marks the settings whose peak depends on addresses.
    let shared = trials.first().map(|best| Caveat::all(simulation, best)).unwrap_or_default();
    let shared = shared.into_iter().filter(|caveat| !matches!(caveat, Caveat::AddressRange { .. }));
    notes(&shared.collect::<Vec<_>>(), terminal)
}

/// Trials with the same result, in their order; the recorded settings stand for theirs.
fn alike<'a>(simulation: &Simulation<'_>, trials: &'a [Trial]) -> Vec<Vec<&'a Trial>> {
    let result = |trial: &Trial| {
        let outcome = &trial.outcome;
        let figures = (outcome.peak_reserved, outcome.peak_reserved_range, outcome.device_allocs);
        if trial.fits() { Some((figures, trial.smallest)) } else { None }
    };
    let mut groups: Vec<Vec<&Trial>> = Vec::new();
    for trial in trials {
        match groups.iter_mut().find(|group| result(group[0]) == result(trial)) {
            Some(group) if trial.conf == simulation.recorded_conf() => group.insert(0, trial),
            Some(group) => group.push(trial),
            None => groups.push(vec![trial]),
        }
    }
    groups
}

/// What to export, or that there is nothing to gain.
fn advice(simulation: &Simulation<'_>, trials: &[Trial], terminal: &mut Terminal) -> anyhow::Result<()> {
    writeln!(terminal.out())?;
    let (best, recorded, avoid) = match SearchAdvice::new(simulation, trials) {
        SearchAdvice::NothingFits => {
            let label = terminal.paint(Style::Red, "✗ NOTHING FITS");
            let text = "no settings make this run fit: it needs a larger GPU, or must use less memory";
            return Ok(writeln!(terminal.out(), " {label}  {text}")?);
        }
        SearchAdvice::Keep => {
            let label = terminal.paint(Style::Green, "✓ LEAVE IT");
            let text = "no settings tried would have reserved noticeably less";
            return Ok(writeln!(terminal.out(), " {label}  {text}")?);
        }
        SearchAdvice::Use { best, recorded, avoid } => (best, recorded, avoid),
    };
    let label = terminal.paint(Style::Green, "✓ USE");
    let line = terminal.paint(Style::Bold, &export_line(&best.conf));
    writeln!(terminal.out(), " {label}  {line}")?;
    let peak = Bytes(best.outcome.peak_reserved);
    let text = match recorded {
        Some(recorded) if recorded.fits() => {
            format!("{peak} reserved at the peak instead of {}", Bytes(recorded.outcome.peak_reserved))
        }
        _ => format!("with it what was recorded fits: {peak} reserved at the peak"),
    };
    paragraph("   ", "   ", &text, None, terminal)?;
    rescued(best, terminal)?;
    if let Some(worst) = avoid {
        let (before, after) =
            (simulation.device.history.reserved_peak.bytes, Bytes(worst.outcome.peak_reserved));
        let text = format!("avoid {}: {after}, {}", named(&worst.conf), change(before, after));
        paragraph("   ", "   ", &text, Some(Style::Yellow), terminal)?;
    }
    Ok(())
}

/// The comparison with the recording.
pub(super) fn verification(
    input: &Input,
    history: &History,
    recorded: &RecordedRun<'_>,
    is_alone: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let verification = recorded.verification();
    let events = grouped(verification.events as u64);
    if is_alone {
        header(&input.name, &input.snapshot, history, terminal)?;
    }
    let name = if is_alone {
        String::new()
    } else {
        format!("{} · GPU {}: ", printable(&input.name), history.device)
    };
    let Some(difference) = verification.difference else {
        let label = terminal.paint(Style::Green, "✓ IDENTICAL");
        writeln!(terminal.out(), " {label}  {name}{events} events")?;
        if is_alone {
            let text = "given the driver's recorded answers, the model makes the same choice for every block \
                        and segment, and ends with the same segments and blocks";
            paragraph("   ", "   ", text, None, terminal)?;
            if verification.assumed_private > 0 {
                let count = counted(verification.assumed_private as u64, "segment");
                let text = format!(
                    "note: {count} assumed to have belonged to private pools that were gone at the end"
                );
                paragraph("   ", "   ", &text, Some(Style::Dim), terminal)?;
            }
        }
        return Ok(());
    };
    let label = terminal.paint(Style::Red, "✗ DIFFERENT");
    writeln!(
        terminal.out(),
        " {label}  {name}first at event {} of {events}",
        grouped(difference.event as u64)
    )?;
    writeln!(terminal.out(), "   recorded  {}\n   model     {}", difference.recorded, difference.model)?;
    if is_alone {
        for line in &difference.around {
            writeln!(terminal.out(), "   {line}")?;
        }
        let text = "possible reasons: settings changed while it ran, a private pool that was gone at the \
                    end, or `release_lock_on_cudamalloc` with several threads; `--torch`, `--recorded-conf`, \
                    `--limit` and `--gpu` supply what the file lacks";
        paragraph("   ", "   ", text, Some(Style::Dim), terminal)?;
    }
    Ok(())
}

/// The last line of several comparisons.
pub(super) fn verified(count: usize, all_identical: bool, terminal: &mut Terminal) -> anyhow::Result<()> {
    let text = if all_identical { "all are identical" } else { "not all are identical" };
    writeln!(terminal.out(), "\n {}: {text}", counted(count as u64, "recording"))?;
    Ok(())
}
