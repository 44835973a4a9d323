//! Where the steps of a run begin and end.
//!
//! PyTorch does not record steps. In order of trust: marks that a recorder set, profiler steps, the
//! optimizer's own annotations; otherwise the loop that the allocations themselves show.
//!
//! Without an optimizer, a recorder can only mark calls of modules. A server that answers a request calls
//! several: there the loop decides, and a step is a request.

use crate::trace::counted::{Counted, MarkCount};
use crate::trace::loops::{MainLoop, Paths, main_loop};
use crate::trace::order::Order;
use crate::trace::roles::Roles;
use crate::trace::site::Sites;
use crate::words::{counted, printable, site_name};
use recording::{Recording, StepMark};
use rustc_hash::FxHashMap;
use snapshot::{FrameId, StackId};
use std::cell::OnceCell;
use std::ops::Range;

/// Fewest steps that count as steps.
const MIN_STEPS: usize = 3;
/// A piece of the run without step marks is searched for a loop of its own if it has this share of all events
/// and is this many times as long as an ordinary step.
const MIN_UNMARKED_SHARE: f64 = 0.2;
const MIN_UNMARKED_STEP_LENGTHS: usize = 6;
/// Calls of modules in each iteration of a loop from which on the iterations are the steps, not the calls.
const MIN_CALLS_PER_REQUEST: f64 = 1.5;

/// How the steps of a run were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepSource {
    /// Marks of a recorder.
    Recorded,
    /// Annotations of the profiler or the optimizer in the snapshot.
    Annotated,
    /// The order of allocations.
    Inferred,
    /// No loop was found.
    None,
}

impl StepSource {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            StepSource::Recorded => "recorded",
            StepSource::Annotated => "annotated",
            StepSource::Inferred => "inferred",
            StepSource::None => "none",
        }
    }
}

/// How far an inference can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Confidence {
    /// Little evidence.
    Low,
    /// Several indications agree.
    Medium,
    /// The file states it, or all indications agree.
    High,
}

impl Confidence {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::Low => "low",
            Confidence::Medium => "medium",
            Confidence::High => "high",
        }
    }
}

/// The steps of a run. Step `i` goes from `bounds[i]` up to `bounds[i + 1]`; positions count events that have
/// happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steps {
    /// Where steps begin and end, ascending; empty if there are none.
    pub bounds: Vec<usize>,
    /// Those of [`Steps::bounds`] that belong to the main loop. A step of the main loop that contains a loop
    /// of its own, such as an evaluation, is several steps.
    pub main: Vec<usize>,
    /// Whether the last piece of `main` is what follows the last step of the main loop.
    pub has_tail: bool,
    /// How they were found.
    pub source: StepSource,
    /// How sure that is.
    pub confidence: Confidence,
    /// What a step is, where that is not obvious.
    pub note: Option<String>,
}

