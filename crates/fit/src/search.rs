//! The search for the cheapest change that fits.

use crate::blocks;
use crate::change::ProgramChange;
use crate::technique::{CANDIDATES, Candidate, PeakShares, ResultChange, TimeCost, results, time_cost};
use analysis::{Category, Diagnosis};
use launch::{
    FitVerdict, Job, OutputFolder, Prediction, RunFolder, Variant, observe, predict, stop_signal,
    try_techniques,
};
use recording::ObservedProgram;
use snapshot::Bytes;
use std::collections::BTreeMap;

/// Most runs that a search makes after it has tried each technique alone.
const MAX_FURTHER_RUNS: usize = 24;
/// Savings below this share of the memory are not worth a change.
const MIN_SAVING: f64 = 0.005;
/// Most parts that a batch is divided into.
const MAX_PARTS: u64 = 64;

/// What to search for.
pub struct FitOptions {
    /// Techniques that may be used; empty for all.
    pub techniques: Vec<String>,
    /// Share of the GPU's memory that has to stay free.
    pub margin: f64,
}

/// Result of a search.
pub struct Fit {
    /// The program as it is.
    pub base: Prediction,
    /// Memory that the program may take.
    pub target: Bytes,
    /// Changes with which it fits, the best first.
    pub proposals: Vec<Proposal>,
    /// Techniques that were tried alone and are not enough, or could not be applied.
    pub insufficient: Vec<Insufficient>,
    /// Number of changes that were run.
    pub runs: usize,
}

/// A change with which the program fits.
pub struct Proposal {
    /// Techniques with their settings: `checkpoint:0-5`.
    pub techniques: Vec<String>,
    /// What each did in the program, in words.
    pub applied: Vec<String>,
    /// The program with them.
    pub prediction: Prediction,
    /// Memory that it takes less.
    pub saved: Bytes,
    /// What they do to the results.
    pub results: ResultChange,
    /// What they cost in time.
    pub time: TimeCost,
    /// How to write them into the program.
    pub change: ProgramChange,
}

/// A technique that does not make the program fit.
pub struct Insufficient {
    /// Its name.
    pub technique: String,
    /// What the program takes with it, or why it cannot be applied.
    pub outcome: Result<Bytes, String>,
}

impl Fit {
    /// Returns whether the program fits as it is.
    pub fn fits_already(&self) -> bool {
        is_enough(&self.base, self.target)
    }
}

/// Searches for the cheapest change with which a program fits on the job's emulated GPU.
pub fn fit(job: &Job, options: &FitOptions) -> anyhow::Result<Fit> {
    let job = &job.with_template();
    let base = predict(job, &RunFolder::new(OutputFolder::Temporary)?, true)?;
    let target = Bytes((base.memory as f64 * (1.0 - options.margin)) as u64);
    let mut found = Fit { base, target, proposals: Vec::new(), insufficient: Vec::new(), runs: 0 };
    // What grows from step to step fills any GPU, with every technique.
    if found.fits_already() || matches!(found.base.verdict, FitVerdict::FillsUp { .. }) {
        return Ok(found);
    }
    // Ctrl-C ends the search, and what it has found so far is its result.
    let program = observe(job).ok().flatten();
    let mut search = FitSearch {
        job,
        program: program.as_ref(),
        target,
        base: found.base.highest.total(),
        tried: BTreeMap::new(),
    };
    let shares = shares(&found.base);
    let is_wanted = |candidate: &&Candidate| match options.techniques.as_slice() {
        [] => candidate.is_worth_a_run(&shares, search.program),
        asked => asked.iter().any(|name| name == candidate.name),
    };
    let names: Vec<&str> = CANDIDATES.iter().filter(is_wanted).map(|candidate| candidate.name).collect();
    let (total, memory) = (search.base, Bytes(found.base.memory));
    (job.progress.say)(&format!("it takes {total} of {memory}; trying {}", names.join(", ")));
    search.run_all(&names.iter().map(|&name| vec![name.to_owned()]).collect::<Vec<_>>());

    let mut sets: Vec<Vec<String>> = Vec::new();
    for &name in &names {
        sets.extend(search.smallest(&[], name));
    }
    // Without a change of the results first, then with less and less concern for them.
    for allowed in [ResultChange::BatchStatistics, ResultChange::Rounding, ResultChange::Training] {
        if sets.iter().any(|set| results(set, search.program) <= allowed) {
            break;
        }
        let usable: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| results(&[(*name).to_owned()], search.program) <= allowed)
            .collect();
        sets.extend(search.combined(&usable));
    }

    found.runs = search.tried.len();
    for &name in &names {
        if !sets.iter().any(|set| set.len() == 1 && set[0].split(':').next() == Some(name)) {
            found.insufficient.extend(search.insufficient(name));
        }
    }
    let base = search.base;
    let mut proposals = Vec::new();
    for techniques in sets {
        let label = techniques.join("+");
        let Some(Variant { outcome: Ok(prediction), .. }) = search.tried.remove(&label) else { continue };
        let saved = base.saturating_sub(prediction.highest.total());
        let applied = prediction.techniques().values().cloned().collect();
        proposals.push(Proposal {
            applied,
            saved,
            results: results(&techniques, search.program),
            time: time_cost(&techniques, search.program, saved),
            change: ProgramChange::new(&techniques, search.program),
            prediction,
            techniques,
        });
    }
    // The best keeps the results as they are, if one does; the others are by their time.
    let by_time = |a: &Proposal, b: &Proposal| a.time.slowdown.total_cmp(&b.time.slowdown);
    proposals.sort_by(by_time);
    if let Some(best) = (0..proposals.len()).min_by_key(|&index| (proposals[index].results, index)) {
        let best = proposals.remove(best);
        proposals.insert(0, best);
    }
    found.proposals = proposals;
    Ok(found)
}

