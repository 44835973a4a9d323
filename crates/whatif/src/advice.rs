//! What a search over settings recommends.

use crate::{Simulation, Trial};

/// A gain below this share is not worth a change of settings.
const MIN_GAIN: f64 = 0.02;

/// Recommendation of a search.
pub enum SearchAdvice<'a> {
    /// No settings make the run fit.
    NothingFits,
    /// No settings would have reserved noticeably less.
    Keep,
    /// Other settings are better than the recorded ones.
    Use {
        /// The best settings.
        best: &'a Trial,
        /// The recorded settings, if they were tried.
        recorded: Option<&'a Trial>,
        /// Settings that would have reserved far more.
        avoid: Option<&'a Trial>,
    },
}

impl<'a> SearchAdvice<'a> {
    /// Judges trials, the best of which is first.
    pub fn new(simulation: &Simulation<'_>, trials: &'a [Trial]) -> SearchAdvice<'a> {
        let Some(best) = trials.first().filter(|best| best.fits()) else { return SearchAdvice::NothingFits };
        let recorded = trials.iter().find(|trial| trial.conf == simulation.recorded_conf());
        let gain = recorded.map_or(0, |recorded| recorded.memory().saturating_sub(best.memory()));
        let is_worth_it = gain as f64 > recorded.map_or(0, Trial::memory) as f64 * MIN_GAIN;
        if !is_worth_it && recorded.is_none_or(Trial::fits) {
            return SearchAdvice::Keep;
        }
        let peak = simulation.device.history.reserved_peak.bytes.0;
        let fitting = trials.iter().filter(|trial| trial.fits());
        let worst = fitting.max_by_key(|trial| trial.outcome.peak_reserved);
        let avoid = worst.filter(|worst| worst.outcome.peak_reserved > peak + peak / 4);
        SearchAdvice::Use { best, recorded, avoid }
    }
}

/// Returns the line for the shell that sets these settings; none are an empty string.
pub fn export_line(conf: &str) -> String {
    if conf.is_empty() {
        return "unset PYTORCH_CUDA_ALLOC_CONF".to_owned();
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_:,.".contains(letter);
    let quoted = if conf.chars().all(is_plain) {
        conf.to_owned()
    } else {
        format!("'{}'", conf.replace('\'', r"'\''"))
    };
    format!("export PYTORCH_CUDA_ALLOC_CONF={quoted}")
}
