//! A peak that only a few steps reach.

use crate::findings::finding::{Finding, Kind, Severity, Value};
use crate::run::categories::Category;
use crate::run::model::RunModel;
use crate::run::step_peaks::MemoryPeak;
use crate::words::{counted, listed, percent, place, place_or, share};
use rustc_hash::{FxHashMap, FxHashSet};
use snapshot::{Action, Bytes, FrameId};
use std::ops::Range;

/// A peak has to be this many times what a step usually needs.
const LEAST_TIMES: f64 = 1.2;
const MEDIUM_TIMES: f64 = 1.5;
const HIGH_TIMES: f64 = 3.0;
const LEAST_BYTES: Bytes = Bytes(32 << 20);
/// Steps that need next to nothing would make any number of it.
const MOST_TIMES: f64 = 1000.0;
/// At most this share of the steps may come near it: more is how the program is.
const MOST_STEPS: f64 = 0.34;
/// If this much of the difference is scratch memory that cuDNN tries out, that is the finding.
const MOSTLY: f64 = 0.6;
/// Lines that are named.
const LINES: usize = 3;

/// The finding, if the peak stands out. `leaked` is what leaks had piled up at each bound of the steps.
pub(crate) fn spike(model: &RunModel<'_>, leaked: &[u64]) -> Option<Finding> {
    let course = &model.course;
    if course.steps.len() < 4 {
        return None;
    }
    let at = |step: usize| leaked.get(step).or(leaked.last()).copied().unwrap_or(0);
    let highs: Vec<u64> =
        course.steps.iter().enumerate().map(|(step, high)| high.bytes.0.saturating_sub(at(step))).collect();
    let mut sorted = highs.clone();
    sorted.sort_unstable();
    let usual = sorted[sorted.len() / 2];
    let highest = highs.iter().copied().max().unwrap_or(0).max(course.setup.bytes.0);
    let times = (highest as f64 / usual.max(1) as f64).min(MOST_TIMES);
    let extra = Bytes(highest - usual.min(highest));
    if times < LEAST_TIMES || extra < LEAST_BYTES {
        return None;
    }
    let near = usual + extra.0 / 2;
    let steps: Vec<usize> = (0..highs.len()).filter(|&step| highs[step] > near).collect();
    let in_setup = course.setup.bytes.0 > near;
    let is_level = steps.last() == Some(&(highs.len() - 1))
        && steps.windows(2).all(|pair| pair[1] == pair[0] + 1)
        && steps.len() > 1;
    if steps.len() as f64 > MOST_STEPS * highs.len() as f64 || is_level {
        return None;
    }
    let top = (0..highs.len()).max_by_key(|&step| (highs[step], std::cmp::Reverse(step))).unwrap_or(0);
    let in_steps = highs[top] >= course.setup.bytes.0;
    let peak = if in_steps { course.steps[top] } else { course.setup };
    let typical = (0..highs.len()).find(|&step| highs[step] == usual).unwrap_or(0);
    let difference = difference(model, peak.position, course.steps[typical].position);
    let is_trials =
        difference.workspace.0 as f64 > MOSTLY * extra.0 as f64 && !model.cudnn_trials().is_empty();
    if is_trials || difference.lines.is_empty() {
        return None;
    }
    // What leaks had piled up by then would be there without the spike.
    let usual = peak.bytes.saturating_sub(extra);
    Some(finding(model, Spike { peak, usual, extra, times, steps, in_setup, typical }, difference))
}

struct Spike {
    peak: MemoryPeak,
    usual: Bytes,
    extra: Bytes,
    times: f64,
    steps: Vec<usize>,
    in_setup: bool,
    typical: usize,
}

/// What the peak holds beyond what a usual step holds at its own highest point.
struct Difference {
    lines: Vec<(Option<FrameId>, Bytes, u64)>,
    workspace: Bytes,
    /// Whether a usual step runs the first of these lines too.
    is_usual_line: bool,
}

