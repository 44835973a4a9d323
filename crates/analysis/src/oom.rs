//! Why an allocation failed, and what would have let it pass.

use crate::categories::Category;
use crate::explain::Outline;
use crate::finding::{Cause, Finding, Kind, Severity, Value};
use crate::layout::{Free, free_for, layout};
use crate::words::{counted, grouped, listed, percent, place, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId};

const MIB: u64 = 1 << 20;
/// Less room than this is none.
const NEARLY_FULL: f64 = 0.1;
/// Lines that are named.
const LINES: usize = 3;

/// The finding for the last failed allocation, if there was one. `leaked` is what leaks had piled up by then.
pub(crate) fn oom(outline: &Outline<'_>, leaked: Bytes) -> Option<Finding> {
    let failure = Failure::new(outline)?;
    let holders = Holders::new(outline, failure.event);
    let (category, in_category) = holders.largest_category();
    let cause = failure.cause(outline);
    let asked_at = failure.line.map(|frame| format!(" at {}", place(outline.device.snapshot, frame)));
    let room = failure.room_in_words();
    let summary = match cause {
        Cause::Capacity if failure.allocated == Bytes::ZERO => {
            format!(
                "{} did not fit{}: nothing was allocated, {room} is too small",
                failure.asked,
                asked_at.unwrap_or_default()
            )
        }
        Cause::Capacity => format!(
            "{} did not fit{}: {} of {room} were in use, {} of it {}",
            failure.asked,
            asked_at.unwrap_or_default(),
            failure.active,
            percent(share(in_category, failure.allocated)),
            plural(category)
        ),
        Cause::Fragmentation => format!(
            "{} did not fit{} although {} were free: no piece was larger than {}",
            failure.asked,
            asked_at.unwrap_or_default(),
            failure.free.total() + failure.device_room(),
            failure.largest_that_fits()
        ),
    };
    let mut finding = Finding::new(
        Kind::Oom,
        Severity::High,
        format!("{} failed", counted(failure.count, "allocation")),
        summary,
        failure.asked,
    );
    finding.count = failure.count;
    finding.cause = Some(cause);
    finding.site = match category {
        Category::Parameter | Category::Optimizer | Category::Workspace if failure.line.is_some() => {
            failure.line
        }
        _ => holders.lines_of(category).first().and_then(|line| line.0).or(failure.line),
    };
    details(outline, &failure, &holders, category, leaked, &mut finding);
    finding.fix = fix(outline, &failure, &holders, category, leaked);
    finding.evidence = evidence(outline, &failure, &holders);
    let (least, most) = (failure.usable(), (failure.reserved + failure.segment).max(failure.usable()));
    if failure.is_limited() && least.to_string() != most.to_string() {
        finding
            .caveats
            .push(format!("the limit itself is not in the file: it lies between {least} and {most}"));
    }
    Some(finding)
}

fn plural(category: Category) -> &'static str {
    match category {
        Category::Parameter => "parameters",
        Category::Gradient => "gradients",
        Category::Optimizer => "optimizer state",
        Category::Activation => "activations",
        Category::Input => "inputs",
        Category::Temporary => "temporaries",
        Category::Workspace => "library workspaces",
        Category::Unknown => "memory of unknown use",
    }
}

/// The last failed allocation and the state that it met.
struct Failure {
    event: usize,
    count: u64,
    asked: Bytes,
    segment: Bytes,
    device_free: Bytes,
    reserved: Bytes,
    active: Bytes,
    allocated: Bytes,
    /// The most that had ever been reserved by then.
    reserved_before: Bytes,
    free: Free,
    line: Option<FrameId>,
}

