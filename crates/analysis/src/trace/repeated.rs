//! Steps recorded without stacks and modules, because they repeat an earlier step.
//!
//! Recording a stack for every allocation takes a tenth of a CPU-bound step. So once a loop is steady, with
//! the same requests in every step and the same memory at its end, the recorder keeps the events and leaves
//! out where they came from and what they hold (`pace.py`). Here they get the stacks and modules of the step
//! that they repeat, and in `labels.rs` its labels.

use crate::trace::counted::{Counted, MarkCount};
use crate::trace::modules;
use crate::trace::order::Order;
use crate::words::{counted, grouped};
use recording::Recording;
use rustc_hash::{FxHashMap, FxHasher};
use snapshot::{Snapshot, StackId};
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// One step of a device: its allocations, as places among all of them.
struct RecordedStep {
    allocations: Range<usize>,
    has_stacks: bool,
    /// Whether it is one, and not what follows the last.
    has_ended: bool,
}

/// Gives allocations of repeated steps the stacks and modules of the steps that they repeat, and says so in a
/// caveat.
pub fn fill_in_repeated_steps(snapshot: &mut Snapshot, recording: &Recording) {
    let devices: Vec<u32> = snapshot.traces.iter().map(|trace| trace.device).collect();
    let (mut repeated, mut unknown) = (0, 0);
    let are_calls = !recording.marks.is_empty() && recording.marks.iter().all(|mark| mark.is_module_call);
    let (step, steps) = if are_calls { ("call of a module", "calls of modules") } else { ("step", "steps") };
    for device in devices {
        let Repeats { steps, like } = repeats(&Order::new(snapshot, device), recording);
        let first = snapshot.rows(device).start;
        for (event, like) in like {
            let row = first + event;
            match like {
                // Where only a part of a step was recorded without stacks, the rest has its own.
                _ if has_origin(snapshot, row) => {}
                Some(like) => copy_origin(snapshot, row, first + like),
                None => unknown += 1,
            }
        }
        repeated = repeated.max(steps);
    }
    if repeated > 0 {
        let (things, were, they_are) = match repeated {
            1 => (format!("{step} that repeats"), "was", "it is"),
            _ => (format!("{steps} that repeat"), "were", "they are"),
        };
        snapshot.caveats.push(format!(
            "{} {things} an earlier one {were} recorded without stacks; {they_are} shown with its lines \
             (`--detail full` records every stack)",
            grouped(repeated),
        ));
    }
    if unknown > 0 {
        snapshot.caveats.push(format!(
            "{} in {steps} without stacks have no line: nothing like them was recorded with stacks",
            counted(unknown, "allocation"),
        ));
    }
}

/// Whether a row says itself where it came from.
fn has_origin(snapshot: &Snapshot, row: usize) -> bool {
    let place = modules::parse(metadata(snapshot, row));
    snapshot.events.stack(row) != StackId::EMPTY || matches!(place, Some((_, Some(_))))
}

/// Gives a row the stack of another one, and the module, unless the program has marked it itself.
fn copy_origin(snapshot: &mut Snapshot, row: usize, like: usize) {
    let metadata = metadata(snapshot, row);
    let is_programs_own = !metadata.is_empty() && modules::parse(metadata).is_none();
    snapshot.events.copy_stack(row, like);
    if !is_programs_own {
        snapshot.events.copy_metadata(row, like);
    }
}

fn metadata(snapshot: &Snapshot, row: usize) -> &str {
    let events = &snapshot.events;
    snapshot.strings.get(events.context(events.get(row).context).user_metadata)
}

/// The steps of a device that were recorded without stacks.
#[derive(Default)]
pub(crate) struct Repeats {
    /// How many there are.
    steps: u64,
    /// Events of their allocations, each with the event of the one that it repeats.
    pub(crate) like: Vec<(usize, Option<usize>)>,
}

pub(crate) fn repeats(order: &Order<'_>, recording: &Recording) -> Repeats {
    if recording.marks.iter().all(|mark| mark.has_stacks) && recording.ends_with_stacks {
        return Repeats::default();
    }
    let Some(counted) = Counted::new(order, recording) else { return Repeats::default() };
    let events = counted.alloc_events();
    let size = |place: usize| order.size(events[place]);
    // How many events lie between an allocation and the one before: frees come in the same places of equal
    // steps.
    let gap = |place: usize| place.checked_sub(1).map(|before| events[place] - events[before]);
    let requests = |step: &RecordedStep| {
        let mut hasher = FxHasher::default();
        step.allocations.clone().for_each(|place| size(place).0.hash(&mut hasher));
        hasher.finish()
    };
    let steps = steps(&counted, order, recording);
    let mut latest: Option<&RecordedStep> = None;
    let mut by_requests: FxHashMap<u64, &RecordedStep> = FxHashMap::default();
    let mut repeats = Repeats::default();
    for step in steps.iter().filter(|step| !step.allocations.is_empty()) {
        if step.has_stacks {
            by_requests.insert(requests(step), step);
            latest = Some(step);
            continue;
        }
        repeats.steps += 1;
        let same = by_requests.get(&requests(step)).copied();
        let like = same.or(latest).map_or(0..0, |step| step.allocations.clone());
        let begins = step.allocations.start;
        let pairs = step.allocations.clone().zip(like);
        // A step that turned out to be another one is compared as far as its allocations and frees alternate
        // in the same way. What follows the last step may be anything, so there sizes count as well.
        let is_alike = |place: usize, like: usize| {
            (place == begins || gap(place) == gap(like)) && (step.has_ended || size(place) == size(like))
        };
        let alike = pairs.take_while(|&(place, like)| same.is_some() || is_alike(place, like));
        let mut alike = alike.map(|(_, like)| events[like]);
        repeats.like.extend(step.allocations.clone().map(|place| (events[place], alike.next())));
    }
    repeats
}

/// The steps between marks, by their counts or by the clock, with what comes after the last.
fn steps(counted: &Counted, order: &Order<'_>, recording: &Recording) -> Vec<RecordedStep> {
    let mut steps = Vec::with_capacity(recording.marks.len() + 1);
    let mut begin = 0;
    for (mark, count) in counted.of_marks(&recording.marks, order.device) {
        let end = match count {
            MarkCount::Reliable(count) => counted.place(count),
            MarkCount::BeforeReset => None,
            MarkCount::NotCounted => {
                let position = order.position_at(mark.time_us);
                Some(counted.alloc_events().partition_point(|&event| event < position))
            }
        };
        // What happened before the history begins is not there.
        let Some(end) = end.filter(|&end| end >= begin) else { continue };
        steps.push(RecordedStep { allocations: begin..end, has_stacks: mark.has_stacks, has_ended: true });
        begin = end;
    }
    steps.push(RecordedStep {
        allocations: begin..counted.alloc_events().len(),
        has_stacks: recording.ends_with_stacks,
        has_ended: false,
    });
    steps
}
