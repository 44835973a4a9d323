//! Checks one device against each limit of a budget.

use crate::Budget;
use crate::compare::BaselineComparison;
use crate::measure::{Measured, MeasurementGap};
use analysis::SiteName;
use analysis::words::{counted, percent, printable};
use snapshot::Bytes;

/// Result of a limit, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LimitState {
    /// The number is within the limit.
    Kept,
    /// The number could not be measured.
    Unmeasured,
    /// The number is over the limit.
    Broken,
}

impl LimitState {
    /// Returns the state as shown in the terminal.
    pub fn words(self) -> &'static str {
        match self {
            LimitState::Kept => "within the budget",
            LimitState::Broken => "over the budget",
            LimitState::Unmeasured => "could not measure",
        }
    }

    /// Returns the exit code of `oomph check`.
    pub fn exit_code(self) -> u8 {
        match self {
            LimitState::Kept => 0,
            LimitState::Broken => 1,
            LimitState::Unmeasured => 2,
        }
    }

    /// Returns the state as written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            LimitState::Kept => "kept",
            LimitState::Broken => "broken",
            LimitState::Unmeasured => "unmeasured",
        }
    }
}

/// Result of one limit on one device.
pub struct LimitResult {
    /// Name of the option without dashes.
    pub limit: &'static str,
    /// Measured number: bytes, a share, or a count of leaks.
    pub value: Option<f64>,
    /// Highest number allowed, in the same unit.
    pub allowed: Option<f64>,
    /// Summary for a limit that is kept.
    pub found: String,
    /// Ways in which the limit is broken.
    pub breaches: Vec<Breach>,
    /// Why the number could not be measured.
    pub unmeasured: Option<MeasurementGap>,
    /// Comparison with the baseline, for the limit `baseline`.
    pub comparison: Option<BaselineComparison>,
}

/// One way in which a limit is broken.
pub struct Breach {
    /// What is over the limit.
    pub message: String,
    /// The line to look at.
    pub site: Option<SiteName>,
    /// More detail, or what to change.
    pub advice: Option<String>,
}

impl LimitResult {
    /// Returns whether the limit is kept, broken or unmeasured.
    pub fn state(&self) -> LimitState {
        match (&self.breaches[..], &self.unmeasured) {
            ([_, ..], _) => LimitState::Broken,
            ([], Some(_)) => LimitState::Unmeasured,
            ([], None) => LimitState::Kept,
        }
    }

    /// Returns an empty result of a limit.
    pub fn new(limit: &'static str) -> LimitResult {
        LimitResult {
            limit,
            value: None,
            allowed: None,
            found: String::new(),
            breaches: Vec::new(),
            unmeasured: None,
            comparison: None,
        }
    }
}

/// Checks a device against every limit of a budget. Running out of memory breaks any budget.
pub(crate) fn judge(device: &Measured, budget: &Budget) -> Vec<LimitResult> {
    let asked = [
        out_of_memory(device),
        budget.max_peak.map(|limit| peak(device, limit)),
        budget.max_reserved.map(|limit| reserved(device, limit)),
        budget.no_leaks.then(|| leaks(device)),
        budget.max_growth.map(|limit| growth(device, limit)),
        budget.max_fragmentation.map(|limit| fragmentation(device, limit)),
    ];
    asked.into_iter().flatten().collect()
}

fn out_of_memory(device: &Measured) -> Option<LimitResult> {
    let oom = device.oom.as_ref()?;
    let breach = Breach {
        message: format!("ran out of memory on {}: {}", device.device_name, oom.summary),
        site: oom.site.clone(),
        advice: Some(format!("fix: {}", oom.fix)),
    };
    Some(LimitResult { breaches: vec![breach], ..LimitResult::new("out-of-memory") })
}

/// Compares a number of bytes with a limit.
fn bytes(limit: &'static str, what: &str, value: Bytes, allowed: u64, site: Option<SiteName>) -> LimitResult {
    let over = Bytes(value.0.saturating_sub(allowed));
    let message = format!("{what} {value} is {over} over the limit of {}", Bytes(allowed));
    let breach = (over > Bytes::ZERO).then_some(Breach { message, site, advice: None });
    LimitResult {
        value: Some(value.0 as f64),
        allowed: Some(allowed as f64),
        found: format!("{what} {value}, limit {}", Bytes(allowed)),
        breaches: breach.into_iter().collect(),
        ..LimitResult::new(limit)
    }
}

