//! Settings of well-known libraries that change what a finding is about.
//!
//! The user's line is the call into the library; the function of the library that allocates says which
//! setting helps. A row per function, recognised by its package and name.

use super::finding::{Finding, FindingKind};
use crate::run::categories::Category;
use crate::run::model::RunModel;
use crate::trace::site::in_package;
use crate::words::{percent, share};
use heap::HolderKind;
use rustc_hash::FxHashMap;
use snapshot::{Bytes, FrameId, Snapshot, StackId};
use std::cmp::Reverse;

/// What a library's function does, and the setting that changes it.
struct KnobRow {
    /// Beginning of the path below the folder of installed packages.
    file: &'static str,
    /// Names of functions, as in a stack; none for all functions of the file.
    functions: &'static [&'static str],
    /// Category of the memory that the setting changes; `None` for any.
    category: Option<Category>,
    /// Beginning of the class of the library's objects that keep the memory; none where they keep nothing.
    owner: Option<&'static str>,
    /// Kinds of findings that it explains.
    kinds: &'static [FindingKind],
    /// How the function is called in a sentence.
    name: &'static str,
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
/// Findings about a library that gathers something until it is done.
const GATHERED: &[FindingKind] = &[
    FindingKind::Leak,
    FindingKind::RetainedGrowth,
    FindingKind::Fragmentation,
    FindingKind::Spike,
    FindingKind::Oom,
    FindingKind::RisingPeak,
];
/// Share of a finding's bytes that a function has to have.
const MIN_SHARE: f64 = 0.3;
/// Share of all memory in use that it has to have when an allocation fails: the model is in it as well.
const MIN_SHARE_AT_OOM: f64 = 0.1;

