//! A peak that only a few steps reach.

use super::evaluation::{self, EvaluationWithGraph};
use super::finding::{EvidenceValue, Finding, FindingKind, Severity};
use super::line::{NamedSite, SiteBytes};
use crate::run::categories::Category;
use crate::run::model::RunModel;
use crate::run::step_peaks::{MainStep, MemoryPeak};
use crate::trace::modules::ModuleId;
use crate::words::{counted, listed, percent, share};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Action, Bytes, FrameId};
use std::ops::Range;

/// Fewest steps from which a usual one can be derived.
const MIN_STEPS: usize = 4;
/// A peak has to be this many times what a step usually needs.
const MIN_TIMES: f64 = 1.2;
const MEDIUM_TIMES: f64 = 1.5;
const HIGH_TIMES: f64 = 3.0;
/// Bytes by which it has to be higher.
const MIN_EXTRA: Bytes = Bytes(32 << 20);
/// Upper bound, for runs whose usual step needs next to nothing.
const MAX_TIMES: f64 = 1000.0;
/// At most this share of the steps may come near the peak; otherwise it is usual.
const MAX_SHARE_OF_STEPS: f64 = 0.34;
/// Share of the difference that decides what the spike is made of.
const MIN_SHARE_OF_DIFFERENCE: f64 = 0.6;
/// Minimum number of blocks of one line that count as collected results.
const MIN_COLLECTED_BLOCKS: u64 = 8;
/// Minimum share of the difference that these blocks hold.
const MIN_COLLECTED_SHARE: f64 = 0.25;
/// Minimum share of their bytes that one module or call allocates.
const MIN_SHARE_OF_ONE_ORIGIN: f64 = 0.8;
/// Maximum number of allocations while collected results are freed, per result: blocks of a graph are freed
/// between the allocations of gradients.
const MAX_ALLOCATIONS_BETWEEN_FREES: f64 = 0.25;
/// Lines that are named.
const MAX_LINES: usize = 3;

/// A peak that stands out, in numbers.
pub(super) struct SpikeFacts {
    severity: Severity,
    spike: Spike,
    /// Steps in all.
    of_steps: usize,
    /// What the peak holds beyond a usual step, largest first; at least one line.
    lines: Vec<SiteBytes>,
    /// The first of these lines that is known.
    line: NamedSite,
    module: Option<ModuleId>,
    /// Where the user's own code enters the calls that lead to it, if that is another line.
    called_from: Option<NamedSite>,
    /// The events during which more than half of the extra memory is held, and their microseconds.
    lasts: Range<usize>,
    lasts_us: u64,
    made_of: MadeOf,
    /// The evaluation whose graphs are most of it.
    evaluation: Option<EvaluationWithGraph>,
    is_cpu: bool,
}

/// The highest step against the usual one.
struct Spike {
    peak: MemoryPeak,
    /// What the run would need without it.
    usual: Bytes,
    extra: Bytes,
    times: f64,
    /// The steps that come near it.
    steps: Vec<usize>,
    in_setup: bool,
    /// A step that needs what is usual.
    typical: usize,
}

/// What decides the advice.
enum MadeOf {
    /// Blocks of the sizes of parameters and optimizer state.
    CopyOfModel,
    /// Something that happens before the first step.
    Setup,
    /// A line that every step runs.
    UsualLine,
    /// Results that are kept until the peak, and are then freed together or never.
    Collected { line: NamedSite, results: u64 },
    /// A line that only these steps run.
    OwnLine,
}