/// Returns whether a run fits, with what has to stay free.
fn is_enough(prediction: &Prediction, target: Bytes) -> bool {
    prediction.verdict.fits() && prediction.highest.total() <= target
}

/// Returns techniques with one more.
fn with(others: &[String], technique: String) -> Vec<String> {
    others.iter().cloned().chain([technique]).collect()
}

/// Returns what is in use at the peak, as shares.
fn shares(base: &Prediction) -> PeakShares {
    let devices = base.recording.devices();
    let device = devices.iter().find(|device| device.history.device == base.highest.device);
    let (allocated, reserved) =
        (base.highest.allocated.0.max(1) as f64, base.highest.reserved.0.max(1) as f64);
    let unused = 1.0 - allocated / reserved;
    let Some(device) = device else {
        return PeakShares { activations: 1.0, optimizer: 1.0, temporaries: 1.0, unused };
    };
    let Diagnosis { model, .. } = Diagnosis::new(device);
    let at_peak = model.categories.at(&device.history, device.history.allocated_peak.position);
    let share = |of: &[Category]| of.iter().map(|&of| at_peak.get(of).0 as f64).sum::<f64>() / allocated;
    PeakShares {
        activations: share(&[Category::Activation, Category::Temporary, Category::Input, Category::Unknown]),
        optimizer: share(&[Category::Optimizer]),
        temporaries: share(&[Category::Temporary, Category::Unknown]),
        unused,
    }
}

struct FitSearch<'a> {
    job: &'a Job,
    program: Option<&'a ObservedProgram>,
    target: Bytes,
    /// Memory that the program takes as it is.
    base: Bytes,
    /// Runs by their techniques, joined by `+`.
    tried: BTreeMap<String, Variant>,
}