/// One row per function of a library. `bench/knobs/` has a program for each, which `bench/knobs.py` runs with
/// and without the setting. The first row that fits counts, from the innermost function of a stack outward.
static KNOBS: &[KnobRow] = &[
    KnobRow {
        file: "transformers/trainer",
        functions: &["evaluation_loop", "prediction_loop", "evaluate", "predict"],
        category: None,
        owner: None,
        kinds: GATHERED,
        name: "`Trainer.evaluate` of transformers",
        does: "gathers the logits of the whole evaluation on the GPU for `compute_metrics`, and copies all \
               of them each time it adds a batch",
        fix: "set `eval_accumulation_steps=1` to move them to the CPU after each batch; better, return only \
              what the metric needs (`preprocess_logits_for_metrics`, such as an argmax), or compute it \
              batch by batch (`batch_eval_metrics=True`)",
    },
    KnobRow {
        file: "transformers/",
        functions: &["eager_attention_forward"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "`eager_attention_forward` of transformers",
        does: "stores the attention scores of every head, which grow with the square of the sequence",
        fix: "load the model with `attn_implementation=\"sdpa\"` (or `\"flash_attention_2\"`), which never \
              stores the scores",
    },
    KnobRow {
        file: "transformers/cache_utils.py",
        functions: &["update"],
        category: None,
        owner: None,
        kinds: GATHERED,
        name: "the key-value cache of transformers",
        does: "keeps keys and values of every layer, and copies those of a layer to add a token",
        fix: "call `generate(cache_implementation=\"offloaded\")`, which keeps one layer on the GPU, or \
              `\"static\"`, which allocates it once; or lower `max_new_tokens` and the number of sequences",
    },
    KnobRow {
        file: "peft/",
        functions: &[],
        category: Some(Category::Activation),
        owner: None,
        kinds: PEAKS,
        name: "a PEFT model",
        does: "trains few parameters but saves the activations of all layers of the base model",
        fix: "call `model.gradient_checkpointing_enable()` and `model.enable_input_require_grads()`",
    },
    KnobRow {
        file: "timm/models/",
        functions: &[],
        category: Some(Category::Activation),
        owner: None,
        kinds: PEAKS,
        name: "a model of timm",
        does: "saves the activations of all its blocks for `backward()`",
        fix: "call `model.set_grad_checkpointing()`, which computes them again in `backward()`",
    },
    KnobRow {
        file: "timm/utils/model_ema.py",
        functions: &[],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "`ModelEma` of timm",
        does: "keeps a second copy of all parameters",
        fix: "create it with `device=\"cpu\"`, which keeps the average in host memory",
    },
    KnobRow {
        file: "diffusers/models/autoencoders/",
        functions: &["decode", "_decode"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "the VAE of diffusers",
        does: "decodes the whole image in one piece",
        fix: "call `vae.enable_tiling()` (or `enable_slicing()` for a batch of images); \
              `pipe.enable_model_cpu_offload()` keeps only the part of the pipeline that runs on the GPU",
    },
    KnobRow {
        file: "accelerate/utils/operations.py",
        functions: &["convert_to_fp32", "_convert_to_fp32"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "mixed precision of accelerate",
        does: "converts everything that the model returns to float32, logits included",
        fix: "return only the loss from `forward` while training",
    },
    KnobRow {
        file: "torchmetrics/",
        functions: &["update", "wrapped_func", "forward"],
        category: None,
        owner: Some("torchmetrics."),
        kinds: GROWTH,
        name: "a metric of torchmetrics",
        does: "keeps every value that it is given until `reset()`",
        fix: "call `.reset()` after each epoch; give curves `thresholds=…`, so that they have a fixed size, \
              or set `compute_on_cpu=True`, which moves the lists to the CPU",
    },
    KnobRow {
        file: "torch/nn/parallel/distributed.py",
        functions: &["__init__", "_ddp_init_helper", "_pre_forward"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "`DistributedDataParallel`",
        does: "keeps a second copy of the gradients in its buckets",
        fix: "create it with `gradient_as_bucket_view=True`, which makes the gradients views of the buckets",
    },
    KnobRow {
        file: "torch/distributed/fsdp/_fully_shard/",
        functions: &["foreach_all_gather", "init_all_gather_outputs", "alloc_all_gather_outputs", "unshard"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "`fully_shard`",
        does: "gathers the parameters of a layer before it runs",
        fix: "leave `reshard_after_forward=True`, so that they are freed after the layer's forward pass, and \
              apply `fully_shard` to each block, so that few layers are gathered at once",
    },
    KnobRow {
        file: "deepspeed/runtime/zero/",
        functions: &["setup_buckets"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "ZeRO of DeepSpeed",
        does: "collects gradients in buckets of `reduce_bucket_size` elements, 500 million by default, \
               however small the model is; `overlap_comm` makes two of them",
        fix: "set `reduce_bucket_size` (and `allgather_bucket_size`) in `zero_optimization`, to 50 million \
              for example",
    },
    KnobRow {
        file: "deepspeed/runtime/",
        functions: &[
            "_configure_zero_optimizer",
            "initialize_optimizer_states",
            "_initialize_optimizer_states",
            "_optimizer_step",
            "step",
        ],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "the optimizer of DeepSpeed",
        does: "keeps its state and a float32 copy of the parameters on the GPU",
        fix: "set `\"offload_optimizer\": {\"device\": \"cpu\"}` in `zero_optimization`, which keeps both in \
              host memory; more GPUs with ZeRO have a smaller part each",
    },
    KnobRow {
        file: "torch/_functorch/_aot_autograd/",
        functions: &["forward"],
        category: Some(Category::Activation),
        owner: None,
        kinds: PEAKS,
        name: "`torch.compile`",
        does: "saves what `backward()` needs, and computes again only what costs hardly any time",
        fix: "set `torch._functorch.config.activation_memory_budget = 0.5` before the model is compiled (1 \
              saves everything, 0 as little as possible), which computes more of it again in `backward()`",
    },
    KnobRow {
        file: "torch/_inductor/cudagraph_trees.py",
        functions: &[],
        category: None,
        owner: None,
        kinds: &[FindingKind::PrivatePool],
        name: "`torch.compile(mode=\"reduce-overhead\")`",
        does: "records CUDA graphs, whose memory nothing else can use",
        fix: "compile with `mode=\"default\"` (or `\"max-autotune-no-cudagraphs\"`) if other parts of the \
              program need this memory; compile what is small and called often with graphs",
    },
    KnobRow {
        file: "torch/optim/",
        functions: &["_multi_tensor_adam", "_multi_tensor_adamw", "_multi_tensor_sgd", "_multi_tensor_nadam"],
        category: None,
        owner: None,
        kinds: PEAKS,
        name: "the optimizer's `foreach` implementation",
        does: "makes temporaries as large as all parameters together",
        fix: "create the optimizer with `fused=True`, or with `foreach=False`",
    },
    KnobRow {
        file: "trl/trainer/",
        functions: &["__init__", "compute_ref_log_probs"],
        category: Some(Category::Parameter),
        owner: None,
        kinds: PEAKS,
        name: "a trainer of TRL",
        does: "keeps a frozen reference model next to the one it trains",
        fix: "set `precompute_ref_log_probs=True`, which needs the reference model only before training; \
              with LoRA the base model is the reference",
    },
    KnobRow {
        file: "transformers/trainer",
        functions: &["training_step", "compute_loss"],
        category: Some(Category::Activation),
        owner: None,
        kinds: PEAKS,
        name: "`Trainer` of transformers",
        does: "saves the activations of all layers for `backward()`",
        fix: "set `gradient_checkpointing=True` in `TrainingArguments`, which computes them again in \
              `backward()`; or a smaller `per_device_train_batch_size` with \
              `gradient_accumulation_steps`, which `auto_find_batch_size=True` finds",
    },
    KnobRow {
        file: "transformers/trainer",
        functions: &[],
        category: Some(Category::Optimizer),
        owner: None,
        kinds: PEAKS,
        name: "the optimizer of `Trainer`",
        does: "keeps two tensors for every parameter (`adamw_torch`)",
        fix: "set `optim=\"adafactor\"` or `optim=\"adamw_8bit\"` (bitsandbytes) in `TrainingArguments`",
    },
    KnobRow {
        file: "lightning/pytorch/",
        functions: &["training_step"],
        category: Some(Category::Activation),
        owner: None,
        kinds: PEAKS,
        name: "`Trainer` of Lightning",
        does: "runs the step in the precision that it is given, float32 by default",
        fix: "set `precision=\"bf16-mixed\"`, or use a smaller batch with `accumulate_grad_batches`",
    },
];

/// Adds the setting of a library to each finding whose memory is allocated by one of its functions.
pub(super) fn add(model: &RunModel<'_>, findings: &mut [Finding]) {
    let rows = rows_by_frame(model.device.snapshot);
    let explain = |finding: &Finding| {
        if rows.is_empty() { None } else { explain(model, &rows, finding) }
    };
    for finding in findings {
        if let Some(found) = holder(finding).or_else(|| explain(finding)) {
            describe(&found, finding);
        }
    }
}

/// The rows of the functions of libraries that a snapshot mentions.
type RowsByFrame = FxHashMap<FrameId, Vec<usize>>;

fn rows_by_frame(snapshot: &Snapshot) -> RowsByFrame {
    let frames = snapshot.stacks.all_frames().iter().enumerate().filter_map(|(id, frame)| {
        let file = snapshot.strings.get(frame.file).replace('\\', "/");
        let (inside, function) = (in_package(&file)?, snapshot.strings.get(frame.function));
        let is_meant = |row: &KnobRow| {
            inside.starts_with(row.file) && (row.functions.is_empty() || row.functions.contains(&function))
        };
        let rows: Vec<usize> = (0..KNOBS.len()).filter(|&row| is_meant(&KNOBS[row])).collect();
        (!rows.is_empty()).then_some((FrameId(id as u32), rows))
    });
    frames.collect()
}

/// The row that explains most of a finding's memory.
struct Explained {
    row: &'static KnobRow,
    bytes: Bytes,
    share: f64,
    /// Whether an object of the library keeps the memory, wherever it is allocated.
    is_holder: bool,
}

/// The row of the library whose object holds a finding's memory.
fn holder(finding: &Finding) -> Option<Explained> {
    let owner = &finding.held.as_ref()?.owner;
    let is_meant = |row: &&KnobRow| {
        row.owner.is_some_and(|of| owner.starts_with(of)) && row.kinds.contains(&finding.kind)
    };
    let row = KNOBS.iter().find(is_meant)?;
    Some(Explained { row, bytes: finding.bytes, share: 1.0, is_holder: true })
}

fn explain(model: &RunModel<'_>, rows_by_frame: &RowsByFrame, finding: &Finding) -> Option<Explained> {
    let at = position(model, finding)?;
    let is_oom = finding.kind == FindingKind::Oom;
    let mut rows: FxHashMap<(StackId, Category), Option<usize>> = FxHashMap::default();
    let mut bytes = [Bytes::ZERO; KNOBS.len()];
    let mut all = Bytes::ZERO;
    let mut count = |stack: StackId, category: Category, size: Bytes| {
        all += size;
        let frames = model.device.snapshot.stacks.frames(stack);
        let find = || row_of(rows_by_frame, frames, category, finding.kind);
        if let Some(row) = *rows.entry((stack, category)).or_insert_with(find) {
            bytes[row] += size;
        }
    };
    for (row, allocation) in model.device.history.allocations.iter().enumerate() {
        let is_counted = allocation.is_allocated_at(at)
            && (is_oom || finding.site.is_none() || model.frame_of_allocation(row) == finding.site);
        if is_counted {
            count(allocation.stack, model.categories.of(row), allocation.size);
        }
    }
    if is_oom {
        // What failed would have been the next one.
        let failed = model.device.snapshot.events.get(model.device.history.rows.start + at);
        count(failed.stack, Category::Unknown, finding.bytes);
    }
    let (row, &most) = bytes.iter().enumerate().max_by_key(|&(row, &bytes)| (bytes, Reverse(row)))?;
    let share = share(most, all);
    let needed = if is_oom { MIN_SHARE_AT_OOM } else { MIN_SHARE };
    let is_enough = most > Bytes::ZERO && share >= needed;
    is_enough.then(|| Explained { row: &KNOBS[row], bytes: most, share, is_holder: false })
}

fn describe(found: &Explained, finding: &mut Finding) {
    let Explained { row, bytes, share, is_holder } = found;
    let (name, does) = (row.name, row.does);
    let detail = match finding.kind {
        _ if *is_holder => format!("it is held by {name}, which {does}"),
        FindingKind::Oom => {
            let share = percent(*share);
            format!("{share} of what was in use or asked for ({bytes}) came from {name}, which {does}")
        }
        _ => format!("it comes from {name}, which {does}"),
    };
    finding.details.insert(0, detail);
    finding.fix = match finding.kind {
        FindingKind::Fragmentation => format!("{}. Also: {}", row.fix, finding.fix),
        FindingKind::Oom => format!("{}. Otherwise: {}", row.fix, finding.fix),
        _ if !is_holder && is_kept_by_program(finding) => format!("{}. Also: {}", finding.fix, row.fix),
        _ => row.fix.to_owned(),
    };
}

/// Whether a container of the program itself keeps what the library has made: no setting empties it.
fn is_kept_by_program(finding: &Finding) -> bool {
    finding
        .held
        .as_ref()
        .is_some_and(|held| held.kind == HolderKind::Container && held.holder.starts_with("__main__."))
}

/// Where the memory of a finding is at its most.
fn position(model: &RunModel<'_>, finding: &Finding) -> Option<usize> {
    match finding.kind {
        FindingKind::Oom => model.step_peaks.ooms.last().copied(),
        FindingKind::Leak | FindingKind::RetainedGrowth => model.device.steps.bounds.last().copied(),
        _ => Some(model.device.history.allocated_peak.position),
    }
}

/// The row of the innermost function of a stack that has one for this category and kind.
fn row_of(rows: &RowsByFrame, frames: &[FrameId], category: Category, kind: FindingKind) -> Option<usize> {
    let fits = |row: usize| {
        let KnobRow { category: of, kinds, .. } = &KNOBS[row];
        of.is_none_or(|of| of == category) && kinds.contains(&kind)
    };
    frames.iter().find_map(|frame| rows.get(frame)?.iter().copied().find(|&row| fits(row)))
}
