//! Steps that need more and more, although each frees what it has allocated: inputs that grow, a longer
//! context, packed sequences.

use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::{NamedSite, SiteBytes};
use super::room::Room;
use super::spike;
use crate::run::growth::{MAX_COMPARED, MIN_AGREEMENT, agreement};
use crate::run::model::RunModel;
use crate::trace::modules::ModuleId;
use crate::words::{grouped, listed, percent, share};
use recording::Label;
use snapshot::{Bytes, FrameId};

/// Fewest steps that show a trend, after the first ones, in which optimizers and libraries set up.
const MIN_STEPS: usize = 8;
const SKIPPED_STEPS: usize = 2;
/// Share of the peak, and bytes, by which the steps have to rise in all.
const MIN_RISE_SHARE: f64 = 0.05;
const MIN_RISE: Bytes = Bytes(8 << 20);
/// Steps until the memory is full below which it matters.
const MEDIUM_STEPS_LEFT: f64 = 10_000.0;
/// Times what stays of a step that the rest of it has to rise by, and share of other lines in that, for the
/// whole step to grow: `torch.cat` in a loop needs the older part once more, at the same line.
const MIN_TIMES_OF_OUTPUT: f64 = 1.5;
const MIN_SHARE_OF_OTHERS: f64 = 0.4;
/// Lines that are named.
const MAX_LINES: usize = 3;

/// Peaks that rise from step to step, in numbers.
pub(super) struct RisingPeakFacts {
    severity: Severity,
    /// Bytes per step.
    pace: f64,
    first: Bytes,
    last: Bytes,
    /// Steps over which they rise, and the number of the first of them, from 0.
    steps: usize,
    since: usize,
    room: Room,
    /// Steps until that is full.
    steps_left: f64,
    /// What the last of these steps holds beyond the first, largest first.
    lines: Vec<SiteBytes>,
    module: Option<ModuleId>,
    event: usize,
    /// Whether the inputs of the model grow too, where a recorder saw them.
    do_inputs_grow: Option<bool>,
}

impl RisingPeakFacts {
    /// Whether steps work on larger inputs, so that what they leave at `line`, `pace` bytes more each time,
    /// is only their output. Where inputs are not known: whether other lines need far more too.
    pub(super) fn exceeds(&self, pace: f64, line: Option<FrameId>) -> bool {
        if let Some(do_inputs_grow) = self.do_inputs_grow {
            return do_inputs_grow;
        }
        let all: Bytes = self.lines.iter().map(|line| line.bytes).sum();
        let others: Bytes =
            self.lines.iter().filter(|other| other.line.frame != line).map(|other| other.bytes).sum();
        self.pace >= MIN_TIMES_OF_OUTPUT * pace && share(others, all) >= MIN_SHARE_OF_OTHERS
    }
}

/// The facts, if the peaks of the steps rise throughout. `retained` is what leaks had retained at each bound
/// of the steps: their growth is not counted here.
pub(super) fn measure(model: &RunModel<'_>, retained: &[u64]) -> Option<RisingPeakFacts> {
    // What follows the loop may need less, or more, for another reason.
    let peaks = &model.step_peaks.main[..model.device.steps.main_count().min(model.step_peaks.main.len())];
    let at = |bound: usize| retained.get(bound).or(retained.last()).copied().unwrap_or(0);
    let after_setup = peaks.iter().skip(SKIPPED_STEPS);
    let needs: Vec<f64> =
        after_setup.map(|step| step.peak.bytes.0.saturating_sub(at(step.bound)) as f64).collect();
    if needs.len() < MIN_STEPS {
        return None;
    }
    let sampled: Vec<f64> = needs.iter().copied().step_by(needs.len().div_ceil(MAX_COMPARED)).collect();
    let pace = slope(&needs);
    let rise = pace * (needs.len() - 1) as f64;
    let highest = needs.iter().copied().fold(0.0, f64::max);
    let is_large = rise >= MIN_RISE.0 as f64 && rise >= MIN_RISE_SHARE * highest;
    if !is_large || agreement(&sampled) < MIN_AGREEMENT {
        return None;
    }
    let (first, last) = (peaks[SKIPPED_STEPS].peak, peaks[peaks.len() - 1].peak);
    let lines = spike::lines_beyond(model, last.position, first.position);
    let site = lines.iter().find_map(|line| line.line.frame);
    let room = Room::of(model, Bytes::ZERO);
    let steps_left = room.size.saturating_sub(model.device.history.reserved_peak.bytes).0 as f64 / pace;
    Some(RisingPeakFacts {
        severity: if steps_left < MEDIUM_STEPS_LEFT { Severity::Medium } else { Severity::Low },
        pace,
        first: first.bytes,
        last: last.bytes,
        steps: needs.len(),
        since: SKIPPED_STEPS,
        steps_left,
        room,
        module: model.module_at(last.position, site),
        do_inputs_grow: do_inputs_grow(model),
        lines,
        event: last.position.saturating_sub(1),
    })
}

