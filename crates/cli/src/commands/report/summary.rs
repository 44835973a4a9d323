//! `oomph report --summary`: the table of `torch.cuda.memory_summary()`, line for line.

use crate::terminal::Terminal;
use analysis::Device;
use snapshot::{Metric, PoolClass, Stat};
use std::io::Write;

const TABLE_COLUMNS: usize = 75;

/// Prints one table per device.
pub(crate) fn print(devices: &[Device<'_>], terminal: &mut Terminal) -> anyhow::Result<()> {
    for device in devices {
        let retries = analysis::retries(device);
        let text = table(device, retries);
        terminal.out().write_all(text.as_bytes())?;
        for caveat in &device.history.caveats {
            terminal.say(&format!("note: {caveat}"));
        }
        if retries.is_none() {
            terminal.say(
                "note: cudaMalloc retries are not in the file, and its events do not determine the count",
            );
        }
    }
    Ok(())
}

fn table(device: &Device<'_>, retries: Option<u64>) -> String {
    let stats = &device.history.stats;
    let retries = retries.map_or_else(|| "n/a".to_owned(), |count| count.to_string());
    let mut lines = vec![
        "=".repeat(TABLE_COLUMNS),
        format!(" {:16} PyTorch CUDA memory summary, device ID {:<17} ", "", device.history.device),
        "-".repeat(TABLE_COLUMNS),
        format!("  {:9} CUDA OOMs: {:<12} | {:6} cudaMalloc retries: {retries:<8}  ", "", stats.ooms, ""),
        "=".repeat(TABLE_COLUMNS),
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".to_owned(),
    ];
    for (metric, name, format) in METRICS {
        lines.push("-".repeat(TABLE_COLUMNS));
        let all = stats.get(metric, PoolClass::All);
        lines.push(row(name, all, all, format));
        lines.push(row("      from large pool", stats.get(metric, PoolClass::Large), all, format));
        lines.push(row("      from small pool", stats.get(metric, PoolClass::Small), all, format));
    }
    for (stat, name) in [
        (stats.oversize_allocations, "Oversize allocations"),
        (stats.oversize_segments, "Oversize GPU segments"),
    ] {
        lines.push("-".repeat(TABLE_COLUMNS));
        lines.push(row(name, stat, stat, count));
    }
    lines.push("=".repeat(TABLE_COLUMNS));
    lines.iter().map(|line| format!("|{line}|\n")).collect()
}

/// A cell: the value, in the unit that suits the reference.
type CellFormat = fn(i64, i64) -> String;

const METRICS: [(Metric, &str, CellFormat); 9] = [
    (Metric::AllocatedBytes, "Allocated memory", size),
    (Metric::ActiveBytes, "Active memory", size),
    (Metric::RequestedBytes, "Requested memory", size),
    (Metric::ReservedBytes, "GPU reserved memory", size),
    (Metric::InactiveSplitBytes, "Non-releasable memory", size),
    (Metric::Allocation, "Allocations", count),
    (Metric::Active, "Active allocs", count),
    (Metric::Segment, "GPU reserved segments", count),
    (Metric::InactiveSplit, "Non-releasable allocs", count),
];

fn row(name: &str, stat: Stat, like: Stat, format: CellFormat) -> String {
    format!(
        " {name:<21} | {} | {} | {} | {} ",
        format(stat.current, like.current),
        format(stat.peak, like.peak),
        format(stat.allocated, like.allocated),
        format(stat.freed(), like.freed())
    )
}

fn size(value: i64, like: i64) -> String {
    let (value, unit) = scale(value, like, 768.0 * 1024.0, 1024, &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]);
    format!("{value:6} {unit}")
}

fn count(value: i64, like: i64) -> String {
    let (value, unit) = scale(value, like, 750_000.0, 1000, &[" ", "K", "M"]);
    format!("{value:7} {unit} ")
}

/// PyTorch rounds down at every step and takes the unit from the first row of each group.
fn scale(mut value: i64, like: i64, limit: f64, step: i64, units: &[&'static str]) -> (i64, &'static str) {
    let mut like = like as f64;
    let mut unit = units[0];
    for next in &units[1..] {
        if like < limit {
            break;
        }
        unit = next;
        value = value.div_euclid(step);
        like /= step as f64;
    }
    (value, unit)
}
