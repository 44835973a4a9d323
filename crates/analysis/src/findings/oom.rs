//! Why an allocation failed, and what would have let it pass.

use crate::findings::failure::{Failure, Projection};
use crate::findings::finding::{Cause, Finding, Kind, Severity, Value};
use crate::findings::non_pytorch::{others, said};
use crate::run::categories::Category;
use crate::run::model::RunModel;
use crate::words::{counted, grouped, listed, percent, place, place_or, share};
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId};

/// Lines that are named.
const LINES: usize = 3;
/// What the model itself takes, whatever the batch.
const MODEL: [Category; 4] = [Category::Parameter, Category::Buffer, Category::Gradient, Category::Optimizer];
/// If the model takes this share, it is what the memory is full of.
const MOSTLY_MODEL: f64 = 0.6;

/// The finding for the last failed allocation, if there was one. `leaked` is what leaks had piled up by then.
pub(crate) fn oom(model: &RunModel<'_>, leaked: Bytes) -> Option<Finding> {
    let failure = Failure::new(model)?;
    let holders = Holders::new(model, &failure);
    let cause = failure.cause();
    let mut finding = Finding::new(
        Kind::Oom,
        Severity::High,
        format!("{} failed", counted(failure.count, "allocation")),
        summary(model, &failure, &holders, cause),
        failure.asked,
    );
    finding.count = failure.count;
    finding.cause = Some(cause);
    let held_at = holders.lines_of(holders.main).first().and_then(|line| line.0);
    finding.site = if holders.is_model || failure.asked > failure.active {
        failure.line.or(held_at)
    } else {
        held_at.or(failure.line)
    };
    finding.module = model.module_at(failure.event, finding.site);
    details(model, &failure, &holders, leaked, &mut finding);
    finding.fix = fix(model, &failure, &holders, leaked);
    finding.evidence = evidence(&failure, &holders);
    let (least, most) = (failure.usable(), failure.usable_at_most());
    if failure.is_limited() && least.to_string() != most.to_string() {
        finding
            .caveats
            .push(format!("the limit itself is not in the file: it lies between {least} and {most}"));
    }
    Some(finding)
}

fn summary(model: &RunModel<'_>, failure: &Failure, holders: &Holders, cause: Cause) -> String {
    let at =
        failure.line.map(|frame| format!(" at {}", place(model.device.snapshot, frame))).unwrap_or_default();
    let room = match (failure.is_limited(), failure.is_limit_known()) {
        (false, _) => format!("{} that the device had for this process", failure.usable()),
        (true, true) if failure.usable() == failure.usable_at_most() => {
            format!("a limit of {}", failure.usable())
        }
        (true, true) => format!("a limit of about {}", failure.usable()),
        (true, false) => format!("a limit between {} and {}", failure.usable(), failure.usable_at_most()),
    };
    let asked = failure.asked;
    match cause {
        Cause::Capacity if failure.allocated == Bytes::ZERO => {
            format!("{asked} did not fit{at}: nothing was allocated, {room} is too small")
        }
        Cause::Capacity => format!(
            "{asked} did not fit{at}: {} of {room} were in use, {} of it {}",
            failure.active,
            percent(share(holders.main_bytes(), failure.allocated)),
            if holders.is_model { "parameters, gradients and optimizer state" } else { plural(holders.main) }
        ),
        Cause::Fragmentation => format!(
            "{asked} did not fit{at} although {} were free: no piece was larger than {}",
            failure.free.total() + failure.room_for_segments(),
            failure.largest_that_fits()
        ),
    }
}

fn plural(category: Category) -> &'static str {
    match category {
        Category::Parameter => "parameters",
        Category::Buffer => "buffers",
        Category::Gradient => "gradients",
        Category::Optimizer => "optimizer states",
        Category::Activation => "activations",
        Category::Input => "inputs",
        Category::Temporary => "temporaries",
        Category::Workspace => "library workspaces",
        Category::Unknown => "blocks of unknown use",
    }
}