/// Whether the inputs of late steps are larger than those of early ones; `None` where no recorder saw them.
fn do_inputs_grow(model: &RunModel<'_>) -> Option<bool> {
    let (history, main) = (&model.device.history, &model.device.steps.main);
    let input_bytes = |step: &[usize]| -> f64 {
        let rows = history.first_allocated_from(step[0])..history.first_allocated_from(step[1]);
        let is_input =
            |row: &usize| model.device.tensor_of(*row).is_some_and(|tensor| tensor.label == Label::Input);
        rows.filter(is_input).map(|row| history.allocations[row].requested.0 as f64).sum()
    };
    let inputs: Vec<f64> = main.windows(2).map(input_bytes).filter(|&bytes| bytes > 0.0).collect();
    if inputs.len() < MIN_STEPS {
        return None;
    }
    let highest = inputs.iter().copied().fold(0.0, f64::max);
    Some(slope(&inputs) * (inputs.len() - 1) as f64 >= MIN_RISE_SHARE * highest)
}

/// Bytes per step: the difference of the medians of the last and the first third.
fn slope(needs: &[f64]) -> f64 {
    let third = needs.len() / 3;
    let median = |part: &[f64]| {
        let mut sorted = part.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    (median(&needs[needs.len() - third..]) - median(&needs[..third])) / (needs.len() - third) as f64
}

/// The finding in words.
pub(super) fn describe(facts: &RisingPeakFacts) -> Finding {
    let RisingPeakFacts { first, last, room, .. } = facts;
    let pace = Bytes(facts.pace.round() as u64);
    let named: Vec<String> = facts.lines.iter().take(MAX_LINES).map(SiteBytes::words).collect();
    let line = facts.lines.iter().map(|line| &line.line).find(|line| line.frame.is_some());
    let when = if facts.steps_left < 1e6 {
        format!("at this rate {} is full after {} more steps", room.name, grouped(facts.steps_left as u64))
    } else {
        format!("at this rate {} fills up after more than a million steps", room.name)
    };
    let mut details = vec![when.clone()];
    if !named.is_empty() {
        details.push(format!("what the last step holds beyond the first comes from {}", listed(&named)));
    }
    let times = percent(last.0 as f64 / first.0.max(1) as f64 - 1.0);
    let lines = facts.lines.iter().take(8).map(|line| EvidenceValue::Record(line.evidence())).collect();
    Finding {
        bytes_per_step: Some(pace),
        steps_until_full: Some(facts.steps_left as u64),
        count: facts.steps as u64,
        site: line.and_then(|line| line.frame),
        module: facts.module,
        details,
        fix: fix(facts.do_inputs_grow, line.map_or("the program", |line: &NamedSite| line.or("the program"))),
        evidence: vec![
            ("event", EvidenceValue::Count(facts.event as u64)),
            ("since_step", EvidenceValue::Count(facts.since as u64)),
            ("first_peak", EvidenceValue::Bytes(*first)),
            ("last_peak", EvidenceValue::Bytes(*last)),
            ("card_bytes", EvidenceValue::Bytes(room.size)),
            ("steps_until_full", EvidenceValue::Count(facts.steps_left as u64)),
            ("lines", EvidenceValue::List(lines)),
        ],
        ..Finding::new(
            FindingKind::RisingPeak,
            facts.severity,
            when,
            format!(
                "each step needs {pace} more than the one before: {first} in step {}, {last} in the last \
                 ({times} more)",
                facts.since + 1
            ),
            last.saturating_sub(*first),
        )
    }
}

fn fix(do_inputs_grow: Option<bool>, line: &str) -> String {
    match do_inputs_grow {
        Some(false) => format!(
            "{line} works on more each time although the inputs stay the same size: look for a buffer, a \
             cache or a list that it reads and that grows"
        ),
        _ => format!(
            "{line} works on more each time: limit the length of the inputs, or plan for the largest one"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_steady_order_agrees_with_the_steps() {
        let rising: Vec<f64> = (0..20).map(f64::from).collect();
        assert_eq!(agreement(&rising), 1.0);
        assert_eq!(agreement(&[1.0; 9]), 0.0);
        let sawtooth: Vec<f64> = (0..30).map(|step| f64::from(step % 5)).collect();
        assert!(agreement(&sawtooth) < 0.3);
        assert_eq!(slope(&rising), 1.0);
    }
}