/// The facts, if the peak stands out. `retained` is what leaks had retained at each bound of the steps.
pub(super) fn measure(model: &RunModel<'_>, retained: &[u64]) -> Option<SpikeFacts> {
    let spike = spike(model, retained)?;
    let difference =
        difference(model, spike.peak.position, model.step_peaks.main[spike.typical].peak.position);
    let is_trials = difference.workspace.0 as f64 > MIN_SHARE_OF_DIFFERENCE * spike.extra.0 as f64
        && !model.cudnn_trials().is_empty();
    if is_trials || difference.lines.is_empty() {
        return None;
    }
    let site = difference.lines.iter().find_map(|line| line.line.frame);
    let lasts = duration(model, &spike);
    let evaluation = evaluation::measure(model, spike.peak.position, Bytes(spike.extra.0 / 2));
    let made_of = if is_copy(model, &spike, site) {
        MadeOf::CopyOfModel
    } else if spike.steps.is_empty() {
        MadeOf::Setup
    } else if evaluation.is_none()
        && let Some(results) = difference.lines.iter().find_map(|line| collected(model, &spike, line))
    {
        results
    } else if difference.is_usual_line {
        MadeOf::UsualLine
    } else {
        MadeOf::OwnLine
    };
    Some(SpikeFacts {
        severity: match spike.times {
            times if times >= HIGH_TIMES && !spike.steps.is_empty() => Severity::High,
            times if times >= MEDIUM_TIMES => Severity::Medium,
            _ => Severity::Low,
        },
        of_steps: model.device.steps.main_count(),
        lines: difference.lines,
        line: NamedSite::new(model, site),
        module: model.module_at(spike.peak.position, site),
        called_from: caller(model, &spike, site).map(|frame| NamedSite::new(model, Some(frame))),
        lasts_us: model.elapsed_us(lasts.start, lasts.end),
        lasts,
        made_of,
        evaluation,
        is_cpu: model.device.is_cpu(),
        spike,
    })
}

fn spike(model: &RunModel<'_>, retained: &[u64]) -> Option<Spike> {
    let peaks = &model.step_peaks;
    if peaks.main.len() < MIN_STEPS {
        return None;
    }
    let at = |bound: usize| retained.get(bound).or(retained.last()).copied().unwrap_or(0);
    // What leaks have retained by the end of the first step is part of its peak.
    let retained_in = |step: &MainStep| if step.bound == 0 { at(1) } else { at(step.bound) };
    let highs: Vec<u64> =
        peaks.main.iter().map(|step| step.peak.bytes.0.saturating_sub(retained_in(step))).collect();
    let mut sorted = highs.clone();
    sorted.sort_unstable();
    let usual = sorted[sorted.len() / 2];
    let highest = highs.iter().copied().max().unwrap_or(0).max(peaks.setup.bytes.0);
    let times = (highest as f64 / usual.max(1) as f64).min(MAX_TIMES);
    let extra = Bytes(highest - usual.min(highest));
    if times < MIN_TIMES || extra < MIN_EXTRA {
        return None;
    }
    let near = usual + extra.0 / 2;
    let steps: Vec<usize> = (0..highs.len()).filter(|&step| highs[step] > near).collect();
    let is_level = steps.last() == Some(&(highs.len() - 1))
        && steps.windows(2).all(|pair| pair[1] == pair[0] + 1)
        && steps.len() > 1;
    if steps.len() as f64 > MAX_SHARE_OF_STEPS * highs.len() as f64 || is_level {
        return None;
    }
    let top = (0..highs.len()).max_by_key(|&step| (highs[step], std::cmp::Reverse(step))).unwrap_or(0);
    let in_steps = highs[top] >= peaks.setup.bytes.0;
    let peak = if in_steps { peaks.main[top].peak } else { peaks.setup };
    Some(Spike {
        peak,
        // What leaks had retained by then would be there without the spike.
        usual: peak.bytes.saturating_sub(extra),
        extra,
        times,
        steps,
        in_setup: peaks.setup.bytes.0 > near,
        typical: (0..highs.len()).find(|&step| highs[step] == usual).unwrap_or(0),
    })
}

/// What the peak holds beyond what a usual step holds at its own highest point.
struct SpikeDifference {
    lines: Vec<SiteBytes>,
    workspace: Bytes,
    /// Whether a usual step runs the first of these lines too.
    is_usual_line: bool,
}