fn peak(device: &Measured, limit: u64) -> LimitResult {
    let largest = device.sites.first();
    let site = largest.and_then(|usage| usage.site.clone());
    let mut result = bytes("max-peak", "peak allocated", device.peak_allocated, limit, site);
    // A recorded peak over the limit breaks it, whatever was not recorded.
    result.unmeasured = device.peak_doubt.clone().filter(|_| result.breaches.is_empty());
    for breach in &mut result.breaches {
        breach.advice = largest.and_then(|usage| {
            let site = usage.site.as_ref()?;
            Some(format!("most of it is {} at {}  {}", usage.bytes, site.short(), printable(&site.function)))
        });
    }
    result
}

fn reserved(device: &Measured, limit: u64) -> LimitResult {
    match &device.replayed {
        Ok(replayed) => {
            let mut result = bytes("max-reserved", "peak reserved", replayed.reserved, limit, None);
            for breach in &mut result.breaches {
                let (allocated, lost) = (device.peak_allocated, percent(replayed.fragmentation));
                breach.advice =
                    Some(format!("{allocated} is allocated at the peak, {lost} is fragmentation"));
            }
            result
        }
        Err(why) => LimitResult { unmeasured: Some(why.clone()), ..LimitResult::new("max-reserved") },
    }
}

fn leaks(device: &Measured) -> LimitResult {
    let breaches: Vec<Breach> = device
        .leaks
        .iter()
        .map(|leak| {
            let at = leak.site.as_ref().map(|site| format!(" at {}", site.short())).unwrap_or_default();
            let message = format!("leak{at}: {}", leak.summary);
            Breach { message, site: leak.site.clone(), advice: Some(format!("fix: {}", leak.fix)) }
        })
        .collect();
    LimitResult {
        value: Some(breaches.len() as f64),
        allowed: Some(0.0),
        found: format!("no leak in {}", counted(device.steps as u64, "step")),
        unmeasured: device.growth.as_ref().err().cloned(),
        breaches,
        ..LimitResult::new("no-leaks")
    }
}

fn growth(device: &Measured, limit: u64) -> LimitResult {
    match &device.growth {
        Ok(growth) => {
            let worst = device.leaks.iter().max_by_key(|leak| leak.per_step);
            let site = worst.and_then(|leak| leak.site.clone());
            let mut result = bytes("max-growth", "growth per step", *growth, limit, site.clone());
            for breach in &mut result.breaches {
                let at = site.as_ref().map(|site| format!(" at {}", site.short())).unwrap_or_default();
                breach.advice = worst.map(|leak| format!("most of it is the leak{at}: {}", leak.summary));
            }
            result
        }
        Err(why) => LimitResult { unmeasured: Some(why.clone()), ..LimitResult::new("max-growth") },
    }
}

fn fragmentation(device: &Measured, limit: f64) -> LimitResult {
    match &device.replayed {
        Ok(replayed) => {
            let share = replayed.fragmentation;
            // Rounded to the limit itself, it would not look like more.
            let percent = match percent(share) {
                rounded if rounded == exact_percent(limit) => exact_percent(share),
                rounded => rounded,
            };
            let message = format!(
                "fragmentation {percent} of the {} reserved is over the limit of {}",
                replayed.reserved,
                exact_percent(limit)
            );
            let advice = "`oomph simulate --search` tries the allocator's settings".to_owned();
            let breach = (share > limit).then_some(Breach { message, site: None, advice: Some(advice) });
            LimitResult {
                value: Some(share),
                allowed: Some(limit),
                found: format!("fragmentation {percent}, limit {}", exact_percent(limit)),
                breaches: breach.into_iter().collect(),
                ..LimitResult::new("max-fragmentation")
            }
        }
        Err(why) => LimitResult { unmeasured: Some(why.clone()), ..LimitResult::new("max-fragmentation") },
    }
}

/// Returns a share with two decimals, such as `2.04%`, as users write limits.
pub(crate) fn exact_percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_keep_two_decimals() {
        assert_eq!([0.0, 0.0204, 0.1, 1.0].map(exact_percent), ["0%", "2.04%", "10%", "100%"]);
    }
}