/// Who held the memory when it failed.
struct Holders {
    categories: [Bytes; Category::ALL.len()],
    lines: FxHashMap<(Category, Option<FrameId>), (Bytes, u64)>,
    /// The category that holds the most.
    main: Category,
    /// Whether parameters, gradients and optimizer state together are what fills the memory.
    is_model: bool,
}

impl Holders {
    fn new(model: &RunModel<'_>, failure: &Failure) -> Holders {
        let mut categories = [Bytes::ZERO; Category::ALL.len()];
        let mut lines: FxHashMap<(Category, Option<FrameId>), (Bytes, u64)> = FxHashMap::default();
        for (row, life) in model.device.history.lives.iter().enumerate() {
            if life.is_allocated_at(failure.event) {
                let category = model.categories.of(row);
                categories[category as usize] += life.size;
                let line = lines.entry((category, model.frame_of_life(row))).or_default();
                line.0 += life.size;
                line.1 += 1;
            }
        }
        let main = Category::ALL
            .into_iter()
            .rev()
            .max_by_key(|&of| categories[of as usize])
            .filter(|&of| categories[of as usize] > Bytes::ZERO)
            .unwrap_or(Category::Unknown);
        let model: Bytes = MODEL.iter().map(|&of| categories[of as usize]).sum();
        let is_model = share(model, failure.allocated) >= MOSTLY_MODEL;
        Holders { categories, lines, main, is_model }
    }

    fn model(&self) -> Bytes {
        MODEL.iter().map(|&of| self.categories[of as usize]).sum()
    }