fn difference(model: &RunModel<'_>, peak: usize, usual: usize) -> Difference {
    let history = &model.device.history;
    // Bytes at the peak and in the usual step, and blocks at the peak.
    let mut lines: FxHashMap<Option<FrameId>, (Bytes, Bytes, u64)> = FxHashMap::default();
    let mut workspace = (Bytes::ZERO, Bytes::ZERO);
    // What leaks leave behind is not the spike's.
    let leaked: FxHashSet<u32> =
        model.growing_sites.sites.iter().flat_map(|site| site.lives.iter().copied()).collect();
    for (row, life) in history.lives[..history.first_born_from(peak.max(usual))].iter().enumerate() {
        let (then, otherwise) = (life.is_allocated_at(peak), life.is_allocated_at(usual));
        if then == otherwise || leaked.contains(&(row as u32)) {
            continue;
        }
        let line = lines.entry(model.frame_of_life(row)).or_default();
        let is_workspace = model.categories.of(row) == Category::Workspace;
        let scratch = if is_workspace { life.size } else { Bytes::ZERO };
        if then {
            line.0 += life.size;
            line.2 += 1;
            workspace.0 += scratch;
        } else {
            line.1 += life.size;
            workspace.1 += scratch;
        }
    }
    let in_usual_step = |frame: Option<FrameId>| {
        let begin = model.device.steps.bounds.partition_point(|&bound| bound < usual).saturating_sub(1);
        let from = history.first_born_from(model.device.steps.bounds.get(begin).copied().unwrap_or(0));
        (from..history.first_born_from(usual)).any(|row| model.frame_of_life(row) == frame)
    };
    let mut lines: Vec<(Option<FrameId>, Bytes, u64)> = lines
        .into_iter()
        .map(|(frame, (then, otherwise, count))| (frame, then.saturating_sub(otherwise), count))
        .filter(|(_, bytes, _)| *bytes > Bytes::ZERO)
        .collect();
    lines.sort_by_key(|&(frame, bytes, _)| (std::cmp::Reverse(bytes), frame));
    let is_usual_line = lines.first().is_some_and(|line| in_usual_step(line.0));
    Difference { lines, workspace: workspace.0.saturating_sub(workspace.1), is_usual_line }
}

fn finding(model: &RunModel<'_>, spike: Spike, difference: Difference) -> Finding {
    let snapshot = model.device.snapshot;
    let count = model.device.steps.count();
    let severity = match spike.times {
        times if times >= HIGH_TIMES && !spike.steps.is_empty() => Severity::High,
        times if times >= MEDIUM_TIMES => Severity::Medium,
        _ => Severity::Low,
    };
    let when = match spike.steps.as_slice() {
        [] => "before the first step".to_owned(),
        [step] => format!("in 1 of {count} steps, step {}", step + 1),
        some => format!("in {} of {count} steps", some.len()),
    };
    let mut finding = Finding::new(
        Kind::Spike,
        severity,
        format!("the peak is {:.1} times what a step usually needs", spike.times),
        format!(
            "the peak of {} is {} above a usual step ({}), reached {when}",
            spike.peak.bytes, spike.extra, spike.usual
        ),
        spike.extra,
    );
    finding.count = spike.steps.len().max(1) as u64;
    finding.site = difference.lines.iter().find_map(|line| line.0);
    finding.module = model.module_at(spike.peak.position, finding.site);
    let named: Vec<String> = difference
        .lines
        .iter()
        .take(LINES)
        .map(|&(frame, bytes, blocks)| {
            let line = place_or(snapshot, frame, "lines that were not recorded");
            format!("{line} ({bytes}, {})", counted(blocks, "block"))
        })
        .collect();
    finding.details.push(format!("what a usual step does not have comes from {}", listed(&named)));
    finding.details.extend(caller(model, &spike, finding.site));
    let lasts = duration(model, &spike);
    let lasts_us = model.elapsed_us(lasts.start, lasts.end);
    finding.details.push(format!(
        "it lasts {} ({:.1} ms); without it the run would need {}, {} less",
        counted(lasts.len() as u64, "event"),
        lasts_us as f64 / 1e3,
        spike.usual,
        percent(spike.extra.0 as f64 / spike.peak.bytes.0.max(1) as f64)
    ));
    finding.fix = fix(model, &spike, &difference, finding.site);
    finding.evidence = vec![
        ("event", Value::Count(spike.peak.position.saturating_sub(1) as u64)),
        ("peak", Value::Bytes(spike.peak.bytes)),
        ("usual_step", Value::Bytes(spike.usual)),
        ("usual_step_example", Value::Count(spike.typical as u64)),
        ("times", Value::Ratio(spike.times)),
        ("steps", Value::List(spike.steps.iter().take(32).map(|&step| Value::Count(step as u64)).collect())),
        ("before_first_step", Value::Flag(spike.in_setup)),
        ("lasts_events", Value::Count(lasts.len() as u64)),
        ("lasts_us", Value::Count(lasts_us)),
        (
            "lines",
            Value::List(
                difference
                    .lines
                    .iter()
                    .take(8)
                    .map(|&(frame, bytes, blocks)| {
                        let mut record =
                            vec![("bytes", Value::Bytes(bytes)), ("count", Value::Count(blocks))];
                        record.extend(frame.map(|frame| ("site", Value::Site(frame))));
                        Value::Record(record)
                    })
                    .collect(),
            ),
        ),
        ("threshold", Value::Ratio(LEAST_TIMES)),
    ];
    finding
}

