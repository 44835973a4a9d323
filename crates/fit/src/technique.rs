//! The techniques that a search may choose from, and what each costs.

use crate::blocks::recomputed_share;
use recording::ObservedProgram;
use snapshot::Bytes;

/// What a change does to the results of the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ResultChange {
    /// The same computation.
    None,
    /// Batch statistics are of smaller batches.
    BatchStatistics,
    /// Forward passes compute in bfloat16.
    Rounding,
    /// Weights and updates are in bfloat16, or another optimizer makes them.
    Training,
}

impl ResultChange {
    /// Returns the change in words.
    pub fn words(self) -> &'static str {
        match self {
            ResultChange::None => "same results",
            ResultChange::BatchStatistics => "same results, except for layers that use batch statistics",
            ResultChange::Rounding => "forward passes round to bfloat16",
            ResultChange::Training => "trains differently: check the loss",
        }
    }

    /// Returns the name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            ResultChange::None => "none",
            ResultChange::BatchStatistics => "batch_statistics",
            ResultChange::Rounding => "rounding",
            ResultChange::Training => "training",
        }
    }
}

/// Expected cost of a change in time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TimeCost {
    /// Expected share by which steps take longer; negative if they are faster. Orders proposals.
    pub slowdown: f64,
    /// What it is made of, in words.
    pub words: Vec<String>,
}

/// What a technique can save, as shares of what is in use at the peak.
pub(crate) struct PeakShares {
    pub(crate) activations: f64,
    pub(crate) optimizer: f64,
    pub(crate) temporaries: f64,
    /// Share of reserved memory that is not allocated at the peak.
    pub(crate) unused: f64,
}

/// A technique of `launch`, as the search sees it.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) results: ResultChange,
    /// Share by which steps of ResNet-50 and GPT-2 small take longer on an H200, on average.
    slowdown: f64,
    /// Whether it can save anything in a program with such a peak.
    can_help: fn(&PeakShares, Option<&ObservedProgram>) -> bool,
}

/// Shares of the peak below which a technique that acts on them is not tried.
const MIN_SHARE: f64 = 0.03;

/// Cheapest first.
pub(crate) const CANDIDATES: &[Candidate] = &[
    Candidate {
        name: "expandable",
        results: ResultChange::None,
        slowdown: 0.0,
        can_help: |of, _| of.unused > MIN_SHARE,
    },
    Candidate {
        name: "set-to-none",
        results: ResultChange::None,
        slowdown: 0.0,
        can_help: |_, program| program.is_some_and(|program| program.has_zeroed_gradients),
    },
    Candidate {
        name: "fused",
        results: ResultChange::None,
        slowdown: 0.0,
        can_help: |of, _| of.temporaries + of.optimizer > MIN_SHARE,
    },
    Candidate {
        name: "foreach-off",
        results: ResultChange::None,
        slowdown: 0.2,
        can_help: |of, _| of.temporaries + of.optimizer > MIN_SHARE,
    },
    Candidate {
        name: "checkpoint",
        results: ResultChange::None,
        slowdown: 0.33,
        can_help: |of, _| of.activations > MIN_SHARE,
    },
    Candidate {
        name: "accumulate",
        results: ResultChange::BatchStatistics,
        slowdown: 0.15,
        can_help: |of, _| of.activations > MIN_SHARE,
    },
    Candidate {
        name: "amp",
        results: ResultChange::Rounding,
        slowdown: -0.3,
        can_help: |of, _| of.activations > MIN_SHARE,
    },
    Candidate {
        name: "adafactor",
        results: ResultChange::Training,
        slowdown: 0.05,
        can_help: |of, _| of.optimizer > MIN_SHARE,
    },
    Candidate { name: "bf16", results: ResultChange::Training, slowdown: -0.4, can_help: |_, _| true },
    Candidate {
        name: "offload",
        results: ResultChange::None,
        slowdown: 3.0,
        can_help: |of, _| of.activations > MIN_SHARE,
    },
];

/// Returns the candidate of a technique with or without a setting: `accumulate:4`.
pub(crate) fn candidate(technique: &str) -> Option<&'static Candidate> {
    let name = technique.split(':').next().unwrap_or_default();
    CANDIDATES.iter().find(|candidate| candidate.name == name)
}

impl Candidate {
    pub(crate) fn is_worth_a_run(&self, shares: &PeakShares, program: Option<&ObservedProgram>) -> bool {
        (self.can_help)(shares, program)
    }
}

/// Returns what all these techniques do to the results.
pub(crate) fn results(techniques: &[String], program: Option<&ObservedProgram>) -> ResultChange {
    let has_batch_statistics = program.is_none_or(|program| program.has_batch_statistics);
    let each =
        techniques.iter().filter_map(|name| candidate(name)).map(|candidate| match candidate.results {
            ResultChange::BatchStatistics if !has_batch_statistics => ResultChange::None,
            results => results,
        });
    each.max().unwrap_or(ResultChange::None)
}

/// Returns the expected cost of these techniques together.
pub(crate) fn time_cost(
    techniques: &[String],
    program: Option<&ObservedProgram>,
    saved_by_offload: Bytes,
) -> TimeCost {
    let mut cost = TimeCost::default();
    for technique in techniques {
        let (name, setting) = technique.split_once(':').unwrap_or((technique, ""));
        let Some(candidate) = candidate(name) else { continue };
        let (slowdown, words) = match name {
            "checkpoint" => {
                let share = program.map_or(1.0, |program| recomputed_share(program, setting));
                // A backward pass computes twice as much as a forward pass.
                let more = share / 3.0;
                let words = format!(
                    "computes {:.0}% of the forward pass twice: about {:.0}% more FLOPs",
                    100.0 * share,
                    100.0 * more
                );
                (more, Some(words))
            }
            "accumulate" => {
                let parts: f64 = setting.parse().unwrap_or(2.0);
                let words = format!("{parts:.0} smaller batches for each step");
                (candidate.slowdown * parts.log2(), Some(words))
            }
            "offload" => {
                let words = format!("copies about {saved_by_offload} to the host and back in each step");
                (candidate.slowdown, Some(words))
            }
            _ => {
                let measured = launch::technique_cost(name).filter(|cost| cost.starts_with("step time"));
                let words = |cost: &str| format!("{cost} (ResNet-50 and GPT-2 small on an H200)");
                (candidate.slowdown, measured.map(words))
            }
        };
        cost.slowdown += slowdown;
        cost.words.extend(words);
    }
    cost
}
