//! Why an allocation failed, and what would have let it pass.

use super::evaluation::{self, EvaluationWithGraph};
use super::failure::{OomFailure, Projection};
use super::finding::{EvidenceValue, Finding, FindingKind, OomCause, Severity};
use super::line::{NamedSite, SiteBytes};
use super::non_pytorch::{driver_evidence, other_processes};
use crate::run::categories::{ByCategory, Category};
use crate::run::holders::Held;
use crate::run::model::RunModel;
use crate::trace::modules::ModuleId;
use crate::words::{counted, grouped, listed, percent, share};
use heap::HolderKind;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId};

/// Lines that are named.
const MAX_LINES: usize = 3;
/// Share of the allocated memory from which what collects it is the reason.
const MIN_KEPT_SHARE: f64 = 0.35;
/// What the model itself takes, whatever the batch.
const MODEL: [Category; 4] = [Category::Parameter, Category::Buffer, Category::Gradient, Category::Optimizer];
/// Tensors of a parameter's size that an optimizer keeps for it, at most: Adam has two.
const STATES_PER_PARAMETER: u64 = 2;
/// Share of the allocated memory from which the model fills it.
const MOSTLY_MODEL: f64 = 0.6;

/// The last failed allocation, in numbers.
pub(super) struct OomFacts {
    failure: OomFailure,
    cause: OomCause,
    held: HeldMemory,
    /// What leaks had retained by then.
    leaked: Bytes,
    /// The line that made the request.
    failed_at: NamedSite,
    /// The line to look at.
    site: Option<FrameId>,
    module: Option<ModuleId>,
    is_expandable: bool,
    /// Whether cuDNN tried its algorithms.
    has_trials: bool,
    /// Whether a `backward()` ran.
    has_backward: bool,
    /// Optimizer state that was still to be made, if the allocation failed in the optimizer's first step.
    state_to_come: Bytes,
    /// What keeps a good part of the memory that the step itself does not need.
    kept_by: Option<Held>,
    /// The evaluation whose graphs hold a good part of the memory.
    evaluation: Option<EvaluationWithGraph>,
    /// Whether the program has caught the exception: it allocates afterwards.
    is_caught: bool,
}

/// What the memory was in use for when the allocation failed.
struct HeldMemory {
    categories: ByCategory,
    /// The lines of each category, largest first.
    lines: Vec<(Category, SiteBytes)>,
    /// The category that holds the most.
    main: Category,
    /// Whether parameters, gradients and optimizer state together are what fills the memory.
    is_model: bool,
}

/// The facts of the last failed allocation, if there was one. `leaked` is what leaks had retained by then.
pub(super) fn measure(model: &RunModel<'_>, leaked: Bytes) -> Option<OomFacts> {
    let failure = OomFailure::new(model)?;
    let held = HeldMemory::new(model, &failure);
    let held_at = held.main_line().and_then(|line| line.line.frame);
    let site = if held.is_model || failure.requested > failure.active {
        failure.line.or(held_at)
    } else {
        held_at.or(failure.line)
    };
    Some(OomFacts {
        cause: failure.cause(),
        leaked,
        failed_at: NamedSite::new(model, failure.line),
        site,
        module: model.module_at(failure.event, site),
        is_expandable: model.device.history.regions.iter().any(|region| region.expandable),
        has_trials: !model.cudnn_trials().is_empty(),
        has_backward: model.device.backward.next_after(0).is_some(),
        state_to_come: state_to_come(model, &failure, &held),
        kept_by: kept_by(model, &failure),
        evaluation: evaluation::measure(model, failure.event, Bytes(failure.active.0 / 3)),
        is_caught: model
            .device
            .history
            .allocations
            .last()
            .is_some_and(|last| last.alloc_event().is_some_and(|event| event > failure.event)),
        failure,
        held,
    })
}