    fn main_bytes(&self) -> Bytes {
        if self.is_model { self.model() } else { self.categories[self.main as usize] }
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

fn details(model: &RunModel<'_>, failure: &Failure, holders: &Holders, leaked: Bytes, finding: &mut Finding) {
    let snapshot = model.device.snapshot;
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
        .lines_of(holders.main)
        .iter()
        .take(LINES)
        .map(|&(frame, bytes, count)| {
            let line = place_or(snapshot, frame, "lines that were not recorded");
            format!("{line} ({bytes}, {})", counted(count, "block"))
        })
        .collect();
    finding.details.push(format!("the {} come from {}", plural(holders.main), listed(&lines)));
    if let Some(projection) = failure.projection.as_ref().filter(|_| failure.is_limit_known()) {
        finding.details.push(projected(projection, failure));
    }
    if leaked.0 > failure.active.0 / 10 {
        finding.details.push(format!("{leaked} of it had piled up step by step: see the leak"));
    }
    if failure.cause() == Cause::Capacity && failure.is_limited() {
        finding.details.push(format!(
            "the device itself still had {} free: a memory limit (`set_per_process_memory_fraction`) refused it",
            failure.device_free
        ));
    }
    if let Some(others) = others(failure) {
        finding.details.push(others);
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

fn projected(projection: &Projection, failure: &Failure) -> String {
    let pace = match projection.times {
        times if times > 1.1 => {
            format!("it holds {times:.1} times as much as the step before at the same place")
        }
        times if times < 0.9 => {
            format!("it holds {} of what the step before held at the same place", percent(times))
        }
        _ => "it goes like the step before".to_owned(),
    };
    format!(
        "{pace}, which peaked at {}: to finish it would have needed about {}, {} more than it could have",
        projection.before,
        projection.needed,
        projection.needed.saturating_sub(failure.usable())
    )
}

fn fix(model: &RunModel<'_>, failure: &Failure, holders: &Holders, leaked: Bytes) -> String {
    let snapshot = model.device.snapshot;
    let without_leak = failure.active.saturating_sub(leaked) + failure.asked;
    if leaked.0 > failure.active.0 / 3 && without_leak <= failure.usable() {
        return "stop the leak: without it this request would have passed".to_owned();
    }
    if failure.cause() == Cause::Fragmentation {
        let is_expandable = model.device.history.regions.iter().any(|region| region.expandable);
        return if is_expandable {
            "keep sizes equal from step to step (pad or bucket the inputs), so that freed blocks fit again"
                .to_owned()
        } else {
            "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: the free pieces then join and this request fits; what \
             the rest of the step needs the file does not tell"
                .to_owned()
        };
    }
    let named = |frame: Option<FrameId>| place_or(snapshot, frame, "the lines above");
    if failure.asked > failure.active {
        return format!(
            "one request of {} at {} is larger than everything else together: make that tensor smaller (in chunks, a shorter \
             sequence; for attention scores `scaled_dot_product_attention`, which never makes them)",
            failure.asked,
            named(failure.line)
        );
    }
    if holders.is_model && holders.model() + failure.asked > failure.usable() {
        return format!(
            "the model itself is too large here: parameters, gradients and optimizer state take {} so far. Use bf16 \
             parameters, an optimizer with less state, or shard them (FSDP); a smaller batch does not help",
            holders.model()
        );
    }
    let line = named(holders.lines_of(holders.main).first().and_then(|line| line.0).or(failure.line));
    let smaller = match &failure.projection {
        Some(projection) if failure.is_limit_known() => {
            let room = failure.usable().saturating_sub(projection.base).0 as f64;
            let needs = projection.needed.saturating_sub(projection.base).0 as f64;
            format!(
                "a batch or sequence at least {} smaller",
                percent((1.0 - room / needs.max(1.0)).max(0.01))
            )
        }
        _ => "a smaller batch or a shorter sequence".to_owned(),
    };
    match holders.main {
        Category::Workspace if !model.cudnn_trials().is_empty() => {
            "set `torch.backends.cudnn.benchmark = False`: the workspaces are its trials".to_owned()
        }
        Category::Unknown if failure.allocated == Bytes::ZERO => {
            format!("ask for less: {} is more than there is, with nothing else allocated", failure.asked)
        }
        Category::Unknown => format!("{line} holds the most: keep less of it, or for a shorter time"),
        _ if model.device.backward.next_after(0).is_some() => {
            format!("{smaller} at {line}; or activation checkpointing or autocast there")
        }
        _ => format!("{smaller} at {line}; and `torch.inference_mode()` there if grad mode is on"),
    }
}

fn evidence(failure: &Failure, holders: &Holders) -> Vec<(&'static str, Value)> {
    let mut lines: Vec<_> = holders.lines.iter().map(|(&key, &held)| (key, held)).collect();
    lines.sort_by_key(|&((category, frame), (bytes, _))| (std::cmp::Reverse(bytes), category, frame));
    let held =
        Category::ALL.iter().map(|&of| (of.name(), Value::Bytes(holders.categories[of as usize]))).collect();
    let lines = lines.iter().take(8).map(|&((category, frame), (bytes, count))| {
        let mut record = vec![
            ("category", Value::Text(category.name().to_owned())),
            ("bytes", Value::Bytes(bytes)),
            ("count", Value::Count(count)),
        ];
        record.extend(frame.map(|frame| ("site", Value::Site(frame))));
        Value::Record(record)
    });
    let limited_by = if failure.is_limited() { "memory limit" } else { "device" };
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
        ("limited_by", Value::Text(limited_by.to_owned())),
        ("usable_at_least", Value::Bytes(failure.usable())),
        ("usable_at_most", Value::Bytes(failure.usable_at_most())),
        ("held", Value::Record(held)),
        ("lines", Value::List(lines.collect())),
    ];
    evidence.extend(failure.line.map(|frame| ("failed_at", Value::Site(frame))));
    evidence.extend(said(failure));
    if let Some(projection) = &failure.projection {
        evidence.push(("step_would_need", Value::Bytes(projection.needed)));
        evidence.push(("times_the_step_before", Value::Ratio(projection.times)));
    }
    evidence
}
