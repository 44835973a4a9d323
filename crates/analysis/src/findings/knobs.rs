//! Settings of well-known libraries that change what a finding is about.
//!
//! The user's line is the call into the library; the function of the library that allocates says which
//! setting helps. A row per function, recognised by its package and name.

use super::finding::{Finding, FindingKind};
use crate::run::model::RunModel;
use crate::trace::site::in_package;
use rustc_hash::FxHashMap;
use snapshot::StackId;

/// What a library's function does, and the setting that changes it.
struct KnobRow {
    /// Beginning of the path below the folder of installed packages.
    file: &'static str,
    /// Names of functions, as in a stack.
    functions: &'static [&'static str],
    /// How the function is called in a sentence.
    name: &'static str,
    /// Kinds of findings that it explains.
    kinds: &'static [FindingKind],
    /// What it does, after “which”.
    does: &'static str,
    /// What to change.
    fix: &'static str,
}

/// Findings about what a step needs at its highest point.
const PEAKS: &[FindingKind] =
    &[FindingKind::Oom, FindingKind::Spike, FindingKind::Fragmentation, FindingKind::RisingPeak];
/// Findings about what stays, and its consequences.
const GROWTH: &[FindingKind] =
    &[FindingKind::Leak, FindingKind::RetainedGrowth, FindingKind::Fragmentation, FindingKind::Oom];
/// Share of a finding's bytes that a function has to have.
const MIN_SHARE: f64 = 0.3;

static KNOBS: &[KnobRow] = &[
    KnobRow {
        file: "transformers/trainer",
        functions: &["evaluation_loop", "prediction_loop", "evaluate", "predict"],
        name: "`Trainer.evaluate` of transformers",
        kinds: &[
            FindingKind::Leak,
            FindingKind::RetainedGrowth,
            FindingKind::Fragmentation,
            FindingKind::Spike,
            FindingKind::Oom,
            FindingKind::RisingPeak,
        ],
        does: "gathers the logits of the whole evaluation on the GPU for `compute_metrics`, and copies all \
               of them each time it adds a batch",
        fix: "set `eval_accumulation_steps=1` to move them to the CPU after each batch; better, return only \
              what the metric needs (`preprocess_logits_for_metrics`, such as an argmax), or compute it \
              batch by batch (`batch_eval_metrics=True`)",
    },
    KnobRow {
        file: "torch/nn/parallel/distributed.py",
        functions: &["__init__", "_ddp_init_helper"],
        name: "`DistributedDataParallel`",
        kinds: PEAKS,
        does: "keeps a second copy of the gradients in its buckets",
        fix: "create it with `gradient_as_bucket_view=True`, which makes the gradients views of the buckets",
    },
    KnobRow {
        file: "torchmetrics/",
        functions: &["update", "wrapped_func", "forward"],
        name: "a metric of torchmetrics",
        kinds: GROWTH,
        does: "keeps every value that it is given until `reset()`",
        fix: "give it `thresholds=…` (curves then have a fixed size), call `reset()` after each epoch, or \
              set `compute_on_cpu=True`, which moves its lists to the CPU",
    },
];

/// Adds the setting of a library to each finding whose memory is allocated by one of its functions.
pub(super) fn add(model: &RunModel<'_>, findings: &mut [Finding]) {
    let mut rows: FxHashMap<StackId, Option<usize>> = FxHashMap::default();
    for finding in findings {
        let Some(at) = position(model, finding) else { continue };
        let mut bytes = [0u64; KNOBS.len()];
        let mut all = 0u64;
        for allocation in model.device.history.allocated_at(at) {
            if finding.site.is_some() && model.frame_of(allocation.stack) != finding.site {
                continue;
            }
            all = all.saturating_add(allocation.size.0);
            let row = *rows.entry(allocation.stack).or_insert_with(|| row_of(model, allocation.stack));
            if let Some(row) = row.filter(|&row| KNOBS[row].kinds.contains(&finding.kind)) {
                bytes[row] = bytes[row].saturating_add(allocation.size.0);
            }
        }
        let Some((row, &most)) = bytes.iter().enumerate().max_by_key(|&(_, &bytes)| bytes) else { continue };
        if most == 0 || (most as f64) < MIN_SHARE * all as f64 {
            continue;
        }
        let knob = &KNOBS[row];
        finding.details.insert(0, format!("it comes from {}, which {}", knob.name, knob.does));
        finding.fix = match finding.kind {
            FindingKind::Fragmentation => format!("{}. Also: {}", knob.fix, finding.fix),
            _ => knob.fix.to_owned(),
        };
    }
}

/// Where the memory of a finding is at its most.
fn position(model: &RunModel<'_>, finding: &Finding) -> Option<usize> {
    match finding.kind {
        FindingKind::Oom => model.step_peaks.ooms.last().copied(),
        FindingKind::Leak | FindingKind::RetainedGrowth => model.device.steps.bounds.last().copied(),
        _ => Some(model.device.history.allocated_peak.position),
    }
}

/// The row of the innermost function of a stack that has one.
fn row_of(model: &RunModel<'_>, stack: StackId) -> Option<usize> {
    let snapshot = model.device.snapshot;
    snapshot.stacks.frames(stack).iter().find_map(|&id| {
        let frame = snapshot.stacks.frame(id);
        let file = snapshot.strings.get(frame.file).replace('\\', "/");
        let (inside, function) = (in_package(&file)?, snapshot.strings.get(frame.function));
        KNOBS.iter().position(|knob| inside.starts_with(knob.file) && knob.functions.contains(&function))
    })
}