/// What keeps most of the memory besides the model, if it is something that collects: a list, a cache, a
/// stored exception. The activations of a step that runs are held by its graph and by local variables.
fn kept_by(model: &RunModel<'_>, failure: &OomFailure) -> Option<Held> {
    let allocations = model.device.history.allocations.iter().enumerate();
    let rows: Vec<usize> = allocations
        .filter(|(row, allocation)| {
            let category = model.categories.of(*row);
            allocation.is_allocated_at(failure.event)
                && category != Category::Workspace
                && !MODEL.contains(&category)
        })
        .map(|(row, _)| row)
        .collect();
    let held = model.device.held(rows.into_iter())?;
    let collects = match held.kind {
        HolderKind::Container => held.entries > 1,
        HolderKind::Exception
        | HolderKind::LastError
        | HolderKind::Cache
        | HolderKind::Hook
        | HolderKind::Logger
        | HolderKind::Notebook => true,
        _ => false,
    };
    (collects && share(held.bytes, failure.allocated) >= MIN_KEPT_SHARE).then_some(held)
}

/// Optimizer state that is still missing when an allocation fails in the optimizer's first step. Every
/// parameter with a gradient gets as many tensors of its size as the first one got.
fn state_to_come(model: &RunModel<'_>, failure: &OomFailure, held: &HeldMemory) -> Bytes {
    let history = &model.device.history;
    let role_of = |stack| model.device.roles.of(stack);
    let record = model.device.snapshot.events.get(history.rows.start + failure.event);
    let phase = model.device.scope_at(failure.event).phase;
    if !role_of(record.stack).during(phase).optimizer {
        return Bytes::ZERO;
    }
    let states = history.allocations.iter().enumerate().filter(|(row, allocation)| {
        allocation.is_allocated_at(failure.event) && model.categories.of(*row) == Category::Optimizer
    });
    let states: Vec<Bytes> = states.map(|(_, allocation)| allocation.requested).collect();
    let gradients = held.categories.get(Category::Gradient);
    let of_state: Bytes = states.iter().copied().sum();
    // Equal sizes in a row belong to one parameter; with several equal parameters that is an upper bound, so
    // the multiples that optimizers have limit it.
    let alike = states.windows(2).take_while(|pair| pair[0] == pair[1]).count() as u64 + 1;
    let per_parameter = if states.is_empty() { 1 } else { alike.min(STATES_PER_PARAMETER) };
    Bytes(gradients.0.saturating_mul(per_parameter)).saturating_sub(of_state)
}

impl HeldMemory {
    fn new(model: &RunModel<'_>, failure: &OomFailure) -> HeldMemory {
        let mut categories = ByCategory::default();
        let mut lines: FxHashMap<(Category, Option<FrameId>), (Bytes, u64)> = FxHashMap::default();
        for (row, allocation) in model.device.history.allocations.iter().enumerate() {
            if allocation.is_allocated_at(failure.event) {
                let category = model.categories.of(row);
                categories.0[category as usize] += allocation.size;
                let line = lines.entry((category, model.frame_of_allocation(row))).or_default();
                line.0 += allocation.size;
                line.1 += 1;
            }
        }
        let main = Category::ALL
            .into_iter()
            .rev()
            .max_by_key(|&of| categories.get(of))
            .filter(|&of| categories.get(of) > Bytes::ZERO)
            .unwrap_or(Category::Unknown);
        let mut lines: Vec<_> = lines.into_iter().collect();
        lines.sort_by_key(|&((category, frame), (bytes, _))| (std::cmp::Reverse(bytes), category, frame));
        let named = |((category, frame), (bytes, blocks))| {
            (category, SiteBytes { line: NamedSite::new(model, frame), bytes, blocks })
        };
        let lines = lines.into_iter().map(named).collect();
        let mut held = HeldMemory { categories, lines, main, is_model: false };
        held.is_model = share(held.model(), failure.allocated) >= MOSTLY_MODEL;
        held
    }

    fn model(&self) -> Bytes {
        MODEL.iter().map(|&of| self.categories.get(of)).sum()
    }