fn difference(model: &RunModel<'_>, peak: usize, usual: usize) -> SpikeDifference {
    let history = &model.device.history;
    // Bytes at the peak and in the usual step, and blocks at the peak.
    let mut lines: FxHashMap<Option<FrameId>, (Bytes, Bytes, u64)> = FxHashMap::default();
    let mut workspace = (Bytes::ZERO, Bytes::ZERO);
    // What leaks leave behind is not the spike's.
    let leaked: FxHashSet<u32> =
        model.growing_sites.sites.iter().flat_map(|site| site.allocations.iter().copied()).collect();
    for (row, allocation) in
        history.allocations[..history.first_allocated_from(peak.max(usual))].iter().enumerate()
    {
        let (then, otherwise) = (allocation.is_allocated_at(peak), allocation.is_allocated_at(usual));
        if then == otherwise || leaked.contains(&(row as u32)) {
            continue;
        }
        let line = lines.entry(model.frame_of_allocation(row)).or_default();
        let is_workspace = model.categories.of(row) == Category::Workspace;
        let scratch = if is_workspace { allocation.size } else { Bytes::ZERO };
        if then {
            line.0 += allocation.size;
            line.2 += 1;
            workspace.0 += scratch;
        } else {
            line.1 += allocation.size;
            workspace.1 += scratch;
        }
    }
    let in_usual_step = |frame: Option<FrameId>| {
        let begin = model.device.steps.bounds.partition_point(|&bound| bound < usual).saturating_sub(1);
        let from = history.first_allocated_from(model.device.steps.bounds.get(begin).copied().unwrap_or(0));
        (from..history.first_allocated_from(usual)).any(|row| model.frame_of_allocation(row) == frame)
    };
    let mut lines: Vec<SiteBytes> = lines
        .into_iter()
        .map(|(frame, (then, otherwise, blocks))| (frame, then.saturating_sub(otherwise), blocks))
        .filter(|(_, bytes, _)| *bytes > Bytes::ZERO)
        .map(|(frame, bytes, blocks)| SiteBytes { line: NamedSite::new(model, frame), bytes, blocks })
        .collect();
    lines.sort_by_key(|line| (std::cmp::Reverse(line.bytes), line.line.frame));
    let is_usual_line = lines.first().is_some_and(|line| in_usual_step(line.line.frame));
    SpikeDifference { lines, workspace: workspace.0.saturating_sub(workspace.1), is_usual_line }
}

/// What one position holds beyond another, by line, largest first.
pub(super) fn lines_beyond(model: &RunModel<'_>, position: usize, other: usize) -> Vec<SiteBytes> {
    difference(model, position, other).lines
}

/// The events around the peak during which more than half of the extra memory is held.
fn duration(model: &RunModel<'_>, spike: &Spike) -> Range<usize> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
    let near = spike.peak.bytes.0 - spike.extra.0 / 2;
    // What an event adds to the allocated bytes.
    let change = |event: usize| {
        let action = snapshot.events.get(history.rows.start + event).action;
        let allocation = history.allocation_of(event, action).map(|row| &history.allocations[row]);
        match allocation {
            Some(allocation) if action == Action::Alloc => i128::from(allocation.size.0),
            Some(allocation) if allocation.free_event() == Some(event) => -i128::from(allocation.size.0),
            _ => 0,
        }
    };
    let held: Bytes = history.allocated_at(spike.peak.position).map(|allocation| allocation.size).sum();
    let (mut begin, mut end) = (spike.peak.position, spike.peak.position);
    let mut now = i128::from(held.0);
    while begin > 0 && now > i128::from(near) {
        begin -= 1;
        now -= change(begin);
    }
    now = i128::from(held.0);
    while end < history.len() && now > i128::from(near) {
        now += change(end);
        end += 1;
    }
    begin..end
}