/// The events around the peak during which more than half of the extra memory is held.
fn duration(model: &RunModel<'_>, spike: &Spike) -> Range<usize> {
    let (snapshot, history) = (model.device.snapshot, &model.device.history);
    let near = spike.peak.bytes.0 - spike.extra.0 / 2;
    // What an event adds to the allocated bytes.
    let change = |event: usize| {
        let action = snapshot.events.get(history.rows.start + event).action;
        let life = history.life_of(event, action).map(|row| &history.lives[row]);
        match life {
            Some(life) if action == Action::Alloc => i128::from(life.size.0),
            Some(life) if life.freed() == Some(event) => -i128::from(life.size.0),
            _ => 0,
        }
    };
    let held: Bytes = history.allocated_at(spike.peak.position).map(|life| life.size).sum();
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
fn caller(model: &RunModel<'_>, spike: &Spike, site: Option<FrameId>) -> Option<String> {
    let device = model.device;
    let at_site =
        device.history.allocated_at(spike.peak.position).filter(|life| model.frame_of(life.stack) == site);
    let largest = at_site.max_by_key(|life| life.size)?;
    let frames = device.snapshot.stacks.frames(largest.stack);
    let outermost = frames.iter().rev().copied().find(|&frame| device.sites.is_user(frame))?;
    (Some(outermost) != site).then(|| format!("it is called from {}", place(device.snapshot, outermost)))
}

/// Advice that fits what the spike is made of.
fn fix(model: &RunModel<'_>, spike: &Spike, difference: &Difference, site: Option<FrameId>) -> String {
    let line = place_or(model.device.snapshot, site, "the lines above");
    match () {
        () if is_copy(model, spike, site) && model.device.is_cpu() => {
            format!(
                "{line} copies the model or its optimizer: write it to disk piece by piece, or free the copy sooner"
            )
        }
        () if is_copy(model, spike, site) => {
            format!(
                "{line} copies the model or its optimizer on the GPU: copy it to the CPU (`.cpu()`) instead"
            )
        }
        () if spike.steps.is_empty() => format!(
            "it happens once, before the loop: give {line} less at a time, and use `torch.inference_mode()` there if it needs no \
             gradients"
        ),
        () if difference.is_usual_line => format!(
            "{line} runs in every step and holds more in these, as with a longer or larger batch: limit its length or size, or \
             split it into micro-batches"
        ),
        () => format!(
            "{line} runs in these steps alone: do it in smaller pieces, reduce results (argmax, sum{}) before the next \
             piece, and use `torch.inference_mode()` there if grad mode is on",
            if model.device.is_cpu() { "" } else { ", `.cpu()`" }
        ),
    }
}

/// Whether most of what a line adds to the peak has the sizes of parameters and optimizer state.
fn is_copy(model: &RunModel<'_>, spike: &Spike, site: Option<FrameId>) -> bool {
    let history = &model.device.history;
    let begun = &history.lives[..history.first_born_from(spike.peak.position)];
    let at_peak = begun.iter().enumerate().filter(|(_, life)| life.is_allocated_at(spike.peak.position));
    let mut sizes: FxHashSet<Bytes> = FxHashSet::default();
    let mut added: Vec<Bytes> = Vec::new();
    for (row, life) in at_peak {
        if matches!(model.categories.of(row), Category::Parameter | Category::Buffer | Category::Optimizer) {
            sizes.insert(life.requested);
        } else if model.frame_of_life(row) == site {
            added.push(life.requested);
        }
    }
    let all: Bytes = added.iter().copied().sum();
    let alike: Bytes = added.iter().copied().filter(|size| sizes.contains(size)).sum();
    added.len() > 2 && share(alike, all) > MOSTLY
}
