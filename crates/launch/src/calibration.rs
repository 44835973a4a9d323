//! How far predictions of public programs were off, by what was modeled in them.
//!
//! The programs and their peaks on an H200 are in `bench/results/2026-11-19-predict-again.md`.

use crate::Notes;
use allocator::PeakRanges;

/// Real peaks of programs of one kind, relative to the predicted ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Calibration {
    /// What was modeled, in words.
    modeled: &'static str,
    /// Number of programs that were compared.
    programs: u32,
    /// Number of these whose real peaks both are in the range.
    covered: u32,
    /// Lowest and highest real peak of allocated memory, divided by the predicted one.
    allocated: (f64, f64),
    /// The same for reserved memory.
    reserved: (f64, f64),
}

/// cuDNN tries its engines and keeps the fastest.
const AUTOTUNING: Calibration = Calibration {
    modeled: "autotuned convolutions",
    programs: 31,
    covered: 31,
    allocated: (0.93, 1.10),
    reserved: (0.92, 1.30),
};

/// cuDNN's heuristics choose an engine.
const CONVOLUTIONS: Calibration = Calibration {
    modeled: "modeled convolutions",
    programs: 110,
    covered: 108,
    allocated: (0.99, 1.03),
    reserved: (0.98, 1.07),
};

impl Calibration {
    /// The calibration for what a run has modeled, if that was compared.
    pub(crate) fn of(notes: &Notes) -> Option<Calibration> {
        let has = |word: &str| notes.modeled.iter().any(|what| what.contains(word));
        match () {
            () if has("cuDNN autotuning") => Some(AUTOTUNING),
            () if has("convolution") => Some(CONVOLUTIONS),
            () => None,
        }
    }

    /// Ranges that contain the peaks that such programs had.
    pub(crate) fn widen(self, ranges: PeakRanges) -> PeakRanges {
        let wider = |(low, high): (u64, u64), (least, most): (f64, f64)| {
            ((low as f64 * least) as u64, (high as f64 * most) as u64)
        };
        PeakRanges {
            allocated: wider(ranges.allocated, self.allocated),
            reserved: wider(ranges.reserved, self.reserved),
            ..ranges
        }
    }

    /// The ranges in words, as a reason why a real run may differ.
    pub(crate) fn doubt(self) -> String {
        let percent = |(least, most): (f64, f64)| {
            format!("{:.0}% less to {:.0}% more", (1.0 - least) * 100.0, (most - 1.0) * 100.0)
        };
        format!(
            "{}: {} of {} public programs had real peaks from {} allocated and {} reserved",
            self.modeled,
            self.covered,
            self.programs,
            percent(self.allocated),
            percent(self.reserved),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(modeled: &[&str]) -> Notes {
        Notes { modeled: modeled.iter().map(|what| (*what).to_owned()).collect(), ..Notes::default() }
    }

    #[test]
    fn autotuning_is_less_certain_than_heuristics() {
        let heuristics = notes(&["cuDNN's choice among its engines for convolutions"]);
        assert_eq!(Calibration::of(&heuristics), Some(CONVOLUTIONS));
        let autotuning = notes(&["cuDNN convolution workspaces", "cuDNN autotuning: the first is taken"]);
        assert_eq!(Calibration::of(&autotuning), Some(AUTOTUNING));
        assert_eq!(Calibration::of(&notes(&["cuFFT workspace"])), None);
    }

    #[test]
    fn ranges_over_addresses_are_widened() {
        let ranges = PeakRanges { allocated: (1000, 1000), reserved: (2000, 2200), may_fail: false };
        let widened = CONVOLUTIONS.widen(ranges);
        assert!(widened.allocated.0 < 1000 && widened.allocated.1 > 1000);
        assert!(widened.reserved.0 < 2000 && widened.reserved.1 > 2200);
        assert!(!widened.may_fail);
    }
}