impl FitSearch<'_> {
    fn run_all(&mut self, sets: &[Vec<String>]) {
        let labels: Vec<String> =
            sets.iter().map(|set| set.join("+")).filter(|label| !self.tried.contains_key(label)).collect();
        for variant in try_techniques(&labels, self.job) {
            self.tried.insert(variant.label.clone(), variant);
        }
    }

    /// Runs the program with techniques, unless it was run with them before. Returns whether there is a
    /// result: enough may have been run, or the user may have stopped the search.
    fn run(&mut self, set: &[String]) -> bool {
        let label = set.join("+");
        let can_run = self.tried.len() < CANDIDATES.len() + MAX_FURTHER_RUNS && stop_signal().is_none();
        if !self.tried.contains_key(&label) && can_run {
            (self.job.progress.say)(&format!("trying {label}"));
            self.run_all(&[set.to_vec()]);
        }
        self.tried.contains_key(&label)
    }

    fn total(&self, set: &[String]) -> Option<Bytes> {
        if set.is_empty() {
            return Some(self.base);
        }
        Some(self.prediction(set)?.highest.total())
    }

    fn is_enough(&self, set: &[String]) -> bool {
        self.prediction(set).is_some_and(|prediction| is_enough(prediction, self.target))
    }

    /// Returns the program with techniques, if it was run with all of them applied.
    fn prediction(&self, set: &[String]) -> Option<&Prediction> {
        self.tried.get(&set.join("+"))?.result().ok()
    }

    fn saving(&self, name: &str) -> Option<Bytes> {
        let total = self.total(&[name.to_owned()])?;
        let saved = self.base.saturating_sub(total);
        (saved.0 as f64 > MIN_SAVING * self.base.0 as f64).then_some(saved)
    }

    /// Returns the smallest use of a technique that is enough besides others: the fewest blocks, the fewest
    /// parts of a batch.
    fn smallest(&mut self, others: &[String], name: &str) -> Option<Vec<String>> {
        let whole = with(others, name.to_owned());
        if !self.run(&whole) || self.total(&whole).is_none() {
            return None;
        }
        match name {
            "checkpoint" if self.is_enough(&whole) => Some(self.fewest_blocks(others, &whole)),
            "accumulate" if !self.is_enough(&whole) => self.fewest_parts(others, &whole),
            _ => self.is_enough(&whole).then_some(whole),
        }
    }

    fn fewest_blocks(&mut self, others: &[String], whole: &[String]) -> Vec<String> {
        let Some(program) = self.program.filter(|program| program.blocks.len() > 1) else {
            return whole.to_vec();
        };
        let order = blocks::by_worth(&program.blocks);
        let (mut too_few, mut enough) = (0, order.len());
        let mut best = whole.to_vec();
        let (Some(mut above), Some(mut below)) = (self.total(others), self.total(whole)) else {
            return best;
        };
        while enough - too_few > (order.len() / 16).max(1) {
            // Each block saves about as much as the next.
            let share = (above.0 as f64 - self.target.0 as f64) / (above.0 as f64 - below.0 as f64).max(1.0);
            let guess = too_few + ((enough - too_few) as f64 * share.clamp(0.0, 1.0)).ceil() as usize;
            let count = guess.clamp(too_few + 1, enough - 1);
            let set = with(others, blocks::technique(&order[..count]));
            if !self.run(&set) {
                break;
            }
            let Some(total) = self.total(&set) else { break };
            if self.is_enough(&set) {
                (enough, below, best) = (count, total, set);
            } else {
                (too_few, above) = (count, total);
            }
        }
        best
    }

    fn fewest_parts(&mut self, others: &[String], whole: &[String]) -> Option<Vec<String>> {
        let batch = self.program.and_then(|of| of.lines.loader.iter().filter_map(|line| line.batch).max());
        let (Some(before), Some(halved)) = (self.total(others), self.total(whole)) else { return None };
        // Half of what depends on the batch is gone with half of the batch.
        let per_batch = 2.0 * (before.0 as f64 - halved.0 as f64);
        let fixed = before.0 as f64 - per_batch;
        if per_batch <= 0.0 || fixed >= self.target.0 as f64 {
            return None;
        }
        let mut parts = 4;
        while parts <= batch.unwrap_or(MAX_PARTS).min(MAX_PARTS) {
            let expected = fixed + per_batch / parts as f64;
            // An estimate: the run decides.
            if expected <= 1.2 * self.target.0 as f64 {
                let set = with(others, format!("accumulate:{parts}"));
                if !self.run(&set) {
                    return None;
                }
                if self.is_enough(&set) {
                    return Some(set);
                }
            }
            parts *= 2;
        }
        None
    }

    /// Adds techniques, the cheapest first, until all together are enough; then leaves out what is needless.
    fn combined(&mut self, names: &[&str]) -> Option<Vec<String>> {
        let mut useful: Vec<&str> =
            names.iter().copied().filter(|name| self.saving(name).is_some()).collect();
        // Two ways to the same end.
        if useful.contains(&"fused") {
            useful.retain(|&name| name != "foreach-off");
        }
        if useful.contains(&"bf16") {
            useful.retain(|&name| name != "amp");
        }
        let mut set: Vec<String> = Vec::new();
        for (index, &name) in useful.iter().enumerate() {
            let is_last = index + 1 == useful.len();
            let others = set.clone();
            set.push(name.to_owned());
            let expected =
                set.iter().filter_map(|name| self.saving(name)).map(|saved| saved.0 as f64).sum::<f64>();
            let can_be_enough = self.base.0 as f64 - expected <= 1.1 * self.target.0 as f64;
            if set.len() < 2 || !(can_be_enough || is_last) {
                continue;
            }
            if let Some(found) = self.smallest(&others, name) {
                let found = self.without_the_needless(found);
                return Some(self.with_fewest_blocks(found));
            }
        }
        None
    }

    /// Leaves out techniques without which the others are enough, the most expensive first.
    fn without_the_needless(&mut self, mut set: Vec<String>) -> Vec<String> {
        for technique in set.clone().iter().rev().skip(1) {
            if set.len() < 3 {
                break;
            }
            let fewer: Vec<String> = set.iter().filter(|of| *of != technique).cloned().collect();
            if self.run(&fewer) && self.is_enough(&fewer) {
                set = fewer;
            }
        }
        set
    }

    /// Checkpoints no more blocks than are needed besides the other techniques.
    fn with_fewest_blocks(&mut self, set: Vec<String>) -> Vec<String> {
        const ALL_BLOCKS: &str = "checkpoint";
        let others: Vec<String> = set.iter().filter(|technique| *technique != ALL_BLOCKS).cloned().collect();
        if others.len() == set.len() || !self.run(&others) {
            return set;
        }
        let whole = with(&others, ALL_BLOCKS.to_owned());
        match self.run(&whole) && self.is_enough(&whole) {
            true => self.fewest_blocks(&others, &whole),
            false => set,
        }
    }

    fn insufficient(&self, name: &str) -> Option<Insufficient> {
        let outcome = self.tried.get(name)?.result().map(|prediction| prediction.highest.total());
        Some(Insufficient { technique: name.to_owned(), outcome })
    }
}