    fn main_bytes(&self) -> Bytes {
        if self.is_model { self.model() } else { self.categories.get(self.main) }
    }

    /// The lines of the main category, largest first.
    fn main_lines(&self) -> impl Iterator<Item = &SiteBytes> {
        self.lines.iter().filter(|(category, _)| *category == self.main).map(|(_, line)| line)
    }

    fn main_line(&self) -> Option<&SiteBytes> {
        self.main_lines().next()
    }
}

/// The finding in words.
pub(super) fn describe(facts: &OomFacts) -> Finding {
    let failure = &facts.failure;
    let (least, most) = (failure.usable(), failure.usable_at_most());
    let mut caveats = Vec::new();
    if failure.is_limited() && least.to_string() != most.to_string() {
        caveats.push(format!("the limit itself is not in the file: it is between {least} and {most}"));
    }
    let reason = format!("{} failed", counted(failure.count, "allocation"));
    let severity = if facts.is_caught { Severity::Medium } else { Severity::High };
    Finding {
        count: failure.count,
        cause: Some(facts.cause),
        site: facts.site,
        module: facts.module,
        details: details(facts),
        fix: fix(facts),
        evidence: evidence(facts),
        caveats,
        held: facts.kept_by.clone(),
        ..Finding::new(FindingKind::Oom, severity, reason, summary(facts), failure.requested)
    }
}