impl Failure {
    fn new(outline: &Outline<'_>) -> Option<Failure> {
        let (snapshot, history) = (outline.device.snapshot, &outline.device.history);
        let event = *outline.course.ooms.last()?;
        let record = snapshot.events.get(history.rows.start + event);
        let regions = layout(history, &outline.course, event);
        let allocated = history.allocated_at(event).map(|life| life.size).sum();
        let line = outline.frame_of(record.stack).or_else(|| {
            // Inside `backward()` there is no stack; the blocks just before it know the call.
            let before = history.lives.partition_point(|life| life.born().is_none_or(|born| born < event));
            let row = before.checked_sub(1)?;
            let is_engine = outline.device.roles.of(history.lives[row].stack).without_python;
            if is_engine { outline.frame_of_life(row) } else { None }
        });
        let mut reserved_before = Bytes::ZERO;
        let mut now: u64 =
            history.regions.iter().filter(|region| region.from_start).map(|region| region.size.0).sum();
        for segment in outline.course.segments.iter().take_while(|segment| segment.event < event) {
            let bytes = segment.bytes.0;
            now = if segment.reserves { now.saturating_add(bytes) } else { now.saturating_sub(bytes) };
            reserved_before = reserved_before.max(Bytes(now));
        }
        Some(Failure {
            event,
            count: history.stats.ooms,
            asked: record.size,
            segment: segment_size(record.size),
            device_free: Bytes(record.addr),
            reserved: regions.iter().map(|now| now.reserved).sum(),
            // Blocks whose segment was not recorded are in use all the same.
            active: regions.iter().map(|now| now.active).sum::<Bytes>().max(allocated),
            allocated,
            reserved_before,
            free: free_for(history, &regions, record.size, snapshot.events.context(record.context).stream),
            line,
        })
    }

    /// Whether a limit refused what the device had.
    fn is_limited(&self) -> bool {
        self.device_free >= self.segment
    }

    /// What the device could still have given, where no limit stood in the way.
    fn device_room(&self) -> Bytes {
        if self.is_limited() { Bytes::ZERO } else { self.device_free }
    }

    /// What PyTorch could have had in all: exact where the device was full, otherwise at least this.
    fn usable(&self) -> Bytes {
        if self.is_limited() {
            self.reserved.max(self.reserved_before)
        } else {
            self.reserved + self.device_free
        }
    }

    fn room_in_words(&self) -> String {
        if self.is_limited() {
            format!("a limit of about {}", self.usable())
        } else {
            format!("{} that the device had for this process", self.usable())
        }
    }

    /// Fragmentation where the request would have fitted in one piece, with room for the rest of the step. A memory that
    /// is nearly full fails sooner or later however it is arranged.
    fn cause(&self, outline: &Outline<'_>) -> Cause {
        let room = share(self.usable().saturating_sub(self.active), self.usable());
        let fits = self.active + self.asked <= self.usable()
            && room >= NEARLY_FULL
            && self.largest_that_fits() < self.asked;
        if fits && projection(outline, self).is_none() { Cause::Fragmentation } else { Cause::Capacity }
    }

    fn largest_that_fits(&self) -> Bytes {
        let new_segment = Bytes(self.device_room().0 / (2 * MIB) * (2 * MIB));
        self.free.largest.max(new_segment)
    }

    /// What was missing for this request alone.
    fn short(&self) -> Bytes {
        (self.active + self.asked).saturating_sub(self.usable())
    }
}

/// What PyTorch asks the device for, to serve a request.
fn segment_size(size: Bytes) -> Bytes {
    match size.0 {
        size if size <= MIB => Bytes(2 * MIB),
        size if size < 10 * MIB => Bytes(20 * MIB),
        size => Bytes(size.div_ceil(2 * MIB).saturating_mul(2 * MIB)),
    }
}

/// Who held the memory when it failed.
struct Holders {
    categories: [Bytes; 8],
    lines: FxHashMap<(Category, Option<FrameId>), (Bytes, u64)>,
}

impl Holders {
    fn new(outline: &Outline<'_>, event: usize) -> Holders {
        let mut holders = Holders { categories: [Bytes::ZERO; 8], lines: FxHashMap::default() };
        for (row, life) in outline.device.history.lives.iter().enumerate() {
            if life.is_allocated_at(event) {
                let category = outline.categories.of(row);
                holders.categories[category as usize] += life.size;
                let line = holders.lines.entry((category, outline.frame_of_life(row))).or_default();
                line.0 += life.size;
                line.1 += 1;
            }
        }
        holders
    }

    fn largest_category(&self) -> (Category, Bytes) {
        let mut best = (Category::Unknown, Bytes::ZERO);
        for category in Category::ALL {
            if self.categories[category as usize] > best.1 {
                best = (category, self.categories[category as usize]);
            }
        }
        best
    }

    /// The lines of one category, largest first.
    fn lines_of(&self, category: Category) -> Vec<(Option<FrameId>, Bytes, u64)> {
        let mut lines: Vec<_> = self
            .lines
            .iter()
            .filter(|((of, _), _)| *of == category)
            .map(|(&(_, frame), &(bytes, count))| (frame, bytes, count))
            .collect();
        lines.sort_by_key(|&(frame, bytes, _)| (std::cmp::Reverse(bytes), frame));
        lines
    }
}