impl Steps {
    /// Number of steps.
    pub fn count(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Number of steps of the main loop.
    pub fn main_count(&self) -> usize {
        self.main.len().saturating_sub(1 + usize::from(self.has_tail))
    }

    /// Where the main loop ends, if another one follows.
    pub(crate) fn tail(&self) -> Option<usize> {
        let last = self.main.len().checked_sub(2).filter(|_| self.has_tail)?;
        self.main.get(last).copied()
    }

    /// The step in which the event with this index happened; `None` before the first and after the last.
    pub fn of_event(&self, event: usize) -> Option<usize> {
        let begun = self.bounds.partition_point(|&bound| bound <= event);
        (begun > 0 && begun < self.bounds.len()).then(|| begun - 1)
    }

    /// The same for the steps of the main loop, of which there are [`Steps::main_count`].
    pub fn main_of_event(&self, event: usize) -> Option<usize> {
        let begun = self.main.partition_point(|&bound| bound <= event);
        begun.checked_sub(1).filter(|&step| step < self.main_count())
    }

    /// The events of step `step`.
    pub fn events(&self, step: usize) -> Range<usize> {
        self.bounds[step]..self.bounds[step + 1]
    }

    fn none() -> Steps {
        Steps {
            bounds: Vec::new(),
            main: Vec::new(),
            has_tail: false,
            source: StepSource::None,
            confidence: Confidence::High,
            note: None,
        }
    }

    /// From the positions at which steps begin, and those of the main loop among them.
    fn beginning_at(
        starts: Vec<usize>,
        main: Vec<usize>,
        end: usize,
        source: StepSource,
        confidence: Confidence,
    ) -> Steps {
        let up_to_end = |mut starts: Vec<usize>| {
            starts.push(end);
            starts.dedup();
            starts
        };
        let bounds = up_to_end(starts);
        if bounds.len() <= MIN_STEPS {
            return Steps::none();
        }
        Steps { bounds, main: up_to_end(main), has_tail: false, source, confidence, note: None }
    }
}

/// Finds the steps of one device's history.
pub(crate) fn steps(order: &Order<'_>, sites: &Sites, roles: &Roles, recording: &Recording) -> Steps {
    let end = order.len();
    let marks = marked(order, recording);
    let is_recorded = !marks.is_empty();
    if !is_recorded {
        let profiler = annotated(order, "ProfilerStep#", true);
        let by_profiler =
            Steps::beginning_at(profiler.clone(), profiler, end, StepSource::Annotated, Confidence::High);
        if by_profiler.count() > 0 {
            return by_profiler;
        }
    }
    let loops = Loops::new(order, sites);
    let found = loops.find(0..end);
    if is_recorded {
        let are_calls = recording.marks.iter().all(|mark| mark.is_module_call);
        let is_loop_of_several = found.starts.len() >= MIN_STEPS
            && marks.len() as f64 >= MIN_CALLS_PER_REQUEST * found.starts.len() as f64;
        if are_calls && is_loop_of_several {
            return requests(&loops, found, marks.len());
        }
        let mut steps = ended_at(order, roles, &loops, &found.starts, marks, StepSource::Recorded);
        let may_be_several = are_calls && found.starts.is_empty() && steps.count() >= MIN_STEPS;
        steps.note = may_be_several
            .then(|| "a step is one call of a module: the stacks show no loop around these calls".to_owned());
        return steps;
    }
    let found = found.starts;
    let annotated = annotated(order, "Optimizer.step#", false);
    let (optimizer, source) = if annotated.len() >= MIN_STEPS {
        (annotated, StepSource::Annotated)
    } else {
        (optimizer_runs(order, roles), StepSource::Inferred)
    };
    let by_loop = |starts: Vec<usize>, source, confidence| {
        Steps::beginning_at(loops.split_long(&starts), starts, end, source, confidence)
    };
    if optimizer.len() < MIN_STEPS {
        return by_loop(found, StepSource::Inferred, Confidence::Medium);
    }
    match compare(&loops, &found, &optimizer) {
        Better::Loop => {
            // Where every iteration has its mark, the marks are the steps and the loop only shows where
            // they begin.
            let source = if found.len() == optimizer.len() { source } else { StepSource::Inferred };
            by_loop(found, source, Confidence::High)
        }
        Better::Optimizer => ended_at(order, roles, &loops, &found, optimizer, source),
    }
}

/// Steps of a program whose loop calls several modules in each iteration.
fn requests(loops: &Loops<'_>, found: MainLoop, calls: usize) -> Steps {
    let order = loops.order;
    let MainLoop { mut starts, line } = found;
    if let (Some(line), Some(&first)) = (line, starts.first())
        && loops.may_overlap(first)
        && let Some(by_allocations) = loops.calls_of(line)
        && (starts.len() / 2..=calls).contains(&by_allocations.len())
    {
        starts = by_allocations;
    }
    let note = line.map(|line| {
        let snapshot = order.snapshot;
        let function = printable(snapshot.strings.get(snapshot.stacks.frame(line).function)).into_owned();
        let calls = calls as f64 / starts.len() as f64;
        format!(
            "a step is one pass through {} {function}, with about {} of modules",
            site_name(snapshot, line),
            counted(calls.round() as u64, "call"),
        )
    });
    let bounds = loops.split_long(&starts);
    let steps = Steps::beginning_at(bounds, starts, order.len(), StepSource::Inferred, Confidence::Medium);
    Steps { note, ..steps }
}

/// Steps from the positions at which they end; what comes before the loop is not part of the first one.
fn ended_at(
    order: &Order<'_>,
    roles: &Roles,
    loops: &Loops<'_>,
    found: &[usize],
    ends: Vec<usize>,
    source: StepSource,
) -> Steps {
    let first = ends[0];
    let begin = found.first().copied().filter(|&start| start < first);
    let begin = begin.unwrap_or_else(|| first_forward(order, roles, first));
    let is_few = ends.len() < MIN_STEPS;
    let mut bounds = vec![begin];
    bounds.extend(ends.into_iter().filter(|&bound| bound > begin));
    if is_few {
        // A recorder saw them: there is no other loop to look for.
        return Steps {
            main: bounds.clone(),
            bounds,
            has_tail: false,
            source,
            confidence: Confidence::High,
            note: None,
        };
    }
    let mut main = bounds;
    let mut bounds = loops.split_long(&main);
    // What follows the last end is a phase of its own only if it has a loop of its own.
    let has_tail = bounds.last() > main.last();
    if has_tail {
        bounds.push(order.len());
        main.push(order.len());
    }
    if bounds.len() <= MIN_STEPS {
        return Steps::none();
    }
    Steps { bounds, main, has_tail, source, confidence: Confidence::High, note: None }
}

/// Where a recorder saw steps end. Counts of allocations give the exact event; without reliable counts, the
/// clock is nearly as good.
fn marked(order: &Order<'_>, recording: &Recording) -> Vec<usize> {
    let by_clock = |mark: &StepMark| order.position_at(mark.time_us);
    let mut marks: Vec<usize> = match Counted::new(order, recording) {
        None => recording.marks.iter().map(by_clock).collect(),
        Some(counted) => counted
            .of_marks(&recording.marks, order.device)
            .filter_map(|(mark, count)| match count {
                // Between two allocations there may be frees: the clock shows which of them belong to the
                // step.
                MarkCount::Reliable(count) => counted.position(count, by_clock(mark)),
                MarkCount::BeforeReset | MarkCount::NotCounted => Some(by_clock(mark)),
            })
            .collect(),
    };
    marks.retain(|&at| at > 0);
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// Positions of the annotations whose name begins with `prefix`: their starts or their ends.
fn annotated(order: &Order<'_>, prefix: &str, starts: bool) -> Vec<usize> {
    let mut positions: Vec<usize> = order
        .snapshot
        .annotations
        .iter()
        .filter(|annotation| annotation.start == starts && annotation.device == order.device)
        .filter(|annotation| order.snapshot.strings.get(annotation.name).starts_with(prefix))
        .map(|annotation| order.position_at(annotation.time_us))
        .filter(|&position| position > 0)
        .collect();
    positions.sort_unstable();
    positions.dedup();
    positions
}

/// Where the optimizer's runs of allocations end.
fn optimizer_runs(order: &Order<'_>, roles: &Roles) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut last = None;
    for (event, stack) in order.allocations(0..order.len()) {
        let role = roles.of(stack);
        if role.in_optimizer {
            last = Some(event);
        } else if !role.without_python
            && let Some(event) = last.take()
        {
            ends.push(event + 1);
        }
    }
    ends.extend(last.map(|event| event + 1));
    ends
}

/// The first event of the forward pass before `position`, or the first event of all.
fn first_forward(order: &Order<'_>, roles: &Roles, position: usize) -> usize {
    let mut before = order.allocations(0..position);
    before.find(|&(_, stack)| roles.of(stack).is_forward()).map_or(0, |(event, _)| event)
}

/// Which of the two determines the steps.
enum Better {
    Loop,
    Optimizer,
}

/// Compares the loop with the optimizer's steps. Mostly one optimizer step in each iteration: the loop, which
/// also counts the steps that a loss scaler skipped. Several iterations for each: gradient accumulation.
/// Several in each iteration: epochs, unless they do different things in turn, as the two optimizers of a GAN
/// do.
fn compare(loops: &Loops<'_>, found: &[usize], optimizer: &[usize]) -> Better {
    if found.len() < MIN_STEPS {
        return Better::Optimizer;
    }
    let within = |starts: &[usize], from: usize, to: usize| {
        starts.partition_point(|&start| start < to) - starts.partition_point(|&start| start < from)
    };
    let steps_in: Vec<usize> =
        found.windows(2).map(|pair| within(optimizer, pair[0] + 1, pair[1] + 1)).collect();
    let share = |wanted: &dyn Fn(usize) -> bool| {
        steps_in.iter().filter(|&&count| wanted(count)).count() as f64 / steps_in.len() as f64
    };
    let loops_in: Vec<usize> = optimizer.windows(2).map(|pair| within(found, pair[0], pair[1])).collect();
    let typical = median(&loops_in);
    if typical == 1 && share(&|count| count <= 1) > 0.9 && found.len() >= optimizer.len() {
        return Better::Loop;
    }
    let in_turn = share(&|count| (1..=8).contains(&count)) > 0.9 && share(&|count| count > 1) > 0.3;
    if in_turn && loops.differ(optimizer) {
        return Better::Loop;
    }
    Better::Optimizer
}

fn median(values: &[usize]) -> usize {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// The two views of the call stacks in which loops are looked for.
struct Loops<'a> {
    order: &'a Order<'a>,
    sites: &'a Sites,
    /// The user's own frames.
    user: Paths,
    /// All frames: for loops inside a library (a `Trainer`), or on a single line. Seldom needed, and far
    /// more.
    all: OnceCell<Paths>,
}

impl<'a> Loops<'a> {
    fn new(order: &'a Order<'a>, sites: &'a Sites) -> Loops<'a> {
        let user = Paths::new(order.snapshot, |frame| sites.is_user(frame));
        Loops { order, sites, user, all: OnceCell::new() }
    }

    fn all(&self) -> &Paths {
        self.all.get_or_init(|| Paths::new(self.order.snapshot, |frame| !self.sites.is_native(frame)))
    }

    fn find(&self, events: Range<usize>) -> MainLoop {
        let search = |paths, after_backward| main_loop(paths, self.order, events.clone(), after_backward);
        let user = [false, true].into_iter().map(|after_backward| search(&self.user, after_backward));
        let all = [false, true].into_iter().map(|after_backward| search(self.all(), after_backward));
        user.chain(all).find(|found| !found.starts.is_empty()).unwrap_or_default()
    }

    /// Whether an event comes from a thread or an event loop, which may answer several requests at a time.
    fn may_overlap(&self, event: usize) -> bool {
        let snapshot = self.order.snapshot;
        let frames = snapshot.stacks.frames(self.order.stack(event));
        frames.iter().any(|&frame| {
            let file = snapshot.strings.get(snapshot.stacks.frame(frame).file);
            file.ends_with("asyncio/events.py") || file.ends_with("/threading.py")
        })
    }

    /// Where the calls of a line's function begin, if several may run at a time: then its lines take turns,
    /// and how often each is entered says little. Most of its lines allocate as often as it is called.
    fn calls_of(&self, line: FrameId) -> Option<Vec<usize>> {
        let snapshot = self.order.snapshot;
        let function = |frame: FrameId| {
            let frame = snapshot.stacks.frame(frame);
            (frame.file, frame.function)
        };
        let mut is_inside: FxHashMap<StackId, bool> = FxHashMap::default();
        let mut events: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
        for (event, stack) in self.order.allocations(0..self.order.len()) {
            let inside = is_inside.entry(stack).or_insert_with(|| {
                snapshot.stacks.frames(stack).iter().any(|&frame| function(frame) == function(line))
            });
            if *inside {
                events.entry(self.all().of(stack)).or_default().push(event);
            }
        }
        let mut lines_with: FxHashMap<usize, usize> = FxHashMap::default();
        events.values().for_each(|events| *lines_with.entry(events.len()).or_default() += 1);
        let (&count, _) = lines_with.iter().max_by_key(|&(&count, &lines)| (lines, count))?;
        events.into_values().filter(|events| events.len() == count).min()
    }

    /// Adds the steps of loops inside pieces that are far longer than a step and hold a good part of the run:
    /// a second phase, such as an evaluation after the training.
    fn split_long(&self, starts: &[usize]) -> Vec<usize> {
        let end = self.order.len();
        let lengths: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let typical = median(&lengths).max(1);
        let mut bounds = Vec::with_capacity(starts.len());
        for (place, &start) in starts.iter().enumerate() {
            bounds.push(start);
            let next = starts.get(place + 1).copied().unwrap_or(end);
            let is_long = (next - start) as f64 > MIN_UNMARKED_SHARE * end as f64
                && next - start > MIN_UNMARKED_STEP_LENGTHS * typical;
            if is_long {
                // Its first step begins where the piece does.
                bounds.extend(self.find(start..next).starts.into_iter().skip(1));
            }
        }
        bounds
    }

    /// Whether what happens between neighbouring bounds differs: other lines run.
    fn differ(&self, bounds: &[usize]) -> bool {
        let mut lines: Vec<Vec<u32>> = vec![Vec::new(); bounds.len() + 1];
        for (alloc_event, stack) in self.order.allocations(0..self.order.len()) {
            let node = self.user.of(stack);
            let seen = &mut lines[bounds.partition_point(|&bound| bound <= alloc_event)];
            if seen.last() != Some(&node) {
                seen.push(node);
            }
        }
        for seen in &mut lines {
            seen.sort_unstable();
            seen.dedup();
        }
        let pairs = lines.windows(2).skip(1);
        let different = pairs.clone().filter(|pair| pair[0] != pair[1]).count();
        different * 2 > pairs.len()
    }
}