fn summary(facts: &OomFacts) -> String {
    let (failure, held, at) = (&facts.failure, &facts.held, facts.failed_at.at());
    let room = match (failure.is_limited(), failure.is_limit_known()) {
        (false, _) => format!("the {} available to this process", failure.usable()),
        (true, true) if failure.usable() == failure.usable_at_most() => {
            format!("a limit of {}", failure.usable())
        }
        (true, true) => format!("a limit of about {}", failure.usable()),
        (true, false) => format!("a limit between {} and {}", failure.usable(), failure.usable_at_most()),
    };
    let requested = failure.requested;
    match facts.cause {
        OomCause::Capacity if failure.allocated == Bytes::ZERO => {
            format!("{requested} did not fit{at}: nothing was allocated, {room} is too small")
        }
        OomCause::Capacity => format!(
            "{requested} did not fit{at}: {} of {room} was in use, {} of it {}{}",
            failure.active,
            percent(share(held.main_bytes(), failure.allocated)),
            if held.is_model { "parameters, gradients and optimizer state" } else { plural(held.main) },
            match failure.kept_by_pools() {
                Some(kept) => format!("; private pools keep {kept} more"),
                None => String::new(),
            }
        ),
        OomCause::Fragmentation => format!(
            "{requested} did not fit{at} although {} was free: no free block was larger than {}",
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
        Category::Unknown => "blocks of unknown category",
    }
}

fn details(facts: &OomFacts) -> Vec<String> {
    let OomFacts { failure, held, leaked, .. } = facts;
    let mut in_use: Vec<Category> = Category::ALL
        .into_iter()
        .filter(|&of| share(held.categories.get(of), failure.allocated) >= 0.01)
        .collect();
    in_use.sort_by_key(|&of| std::cmp::Reverse(held.categories.get(of)));
    let in_use: Vec<String> =
        in_use.iter().map(|&of| format!("{} {}", held.categories.get(of), plural(of))).collect();
    if in_use.is_empty() {
        return Vec::new();
    }
    let lines: Vec<String> = held.main_lines().take(MAX_LINES).map(SiteBytes::words).collect();
    let mut details = vec![
        format!("in use at event {}: {}", grouped(failure.event as u64), listed(&in_use)),
        format!("the {} come from {}", plural(held.main), listed(&lines)),
    ];
    if facts.is_caught {
        let all = match failure.count {
            0 | 1 => String::new(),
            count => format!("; {count} allocations failed in all, this was the last"),
        };
        details.insert(0, format!("the program caught the exception and went on{all}"));
    }
    details.extend(facts.kept_by.as_ref().map(|held| held.sentence.clone()));
    if facts.state_to_come > Bytes::ZERO {
        details.push(format!(
            "it is the first step of the optimizer, which keeps state for every parameter that has a \
             gradient: {} has been allocated, {} is still to come",
            held.categories.get(Category::Optimizer),
            facts.state_to_come
        ));
    }
    if let Some(projection) = failure.projection.as_ref().filter(|_| failure.is_limit_known()) {
        details.push(projected(projection, failure));
    }
    if leaked.0 > failure.active.0 / 10 {
        details.push(format!("{leaked} of it had accumulated step by step: see the leak"));
    }
    if facts.cause == OomCause::Capacity && failure.is_limited() {
        details.push(format!(
            "the device itself still had {} free: a memory limit (`set_per_process_memory_fraction`) \
             refused it",
            failure.device_free
        ));
    }
    details.extend(other_processes(failure));
    details.extend(failure.kept_by_pools().map(|kept| {
        format!(
            "{kept} is free in private pools of CUDA graphs or `MemPool`s, which only they can use: see the \
             private pools"
        )
    }));
    let free = failure.free.total();
    details.push(match failure.largest_that_fits() {
        Bytes::ZERO if free == Bytes::ZERO => "none of the reserved memory was free".to_owned(),
        Bytes::ZERO => format!("the {free} of free memory is kept for other streams or block sizes"),
        largest => format!(
            "the largest request that would have succeeded is {largest}; {free} of the reserved memory was \
             free"
        ),
    });
    details
}

fn projected(projection: &Projection, failure: &OomFailure) -> String {
    let pace = match projection.times {
        times if times > 1.1 => {
            format!("it holds {times:.1} times as much as the previous step at the same point")
        }
        times if times < 0.9 => {
            format!("it holds {} of what the previous step held at the same point", percent(times))
        }
        _ => "it is like the previous step".to_owned(),
    };
    format!(
        "{pace}, which peaked at {}: to finish it would have needed about {}, {} more than available",
        projection.before,
        projection.needed,
        projection.needed.saturating_sub(failure.usable())
    )
}

fn fix(facts: &OomFacts) -> String {
    let OomFacts { failure, leaked, .. } = facts;
    let without_leak = failure.active.saturating_sub(*leaked) + failure.requested;
    if leaked.0 > failure.active.0 / 3 && without_leak <= failure.usable() {
        return "stop the leak: without it this request would have succeeded".to_owned();
    }
    let other = fix_without_pools(facts);
    let other = match &facts.evaluation {
        Some(evaluation) => evaluation.fix(&other),
        None => other,
    };
    match failure.kept_by_pools() {
        Some(kept) => {
            format!(
                "release the {kept} in private pools, which is enough for this request. Otherwise: {other}"
            )
        }
        None => other,
    }
}

/// Advice about everything but private pools.
fn fix_without_pools(facts: &OomFacts) -> String {
    let OomFacts { failure, held, .. } = facts;
    if let Some(held) = &facts.kept_by {
        return held.advice.clone();
    }
    if facts.cause == OomCause::Fragmentation && facts.is_expandable {
        return "keep sizes equal from step to step (pad or bucket the inputs), so that freed blocks fit again"
            .to_owned();
    }
    if facts.cause == OomCause::Fragmentation {
        return "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: it lets free memory be merged, and \
             this request fits; the file does not show what the rest of the step needs"
            .to_owned();
    }
    if failure.requested > failure.active {
        return format!(
            "one request of {} at {} is larger than everything else together: make that tensor smaller (in \
             chunks, a shorter sequence; for attention scores `scaled_dot_product_attention`, which \
             never makes them)",
            failure.requested,
            facts.failed_at.or("the lines above")
        );
    }
    let model = held.model() + facts.state_to_come.max(failure.requested);
    if held.is_model && model > failure.usable() {
        return format!(
            "the model itself is too large here: parameters, gradients and optimizer state need {model}, and \
             a smaller batch or activation checkpointing leaves them as they are. Shard them (FSDP, ZeRO), \
             use bf16 parameters or an optimizer with less state (8-bit, Adafactor), train fewer parameters \
             (LoRA), or use a larger GPU"
        );
    }
    fix_for_main(facts)
}

/// Advice about the category that holds the most.
fn fix_for_main(facts: &OomFacts) -> String {
    let OomFacts { failure, held, .. } = facts;
    let main_line = held.main_line().map(|line| &line.line).filter(|line| line.frame.is_some());
    let line = main_line.unwrap_or(&facts.failed_at).or("the lines above");
    let by = match &failure.projection {
        Some(projection) if failure.is_limit_known() => {
            let room = failure.usable().saturating_sub(projection.base).0 as f64;
            let needs = projection.needed.saturating_sub(projection.base).0 as f64;
            format!(" by at least {}", percent((1.0 - room / needs.max(1.0)).max(0.01)))
        }
        _ => String::new(),
    };
    let smaller = format!("reduce the batch size or sequence length at {line}{by}");
    match held.main {
        Category::Workspace if facts.has_trials => {
            "set `torch.backends.cudnn.benchmark = False`: the workspaces are its trials".to_owned()
        }
        Category::Unknown if failure.allocated == Bytes::ZERO => {
            format!("request less: {} is more than there is, with nothing else allocated", failure.requested)
        }
        Category::Unknown => format!("{line} holds the most: keep less of it, or for a shorter time"),
        _ if facts.has_backward => {
            format!("{smaller}, or use activation checkpointing or autocast there")
        }
        _ => format!("{smaller}, and use `torch.inference_mode()` there if grad mode is on"),
    }
}

fn evidence(facts: &OomFacts) -> Vec<(&'static str, EvidenceValue)> {
    let OomFacts { failure, held, .. } = facts;
    let by_category =
        Category::ALL.iter().map(|&of| (of.name(), EvidenceValue::Bytes(held.categories.get(of)))).collect();
    let lines = held.lines.iter().take(8).map(|(category, line)| {
        let mut record = vec![("category", EvidenceValue::Text(category.name().to_owned()))];
        record.extend(line.evidence());
        EvidenceValue::Record(record)
    });
    let limited_by = if failure.is_limited() { "memory limit" } else { "device" };
    let mut evidence = vec![
        ("event", EvidenceValue::Count(failure.event as u64)),
        ("requested", EvidenceValue::Bytes(failure.requested)),
        ("device_free", EvidenceValue::Bytes(failure.device_free)),
        ("allocated", EvidenceValue::Bytes(failure.allocated)),
        ("active", EvidenceValue::Bytes(failure.active)),
        ("reserved", EvidenceValue::Bytes(failure.reserved)),
        ("reserved_but_free", EvidenceValue::Bytes(failure.free.total())),
        ("largest_free_piece", EvidenceValue::Bytes(failure.free.largest)),
        ("largest_request_that_fits", EvidenceValue::Bytes(failure.largest_that_fits())),
        ("short_by_at_least", EvidenceValue::Bytes(failure.short())),
        ("limited_by", EvidenceValue::Text(limited_by.to_owned())),
        ("usable_at_least", EvidenceValue::Bytes(failure.usable())),
        ("usable_at_most", EvidenceValue::Bytes(failure.usable_at_most())),
        ("held", EvidenceValue::Record(by_category)),
        ("lines", EvidenceValue::List(lines.collect())),
    ];
    evidence.extend(failure.line.map(|frame| ("failed_at", EvidenceValue::Site(frame))));
    evidence.extend(driver_evidence(failure));
    if let Some(projection) = &failure.projection {
        evidence.push(("step_would_need", EvidenceValue::Bytes(projection.needed)));
        evidence.push(("times_the_step_before", EvidenceValue::Ratio(projection.times)));
    }
    evidence
}