fn details(
    outline: &Outline<'_>,
    failure: &Failure,
    holders: &Holders,
    category: Category,
    leaked: Bytes,
    finding: &mut Finding,
) {
    let snapshot = outline.device.snapshot;
    let mut held: Vec<Category> = Category::ALL
        .into_iter()
        .filter(|&of| share(holders.categories[of as usize], failure.allocated) >= 0.01)
        .collect();
    held.sort_by_key(|&of| std::cmp::Reverse(holders.categories[of as usize]));
    let held: Vec<String> =
        held.iter().map(|&of| format!("{} {}", holders.categories[of as usize], plural(of))).collect();
    if held.is_empty() {
        return;
    }
    finding.details.push(format!("in use at event {}: {}", grouped(failure.event as u64), listed(&held)));
    let lines: Vec<String> = holders
        .lines_of(category)
        .iter()
        .take(LINES)
        .map(|&(frame, bytes, count)| {
            let line =
                frame.map_or("lines that were not recorded".to_owned(), |frame| place(snapshot, frame));
            format!("{line} ({bytes}, {})", counted(count, "block"))
        })
        .collect();
    finding.details.push(format!("the {} come from {}", plural(category), listed(&lines)));
    if let Some(projection) = projection(outline, failure) {
        finding.details.push(projection.sentence(failure));
    }
    if leaked.0 > failure.active.0 / 10 {
        finding.details.push(format!("{leaked} of it had piled up step by step: see the leak"));
    }
    if failure.cause(outline) == Cause::Capacity && failure.is_limited() {
        finding.details.push(format!(
            "the device itself still had {} free: a memory limit (`set_per_process_memory_fraction`) refused it",
            failure.device_free
        ));
    }
    let lay_free = failure.free.total();
    finding.details.push(match failure.largest_that_fits() {
        Bytes::ZERO if lay_free == Bytes::ZERO => "nothing that was reserved lay free".to_owned(),
        Bytes::ZERO => format!("the {lay_free} that lay free are kept for other streams or block sizes"),
        largest => format!(
            "the largest request that would have passed is {largest}; {lay_free} of the reserved memory lay free"
        ),
    });
}

/// What the step would have needed in the end, judged by the step before.
struct Projection {
    times: f64,
    before: Bytes,
    needed: Bytes,
    base: Bytes,
}

impl Projection {
    fn sentence(&self, failure: &Failure) -> String {
        let pace = if self.times > 1.1 {
            format!("it holds {:.1} times as much as the step before at the same place", self.times)
        } else {
            "it goes like the step before".to_owned()
        };
        format!(
            "{pace}, which peaked at {}: to finish it would have needed about {}, {} more than it could have",
            self.before,
            self.needed,
            self.needed.saturating_sub(failure.usable())
        )
    }
}

/// Compares the step that failed with the one before it, after the same number of allocations.
fn projection(outline: &Outline<'_>, failure: &Failure) -> Option<Projection> {
    let (history, steps) = (&outline.device.history, &outline.device.steps);
    let begun = steps.bounds.partition_point(|&bound| bound <= failure.event);
    let (now, before) = (begun.checked_sub(1)?, begun.checked_sub(2)?);
    let row_at = |position: usize| {
        history.lives.partition_point(|life| life.born().is_none_or(|born| born < position))
    };
    let (begin, previous) = (*steps.bounds.get(now)?, steps.bounds[before]);
    let allocations = row_at(failure.event).checked_sub(row_at(begin))?;
    let same_place = row_at(previous) + allocations;
    let same_place = history.lives.get(same_place).filter(|_| same_place < row_at(begin))?.born()?;
    let base = outline.course.at_bounds.get(now).copied()?;
    let base_before = outline.course.at_bounds.get(before).copied()?;
    let held: Bytes = history.allocated_at(same_place).map(|life| life.size).sum();
    let (grown, grown_before) = (failure.allocated.saturating_sub(base), held.saturating_sub(base_before));
    if grown_before.0 < MIB {
        return None;
    }
    let times = grown.0 as f64 / grown_before.0 as f64;
    let peak = outline.course.steps.get(before)?.bytes;
    let needed = base + Bytes((peak.saturating_sub(base_before).0 as f64 * times) as u64);
    (needed > failure.usable()).then_some(Projection { times, before: peak, needed, base })
}