/// Where the user's own code enters the calls that lead to the spike, if that is another line.
fn caller(model: &RunModel<'_>, spike: &Spike, site: Option<FrameId>) -> Option<FrameId> {
    let device = model.device;
    let at_site = device
        .history
        .allocated_at(spike.peak.position)
        .filter(|allocation| model.frame_of(allocation.stack) == site);
    let largest = at_site.max_by_key(|allocation| allocation.size)?;
    let frames = device.snapshot.stacks.frames(largest.stack);
    let outermost = frames.iter().rev().copied().find(|&frame| device.sites.is_user(frame))?;
    (Some(outermost) != site).then_some(outermost)
}

/// Whether most of what a line adds to the peak has the sizes of parameters and optimizer state.
fn is_copy(model: &RunModel<'_>, spike: &Spike, site: Option<FrameId>) -> bool {
    let history = &model.device.history;
    let begun = &history.allocations[..history.first_allocated_from(spike.peak.position)];
    let at_peak =
        begun.iter().enumerate().filter(|(_, allocation)| allocation.is_allocated_at(spike.peak.position));
    let mut sizes: FxHashSet<Bytes> = FxHashSet::default();
    let mut added: Vec<Bytes> = Vec::new();
    for (row, allocation) in at_peak {
        if matches!(model.categories.of(row), Category::Parameter | Category::Buffer | Category::Optimizer) {
            sizes.insert(allocation.requested);
        } else if model.frame_of_allocation(row) == site {
            added.push(allocation.requested);
        }
    }
    let all: Bytes = added.iter().copied().sum();
    let alike: Bytes = added.iter().copied().filter(|size| sizes.contains(size)).sum();
    added.len() > 2 && share(alike, all) > MIN_SHARE_OF_DIFFERENCE
}

/// What the blocks of a line are if they were kept one by one, such as the outputs of an evaluation.
fn collected(model: &RunModel<'_>, spike: &Spike, line: &SiteBytes) -> Option<MadeOf> {
    let (device, history) = (model.device, &model.device.history);
    let is_much = line.bytes.0 as f64 >= MIN_COLLECTED_SHARE * spike.extra.0 as f64;
    if line.blocks < MIN_COLLECTED_BLOCKS || !is_much {
        return None;
    }
    let at_peak = history.allocated_at(spike.peak.position);
    let kept: Vec<_> = at_peak.filter(|of| model.frame_of(of.stack) == line.line.frame).collect();
    let freed = || kept.iter().map(|of| of.free_event().unwrap_or(history.len()));
    let (first, last) = (freed().min()?, freed().max()?);
    let between = history.first_allocated_from(last) - history.first_allocated_from(first);
    // Results have one origin; a graph that an exception drops was made by many modules.
    let mut origins: FxHashMap<_, Bytes> = FxHashMap::default();
    for of in &kept {
        *origins.entry((of.stack, device.scope_of(of).module)).or_default() += of.size;
    }
    let held: Bytes = origins.values().copied().sum();
    let is_of_one_origin = share(origins.into_values().max()?, held) >= MIN_SHARE_OF_ONE_ORIGIN;
    let is_collected =
        is_of_one_origin && between as f64 <= MAX_ALLOCATIONS_BETWEEN_FREES * kept.len() as f64;
    let largest = kept.into_iter().max_by_key(|of| of.size).filter(|_| is_collected)?;
    let frame = device.caller_of_model(largest.stack).or(line.line.frame);
    Some(MadeOf::Collected { line: NamedSite::new(model, frame), results: line.blocks })
}

