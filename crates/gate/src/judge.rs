//! One device against the budget.

use crate::Budget;
use crate::compare::BaselineComparison;
use crate::measure::{Measured, MeasurementGap};
use analysis::SiteName;
use analysis::words::{counted, percent, printable};
use snapshot::Bytes;

/// How a limit came out; what comes later counts for more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LimitState {
    Kept,
    Unmeasured,
    Broken,
}

impl LimitState {
    pub fn words(self) -> &'static str {
        match self {
            LimitState::Kept => "within the budget",
            LimitState::Broken => "over the budget",
            LimitState::Unmeasured => "could not measure",
        }
    }

    /// The exit code: what is certainly broken counts for more than what could not be measured.
    pub fn exit_code(self) -> u8 {
        match self {
            LimitState::Kept => 0,
            LimitState::Broken => 1,
            LimitState::Unmeasured => 2,
        }
    }

    /// Its word in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            LimitState::Kept => "kept",
            LimitState::Broken => "broken",
            LimitState::Unmeasured => "unmeasured",
        }
    }
}

/// One limit on one device.
pub struct LimitResult {
    /// The option without its dashes.
    pub limit: &'static str,
    /// What was measured, and what it may be: bytes, a share, or a number of leaks.
    pub value: Option<f64>,
    pub allowed: Option<f64>,
    /// What holds, in a few words.
    pub found: String,
    pub breaches: Vec<Breach>,
    pub unmeasured: Option<MeasurementGap>,
    /// For the baseline.
    pub comparison: Option<BaselineComparison>,
}

/// One way in which a limit is broken.
pub struct Breach {
    pub message: String,
    /// The line to look at.
    pub place: Option<SiteName>,
    /// What else to know, and what to change.
    pub advice: Option<String>,
}

impl LimitResult {
    pub fn state(&self) -> LimitState {
        match (&self.breaches[..], &self.unmeasured) {
            ([_, ..], _) => LimitState::Broken,
            ([], Some(_)) => LimitState::Unmeasured,
            ([], None) => LimitState::Kept,
        }
    }

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

/// Holds a device against every limit that was given. That it ran out of memory breaks any budget.
pub(crate) fn judge(device: &Measured, budget: &Budget) -> Vec<LimitResult> {
    let asked = [
        shortage(device),
        budget.max_peak.map(|limit| peak(device, limit)),
        budget.max_reserved.map(|limit| reserved(device, limit)),
        budget.no_leaks.then(|| leaks(device)),
        budget.max_growth.map(|limit| growth(device, limit)),
        budget.max_fragmentation.map(|limit| fragmentation(device, limit)),
    ];
    asked.into_iter().flatten().collect()
}

fn shortage(device: &Measured) -> Option<LimitResult> {
    let shortage = device.shortage.as_ref()?;
    let breach = Breach {
        message: format!("ran out of memory on {}: {}", device.device_name, shortage.summary),
        place: shortage.place.clone(),
        advice: Some(format!("fix: {}", shortage.fix)),
    };
    Some(LimitResult { breaches: vec![breach], ..LimitResult::new("out-of-memory") })
}

/// Bytes against a limit, in the same words for each kind.
fn bytes(
    limit: &'static str,
    what: &str,
    value: Bytes,
    allowed: u64,
    place: Option<SiteName>,
) -> LimitResult {
    let over = Bytes(value.0.saturating_sub(allowed));
    let message = format!("{what} {value} is {over} over the limit of {}", Bytes(allowed));
    let breach = (over > Bytes::ZERO).then_some(Breach { message, place, advice: None });
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
    let place = largest.and_then(|site| site.place.clone());
    let mut result = bytes("max-peak", "peak allocated", device.peak_allocated, limit, place);
    // What was seen is too much already, whatever was not seen.
    result.unmeasured = device.peak_doubt.clone().filter(|_| result.breaches.is_empty());
    for breach in &mut result.breaches {
        breach.advice = largest.and_then(|site| {
            let place = site.place.as_ref()?;
            Some(format!("most of it is {} at {}  {}", site.bytes, place.short(), printable(&place.function)))
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
                    Some(format!("{allocated} are allocated at the peak, {lost} is fragmentation"));
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
            let place = leak.place.as_ref().map(|place| format!(" at {}", place.short())).unwrap_or_default();
            let message = format!("leak{place}: {}", leak.summary);
            Breach { message, place: leak.place.clone(), advice: Some(format!("fix: {}", leak.fix)) }
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
            let place = worst.and_then(|leak| leak.place.clone());
            let mut result = bytes("max-growth", "growth every step", *growth, limit, place.clone());
            for breach in &mut result.breaches {
                let at = place.as_ref().map(|place| format!(" at {}", place.short())).unwrap_or_default();
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
            let (share, words) = (replayed.fragmentation, exact(replayed.fragmentation));
            let message = format!(
                "fragmentation {words} of the {} reserved is over the limit of {}",
                replayed.reserved,
                exact(limit)
            );
            let advice = "`oomph simulate --search` tries the allocator's settings".to_owned();
            let breach = (share > limit).then_some(Breach { message, place: None, advice: Some(advice) });
            LimitResult {
                value: Some(share),
                allowed: Some(limit),
                found: format!("fragmentation {words}, limit {}", exact(limit)),
                breaches: breach.into_iter().collect(),
                ..LimitResult::new("max-fragmentation")
            }
        }
        Err(why) => LimitResult { unmeasured: Some(why.clone()), ..LimitResult::new("max-fragmentation") },
    }
}

/// `2.04 %`: next to a limit a rounded share would look like the limit itself.
pub(crate) fn exact(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_show_what_sets_them_apart_from_a_limit() {
        assert_eq!([0.0, 0.0204, 0.1, 1.0].map(exact), ["0 %", "2.04 %", "10 %", "100 %"]);
    }
}
