//! Compares a device with the baseline: numbers, categories and lines.

use crate::Tolerance;
use crate::baseline::{Baseline, BaselineSite, Entry};
use crate::judge::{Breach, LimitResult, exact_percent};
use crate::measure::{Measured, MeasurementGap};
use analysis::words::{grouped, percent, shown_path};
use analysis::{Category, UsageChange, changes};
use snapshot::Bytes;
use std::path::Path;

/// Name of the limit.
const LIMIT: &str = "baseline";
/// Key of the only number that is per step and not for the whole run.
const GROWTH_KEY: &str = "growth_per_step";
/// Size of a segment for large requests, in bytes. Reserved memory grows in whole segments: one more is
/// tolerated.
const SEGMENT_BYTES: u64 = 20 << 20;

/// Numbers of a device next to those of the baseline.
pub struct BaselineComparison {
    /// Path of the baseline.
    pub file: String,
    /// All numbers.
    pub rows: Vec<ComparedNumber>,
    /// Categories whose bytes at the peak changed, with bytes before and after; the largest change first.
    pub categories: Vec<(Category, Bytes, Bytes)>,
    /// Lines, the same.
    pub lines: Vec<UsageChange>,
    /// Whether lines that the baseline does not have may have been too small to be in it.
    pub is_cut: bool,
}

/// One number, in the baseline and now.
pub struct ComparedNumber {
    /// Key in the baseline.
    pub key: &'static str,
    /// Name in messages.
    pub name: &'static str,
    /// Bytes in the baseline.
    pub before: u64,
    /// Bytes now.
    pub after: u64,
    /// Highest number of bytes allowed.
    pub allowed: u64,
}

impl ComparedNumber {
    /// Returns whether the number is higher than allowed.
    pub fn is_over(&self) -> bool {
        self.after > self.allowed
    }

    /// Returns whether the number fell by more than it was allowed to rise.
    fn is_lower(&self) -> bool {
        self.before.saturating_sub(self.after) > self.allowed - self.before
    }

    /// Returns the difference, such as `+123 MiB, +8.2%`.
    pub fn by(&self) -> String {
        let (sign, by) = match self.after >= self.before {
            true => ('+', self.after - self.before),
            false => ('-', self.before - self.after),
        };
        match self.before {
            0 => format!("{sign}{}", Bytes(by)),
            before if self.after / 10 > before => {
                format!("{sign}{}, {}×", Bytes(by), grouped(self.after / before))
            }
            // A small difference keeps its decimals: rounded, it could look like the tolerance itself.
            before if by >= before / 10 => {
                format!("{sign}{}, {sign}{}", Bytes(by), percent(by as f64 / before as f64))
            }
            before => format!("{sign}{}, {sign}{}", Bytes(by), exact_percent(by as f64 / before as f64)),
        }
    }
}

/// Compares one device. Also returns a note if the baseline can be tightened.
pub(crate) fn compare(
    file: &Path,
    baseline: &Baseline,
    device: &Measured,
    tolerance: Tolerance,
) -> (LimitResult, Option<String>) {
    let name = shown_path(file);
    let mut result = LimitResult::new(LIMIT);
    let same = |entry: &&Entry<BaselineSite>| (entry.rank, entry.device) == (device.rank, device.device);
    let Some(entry) = baseline.devices.iter().find(same) else {
        let what = format!("{name} has no numbers of rank {} {}", device.rank, device.device_name);
        result.unmeasured = Some(MeasurementGap { what, hint: UPDATE_HINT.to_owned() });
        return (result, None);
    };
    let mut doubts: Vec<MeasurementGap> = device.peak_doubt.iter().cloned().collect();
    let mut number = |before: Option<u64>, now: Result<Bytes, &MeasurementGap>| match (before?, now) {
        (before, Ok(now)) => Some((before, now.0)),
        (_, Err(why)) => {
            doubts.push(why.clone());
            None
        }
    };
    let reserved = device.replayed.as_ref().map(|replayed| replayed.reserved);
    let numbers = [
        ("peak_allocated", "peak allocated", Some((entry.peak_allocated, device.peak_allocated.0))),
        ("peak_requested", "peak requested", Some((entry.peak_requested, device.peak_requested.0))),
        ("peak_reserved", "peak reserved", number(entry.peak_reserved, reserved)),
        (
            "growth_per_step",
            "growth per step",
            number(entry.growth_per_step, device.growth.as_ref().copied()),
        ),
    ];
    let rows: Vec<ComparedNumber> = numbers
        .into_iter()
        .filter_map(|(key, name, numbers)| {
            let (before, after) = numbers?;
            Some(ComparedNumber { key, name, before, after, allowed: allowed(key, before, tolerance) })
        })
        .collect();
    let comparison = BaselineComparison {
        categories: categories(entry, device),
        lines: changes(&entry.site_usages(), &device.sites),
        is_cut: entry.other_sites > 0,
        rows,
        file: name.clone(),
    };
    result.breaches = breaches(&comparison, device, tolerance);
    result.unmeasured = doubts.into_iter().next();
    let peak = comparison.rows.first().map(ComparedNumber::by).unwrap_or_default();
    result.found = format!("peak allocated {peak} against {name}, tolerance {}", tolerance_text(tolerance));
    result.value = Some(device.peak_allocated.0 as f64);
    result.allowed = Some(allowed("peak_allocated", entry.peak_allocated, tolerance) as f64);
    let lower = comparison.rows.iter().find(|row| row.is_lower());
    let note = lower.filter(|_| result.breaches.is_empty()).map(|row| {
        format!(
            "{}: {} is {} below {name}, which `--update` can tighten",
            device.name(),
            row.name,
            Bytes(row.before - row.after)
        )
    });
    result.comparison = Some(comparison);
    (result, note)
}