/// The finding in words.
pub(super) fn describe(facts: &SpikeFacts) -> Finding {
    let SpikeFacts { spike, of_steps, lasts, lasts_us, .. } = facts;
    let Spike { peak, usual, extra, times, .. } = spike;
    let when = match spike.steps.as_slice() {
        [] => "before the first step".to_owned(),
        // A phase of its own, such as an evaluation.
        [step] if step == of_steps => "after the last step".to_owned(),
        [step] => format!("in 1 of {of_steps} steps, step {}", step + 1),
        [some @ .., last] if last == of_steps => {
            format!("in {} of {of_steps} steps and after the last", some.len())
        }
        some => format!("in {} of {of_steps} steps", some.len()),
    };
    let named: Vec<String> = facts.lines.iter().take(MAX_LINES).map(SiteBytes::words).collect();
    let mut details = vec![format!("memory beyond a usual step comes from {}", listed(&named))];
    details.extend(facts.called_from.as_ref().map(|line| format!("it is called from {}", line.or(""))));
    details.push(format!(
        "it lasts {} ({:.1} ms); without it the run would need {usual}, {} less",
        counted(lasts.len() as u64, "event"),
        *lasts_us as f64 / 1e3,
        percent(extra.0 as f64 / peak.bytes.0.max(1) as f64)
    ));
    let steps = spike.steps.iter().take(32).map(|&step| EvidenceValue::Count(step as u64)).collect();
    let lines = facts.lines.iter().take(8).map(|line| EvidenceValue::Record(line.evidence())).collect();
    let reason = format!("the peak is {times:.1} times what a step usually needs");
    let summary =
        format!("the peak of {} is {extra} above a usual step ({usual}), reached {when}", peak.bytes);
    Finding {
        count: spike.steps.len().max(1) as u64,
        site: facts.line.frame,
        module: facts.module,
        details,
        fix: fix(facts),
        evidence: vec![
            ("event", EvidenceValue::Count(peak.position.saturating_sub(1) as u64)),
            ("peak", EvidenceValue::Bytes(peak.bytes)),
            ("usual_step", EvidenceValue::Bytes(*usual)),
            ("usual_step_example", EvidenceValue::Count(spike.typical as u64)),
            ("times", EvidenceValue::Ratio(*times)),
            ("steps", EvidenceValue::List(steps)),
            ("before_first_step", EvidenceValue::Flag(spike.in_setup)),
            ("lasts_events", EvidenceValue::Count(lasts.len() as u64)),
            ("lasts_us", EvidenceValue::Micros(*lasts_us)),
            ("lines", EvidenceValue::List(lines)),
            ("threshold", EvidenceValue::Ratio(MIN_TIMES)),
        ],
        ..Finding::new(FindingKind::Spike, facts.severity, reason, summary, *extra)
    }
}

/// Advice that fits what the spike is made of.
fn fix(facts: &SpikeFacts) -> String {
    let line = facts.line.or("the lines above");
    match &facts.made_of {
        MadeOf::CopyOfModel if facts.is_cpu => format!(
            "{line} copies the model or its optimizer: write it to disk piece by piece, or free the copy \
             sooner"
        ),
        MadeOf::CopyOfModel => {
            format!(
                "{line} copies the model or its optimizer on the GPU: copy it to the CPU (`.cpu()`) instead"
            )
        }
        MadeOf::Setup => format!(
            "it happens once, before the loop: give {line} less at a time, and use `torch.inference_mode()` \
             there if it needs no gradients"
        ),
        MadeOf::UsualLine => format!(
            "{line} runs in every step and holds more in these, as with a longer or larger batch: limit its \
             length or size, or split it into micro-batches"
        ),
        MadeOf::Collected { line, results } => {
            let to_cpu = if facts.is_cpu { "" } else { ", or keep `.cpu()` copies" };
            format!(
                "{} makes {} that stay until the peak: reduce each before it is kept (argmax, sum, a running \
                 metric){to_cpu}",
                line.or("a line that was not recorded"),
                counted(*results, "result")
            )
        }
        MadeOf::OwnLine => {
            let to_cpu = if facts.is_cpu { "" } else { ", `.cpu()`" };
            let pieces = format!(
                "do it in smaller pieces, reduce results (argmax, sum{to_cpu}) before the next piece"
            );
            match &facts.evaluation {
                Some(evaluation) => evaluation.fix(&pieces),
                None => format!(
                    "{line} runs only in these steps: {pieces}, and use `torch.inference_mode()` there if \
                     grad mode is on"
                ),
            }
        }
    }
}