fn fix(
    outline: &Outline<'_>,
    failure: &Failure,
    holders: &Holders,
    category: Category,
    leaked: Bytes,
) -> String {
    if leaked.0 > failure.active.0 / 3 {
        return "stop the leak: without it this request would have passed".to_owned();
    }
    if failure.cause(outline) == Cause::Fragmentation {
        return "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: the free pieces then join, and the request fits \
                without any change to the program"
            .to_owned();
    }
    let line = holders
        .lines_of(category)
        .first()
        .and_then(|line| line.0)
        .or(failure.line)
        .map_or("the lines above".to_owned(), |frame| place(outline.device.snapshot, frame));
    let smaller = match projection(outline, failure) {
        Some(projection) => {
            let room = failure.usable().saturating_sub(projection.base).0 as f64;
            let needs = projection.needed.saturating_sub(projection.base).0 as f64;
            format!("a batch at least {} smaller", percent((1.0 - room / needs.max(1.0)).max(0.01)))
        }
        None if failure.short() == Bytes::ZERO => "a smaller batch".to_owned(),
        None => format!("a batch that needs at least {} less", failure.short()),
    };
    match category {
        Category::Activation | Category::Temporary | Category::Input => {
            let trains = outline.device.backward.next_after(0).is_some();
            if trains {
                format!("{smaller} at {line}; or activation checkpointing or autocast there")
            } else {
                format!("run {line} under `torch.inference_mode()`, or with {smaller}")
            }
        }
        Category::Optimizer | Category::Gradient | Category::Parameter => format!(
            "the model itself is too large here: parameters, gradients and optimizer state need {}. Use bf16 parameters, an \
             optimizer with less state, or shard them (FSDP); a smaller batch does not help",
            holders.categories[..3].iter().copied().sum::<Bytes>()
        ),
        Category::Workspace => {
            "set `torch.backends.cudnn.benchmark = False`: the workspaces are its trials".to_owned()
        }
        Category::Unknown if failure.allocated == Bytes::ZERO => {
            format!("ask for less: {} is more than there is, with nothing else allocated", failure.asked)
        }
        Category::Unknown => format!("{line} holds the most: keep less of it, or for a shorter time"),
    }
}

fn evidence(outline: &Outline<'_>, failure: &Failure, holders: &Holders) -> Vec<(&'static str, Value)> {
    let mut lines: Vec<(&(Category, Option<FrameId>), &(Bytes, u64))> = holders.lines.iter().collect();
    lines.sort_by_key(|&(&(category, frame), &(bytes, _))| (std::cmp::Reverse(bytes), category, frame));
    let held =
        Category::ALL.iter().map(|&of| (of.name(), Value::Bytes(holders.categories[of as usize]))).collect();
    let mut evidence = vec![
        ("event", Value::Count(failure.event as u64)),
        ("requested", Value::Bytes(failure.asked)),
        ("device_free", Value::Bytes(failure.device_free)),
        ("allocated", Value::Bytes(failure.allocated)),
        ("active", Value::Bytes(failure.active)),
        ("reserved", Value::Bytes(failure.reserved)),
        ("reserved_but_free", Value::Bytes(failure.free.total())),
        ("largest_free_piece", Value::Bytes(failure.free.largest)),
        ("largest_request_that_fits", Value::Bytes(failure.largest_that_fits())),
        ("short_by_at_least", Value::Bytes(failure.short())),
        (
            "limited_by",
            Value::Text(if failure.is_limited() { "memory limit".to_owned() } else { "device".to_owned() }),
        ),
        ("usable_at_least", Value::Bytes(failure.usable())),
        ("held", Value::Record(held)),
        (
            "lines",
            Value::List(
                lines
                    .iter()
                    .take(8)
                    .map(|&(&(category, frame), &(bytes, count))| {
                        let mut record = vec![
                            ("category", Value::Text(category.name().to_owned())),
                            ("bytes", Value::Bytes(bytes)),
                            ("count", Value::Count(count)),
                        ];
                        record.extend(frame.map(|frame| ("site", Value::Site(frame))));
                        Value::Record(record)
                    })
                    .collect(),
            ),
        ),
    ];
    evidence.extend(failure.line.map(|frame| ("failed_at", Value::Site(frame))));
    if let Some(projection) = projection(outline, failure) {
        evidence.push(("step_would_need", Value::Bytes(projection.needed)));
        evidence.push(("times_the_step_before", Value::Ratio(projection.times)));
    }
    evidence
}