/// Hint for devices that differ from those of the baseline.
const UPDATE_HINT: &str = "if this is intended, the same command with `--update` rewrites the baseline";

/// Returns one breach for all peaks, at the line that grew most, and one for the growth per step.
fn breaches(comparison: &BaselineComparison, device: &Measured, tolerance: Tolerance) -> Vec<Breach> {
    let over = || comparison.rows.iter().filter(|row| row.is_over());
    let breach = |row: &ComparedNumber, site, advice| Breach {
        message: format!(
            "{} {} was {} in {}: {}, tolerance {}",
            row.name,
            Bytes(row.after),
            Bytes(row.before),
            comparison.file,
            row.by(),
            tolerance_text(tolerance)
        ),
        site,
        advice,
    };
    let mut peaks = over().filter(|row| row.key != GROWTH_KEY);
    let first = peaks.next().map(|row| {
        let others: Vec<String> = peaks.map(|row| format!("{} {}", row.name, row.by())).collect();
        let grown = comparison.lines.iter().find(|line| line.by() > 0);
        let advice = (!others.is_empty()).then(|| format!("also {}", others.join("; ")));
        breach(row, grown.and_then(|line| line.site.clone()), advice)
    });
    let growth = over().find(|row| row.key == GROWTH_KEY).map(|row| {
        let worst = device.leaks.iter().max_by_key(|leak| leak.per_step);
        let advice = worst.map(|leak| format!("fix: {}", leak.fix));
        breach(row, worst.and_then(|leak| leak.site.clone()), advice)
    });
    first.into_iter().chain(growth).collect()
}

/// Returns the result for a device of the baseline that this run did not use.
pub(crate) fn missing<'a>(
    file: &Path,
    baseline: &Baseline,
    measured: impl Iterator<Item = &'a Measured>,
) -> Option<LimitResult> {
    let here: Vec<(usize, u32)> = measured.map(|device| (device.rank, device.device)).collect();
    let gone = baseline.devices.iter().find(|entry| !here.contains(&(entry.rank, entry.device)))?;
    let what = format!(
        "{} has numbers of rank {} device {}, which this run did not use",
        shown_path(file),
        gone.rank,
        gone.device
    );
    Some(LimitResult {
        unmeasured: Some(MeasurementGap { what, hint: UPDATE_HINT.to_owned() }),
        ..LimitResult::new(LIMIT)
    })
}

/// Returns the highest number allowed now.
fn allowed(key: &str, before: u64, tolerance: Tolerance) -> u64 {
    let by = match tolerance {
        Tolerance::Share(share) => (before as f64 * share) as u64,
        // A size is meant for the whole run, not for each step.
        Tolerance::Size(_) if key == GROWTH_KEY => 0,
        Tolerance::Size(bytes) => bytes,
    };
    before.saturating_add(if key == "peak_reserved" { by.max(SEGMENT_BYTES) } else { by })
}

fn tolerance_text(tolerance: Tolerance) -> String {
    match tolerance {
        Tolerance::Share(share) => exact_percent(share),
        Tolerance::Size(bytes) => Bytes(bytes).to_string(),
    }
}

fn categories(entry: &Entry<BaselineSite>, device: &Measured) -> Vec<(Category, Bytes, Bytes)> {
    let pair = |of: Category| {
        let before = entry.categories.get(of.name()).copied().unwrap_or(0);
        (of, Bytes(before), device.categories.get(of))
    };
    let mut moved: Vec<_> =
        Category::ALL.into_iter().map(pair).filter(|(_, before, after)| before != after).collect();
    moved.sort_by_key(|(of, before, after)| (std::cmp::Reverse(before.0.abs_diff(after.0)), *of));
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_above_what_was() {
        assert_eq!(allowed("peak_allocated", 1000, Tolerance::Share(0.01)), 1010);
        assert_eq!(allowed("peak_allocated", 1000, Tolerance::Size(64)), 1064);
        assert_eq!(allowed("peak_allocated", u64::MAX, Tolerance::Share(1.0)), u64::MAX);
        assert_eq!(allowed("peak_reserved", 1000, Tolerance::Size(0)), 1000 + SEGMENT_BYTES);
        assert_eq!(allowed("growth_per_step", 1000, Tolerance::Size(64)), 1000);
        assert_eq!(allowed("growth_per_step", 0, Tolerance::Share(0.5)), 0);
    }

    #[test]
    fn a_change_is_shown_in_bytes_and_as_a_share() {
        let row = |before, after| ComparedNumber { key: "", name: "", before, after, allowed: before + 10 };
        assert_eq!(row(1000, 1020).by(), "+20 B, +2%");
        assert_eq!(row(0, 1024).by(), "+1.00 KiB");
        assert_eq!(row(1000, 500).by(), "-500 B, -50%");
        assert_eq!(row(1000, 1457).by(), "+457 B, +46%");
        assert_eq!(row(1000, 64_000).by(), "+61.5 KiB, 64×");
        assert!(row(1000, 1011).is_over() && !row(1000, 1010).is_over());
        assert!(row(1000, 989).is_lower() && !row(1000, 990).is_lower());
    }
}
