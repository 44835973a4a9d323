//! Knowledge about PyTorch and the libraries around it, by name.

use crate::file::ClassKind;

/// Methods that distinguish a module from other objects.
pub(crate) const MODULE_ONLY_METHODS: &[&str] =
    &["parameters", "named_parameters", "eval", "train", "requires_grad_"];

/// Returns whether a variable of this name usually holds a model.
pub(crate) fn reads_as_module(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    matches!(
        name,
        "model"
            | "net"
            | "network"
            | "netG"
            | "netD"
            | "generator"
            | "discriminator"
            | "critic"
            | "actor"
            | "backbone"
            | "rnn"
            | "lstm"
            | "gru"
            | "encoder"
            | "decoder"
            | "transformer"
            | "classifier"
            | "policy"
            | "student"
            | "teacher"
    ) || (name.ends_with("_model") || name.ends_with("_net")) && !begins_with_verb(name)
}

/// Returns whether a name is that of a function which does something with a model: `flatten_model`.
fn begins_with_verb(name: &str) -> bool {
    const VERBS: &[&str] = &[
        "get",
        "make",
        "build",
        "create",
        "load",
        "flatten",
        "init",
        "setup",
        "save",
        "count",
        "print",
        "freeze",
        "prepare",
        "convert",
        "export",
        "wrap",
        "compile",
        "parse",
        "define",
        "select",
        "update",
        "fit",
        "run",
        "set",
        "choose",
        "generate",
        "instantiate",
        "construct",
    ];
    name.trim_start_matches('_').split('_').next().is_some_and(|first| VERBS.contains(&first))
}

/// Returns whether an attribute of a model of this name is usually a model itself.
pub(crate) fn names_submodule(name: &str) -> bool {
    matches!(
        name,
        "features"
            | "encoder"
            | "decoder"
            | "backbone"
            | "module"
            | "classifier"
            | "head"
            | "fc"
            | "vision_model"
            | "text_model"
    )
}

/// Returns whether a variable of this name usually holds a loss function.
pub(crate) fn reads_as_loss_function(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key).to_ascii_lowercase();
    name.contains("criterion")
        || matches!(
            name.as_str(),
            "crit" | "loss" | "loss_fn" | "loss_func" | "loss_function" | "loss_f" | "lossfn"
        )
        || name.ends_with("_loss")
            && !name.starts_with("log")
            && !name.starts_with("plot")
            && !name.starts_with("print")
        || name.starts_with("compute_") && name.ends_with("loss")
}

/// Returns whether a variable or call of this name usually gives batches, one after another.
pub(crate) fn reads_as_loader(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key).to_ascii_lowercase();
    ["loader", "batches", "dataset", "dataiter", "iterator"].iter().any(|part| name.contains(part))
        || name.ends_with("_dl")
        || name.ends_with("_iter")
        || name.ends_with("_set") && (name.starts_with("test") || name.starts_with("val"))
}

/// Returns whether a name indicates evaluation.
pub(crate) fn reads_as_evaluation(key: &str) -> bool {
    let words = key.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.into_iter().any(|word| {
        let word = word.to_ascii_lowercase();
        let word = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
        matches!(
            word,
            "val"
                | "valid"
                | "validate"
                | "validation"
                | "validating"
                | "eval"
                | "evaluate"
                | "evaluation"
                | "evaluator"
                | "test"
                | "testing"
                | "dev"
                | "infer"
                | "inference"
                | "predict"
                | "prediction"
                | "predictions"
                | "preds"
                | "valloader"
                | "testloader"
                | "validloader"
                | "evalloader"
        )
    })
}

/// Returns whether a name indicates inference: functions that a library offers for it are mostly called
/// without gradients.
pub(crate) fn reads_as_inference(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["infer", "predict", "preds"].iter().any(|word| name.contains(word))
}

pub(crate) fn kind_of_base(path: &str) -> Option<ClassKind> {
    let last = path.rsplit('.').next().unwrap_or(path);
    Some(match last {
        "LightningModule" => ClassKind::Lightning,
        "Dataset" | "IterableDataset" | "MapDataset" => ClassKind::Dataset,
        "Function" | "InplaceFunction" if path.starts_with("torch.autograd") => ClassKind::Function,
        "Module"
        | "ModuleList"
        | "Sequential"
        | "PreTrainedModel"
        | "ModelMixin"
        | "GradientCheckpointingLayer" => ClassKind::Module,
        _ if path.starts_with("torch.nn.") || path.contains("modeling_") || last.ends_with("Model") => {
            ClassKind::Module
        }
        _ if path.starts_with("torchvision.datasets.") => ClassKind::Dataset,
        _ if last.ends_with("PreTrainedModel") || last.ends_with("Module") => ClassKind::Module,
        _ => return None,
    })
}

/// Result of calling an imported name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Makes {
    /// Module with parameters.
    Model,
    LossFunction,
    /// Module without parameters: a function of its arguments.
    Pure,
    Optimizer,
    Loader,
    /// Its first argument.
    Same,
    /// Tensor without a graph.
    Fresh,
    /// Tensor computed from its arguments.
    Derived,
    /// Single number as a tensor, computed from its arguments.
    Loss,
    /// Numbers, text, or tensors of integers: nothing with a graph.
    Plain,
    Checkpoint,
    Unknown,
}

fn has_no_parameters(class: &str) -> bool {
    matches!(
        class,
        "CosineSimilarity"
            | "PairwiseDistance"
            | "Softmax"
            | "LogSoftmax"
            | "ReLU"
            | "GELU"
            | "SiLU"
            | "Sigmoid"
            | "Tanh"
            | "LeakyReLU"
            | "ELU"
            | "Dropout"
            | "Flatten"
            | "Identity"
            | "Upsample"
            | "Unfold"
            | "Fold"
            | "PixelShuffle"
    ) || class.contains("Pool")
        || class.starts_with("Softmax")
}

/// Returns what a call of a function of `torch.nn.functional` makes.
fn functional_makes(name: &str) -> Makes {
    if name.contains("loss")
        || matches!(name, "cross_entropy" | "binary_cross_entropy" | "kl_div")
        || name == "binary_cross_entropy_with_logits"
    {
        Makes::Loss
    } else if name == "one_hot" {
        Makes::Plain
    } else {
        Makes::Derived
    }
}

/// Returns what a call of a name in `torch.nn` makes; `last` is the last part of the name.
fn nn_makes(name: &str, last: &str) -> Makes {
    match name {
        _ if name.starts_with("utils.rnn") => Makes::Derived,
        _ if name.starts_with("utils") || name.starts_with("init") => Makes::Unknown,
        "DataParallel" | "parallel.DistributedDataParallel" => Makes::Model,
        "Parameter" | "parameter.Parameter" => Makes::Fresh,
        _ if has_no_parameters(last) => Makes::Pure,
        _ if last.ends_with("Loss") => Makes::LossFunction,
        _ if last.starts_with(|letter: char| letter.is_ascii_uppercase()) => Makes::Model,
        _ => Makes::Unknown,
    }
}

/// Returns what a call of a name directly in `torch` makes.
fn torch_makes(name: &str) -> Makes {
    match name {
        "tensor" | "as_tensor" | "zeros" | "ones" | "empty" | "full" | "rand" | "randn" | "randint"
        | "arange" | "linspace" | "eye" | "zeros_like" | "ones_like" | "rand_like" | "randn_like"
        | "empty_like" | "full_like" | "from_numpy" | "randperm" | "normal" | "bernoulli" | "FloatTensor"
        | "cuda.FloatTensor" | "LongTensor" | "Tensor" => Makes::Fresh,
        "argmax" | "argmin" | "argsort" | "eq" | "ne" | "gt" | "lt" | "ge" | "le" | "equal" | "allclose"
        | "isnan" | "isinf" | "isfinite" | "any" | "all" | "numel" | "is_tensor" | "bincount" | "histc"
        | "unique" | "nonzero" | "count_nonzero" | "device" | "no_grad" | "manual_seed" | "save"
        | "Generator" | "floor" | "round" | "ceil" | "sign" | "multinomial" | "searchsorted"
        | "bucketize" | "poisson" => Makes::Plain,
        _ if name.contains('.')
            && !name.starts_with("linalg")
            && !name.starts_with("special")
            && !name.starts_with("fft") =>
        {
            Makes::Unknown
        }
        _ if name.starts_with(|letter: char| letter.is_ascii_lowercase()) => Makes::Derived,
        _ => Makes::Unknown,
    }
}

/// Returns whether a function exchanges tensors between processes and returns one with the graph of its
/// argument. Those of `torch.distributed` itself work in place and return none.
fn reduces_with_graph(path: &str) -> bool {
    let Some((module, name)) = path.rsplit_once('.') else { return false };
    let is_collective = ["reduce", "gather", "broadcast", "all_to_all", "alltoall"]
        .iter()
        .any(|word| name.trim_end_matches('_').contains(word));
    let is_object = name.contains("object") || name.contains("async") || name.contains("parameters");
    let keeps_graph = module.starts_with("horovod.")
        || module.starts_with("byteps.")
        || module.starts_with("torch.distributed.nn")
        || module.starts_with("torch.distributed._functional_collectives");
    keeps_graph && is_collective && !is_object
}

/// Returns what a call of an imported name makes.
pub(crate) fn makes(path: &str) -> Makes {
    let last = path.rsplit('.').next().unwrap_or(path);
    if let Some(name) = path.strip_prefix("torch.nn.functional.") {
        return functional_makes(name);
    }
    if let Some(name) = path.strip_prefix("torch.nn.") {
        return nn_makes(name, last);
    }
    if path.starts_with("torch.optim.lr_scheduler") || path.starts_with("torch.optim.swa_utils") {
        return Makes::Unknown;
    }
    if path.starts_with("torch.optim.") && last.starts_with(|letter: char| letter.is_ascii_uppercase()) {
        return Makes::Optimizer;
    }
    match path {
        "torch.compile"
        | "torch.jit.script"
        | "copy.deepcopy"
        | "copy.copy"
        | "torch.jit.trace"
        | "tqdm"
        | "tqdm.tqdm"
        | "tqdm.auto.tqdm"
        | "tqdm.notebook.tqdm"
        | "tqdm.trange"
        | "rich.progress.track" => return Makes::Same,
        "torch.hub.load" | "timm.create_model" | "torch.jit.load" => return Makes::Model,
        "torch.load" => return Makes::Checkpoint,
        _ if reduces_with_graph(path) => return Makes::Derived,
        _ if path.starts_with("torchvision.models.") => return Makes::Model,
        _ if last == "DataLoader" => return Makes::Loader,
        _ if last == "DistributedDataParallel" => return Makes::Model,
        _ => {}
    }
    if path.starts_with("transformers.") {
        let class = path.split('.').rev().nth(1).unwrap_or("");
        let is_model = |name: &str| name.contains("Model") || name.contains("For");
        return match last {
            "from_pretrained" | "from_config" if is_model(class) => Makes::Model,
            _ if is_model(last) && last.starts_with(|letter: char| letter.is_ascii_uppercase()) => {
                Makes::Model
            }
            _ => Makes::Unknown,
        };
    }
    path.strip_prefix("torch.").map_or(Makes::Unknown, torch_makes)
}

/// Result of a tensor method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gives {
    /// New tensor with the same graph.
    Derived,
    /// Tensor with the same graph that shares the memory.
    View,
    /// Single number as a tensor.
    Scalar,
    /// The same memory without the graph.
    Detached,
    /// Copy on the host, with the graph.
    OnHost,
    /// Nothing with a graph: numbers, arrays, tensors of integers.
    Plain,
    Unknown,
}

pub(crate) fn gives(method: &str, has_arguments: bool) -> Gives {
    match method {
        "detach" | "detach_" => Gives::Detached,
        "cpu" => Gives::OnHost,
        "item" | "tolist" | "numpy" | "size" | "dim" | "numel" | "argmax" | "argmin" | "argsort" | "eq"
        | "ne" | "gt" | "lt" | "ge" | "le" | "equal" | "long" | "int" | "bool" | "isnan" | "isfinite"
        | "isinf" | "any" | "all" | "nonzero" | "get_device" | "is_contiguous" | "element_size"
        | "data_ptr" | "stride" | "type" | "byte" | "eq_" | "round" | "sign" | "floor" | "ceil"
        | "bincount" | "unique" | "storage" | "untyped_storage" | "nelement" | "ndimension" => Gives::Plain,
        _ if is_count(method) => Gives::Plain,
        _ if !has_arguments && reduces(method) => Gives::Scalar,
        "view" | "reshape" | "squeeze" | "unsqueeze" | "transpose" | "permute" | "t" | "flatten"
        | "expand" | "narrow" | "select" | "view_as" | "swapaxes" | "movedim" | "chunk" | "split"
        | "unbind" | "expand_as" | "unflatten" | "to" | "cuda" | "float" | "double" | "half" | "bfloat16"
        | "contiguous" => Gives::View,
        "clone" | "mul" | "add" | "sub" | "div" | "mean" | "sum" | "norm" | "prod" | "std" | "var"
        | "max" | "min" | "median" | "pow" | "abs" | "exp" | "log" | "sqrt" | "rsqrt" | "square" | "neg"
        | "sigmoid" | "tanh" | "relu" | "softmax" | "log_softmax" | "clamp" | "gather" | "index_select"
        | "masked_fill" | "masked_select" | "matmul" | "mm" | "bmm" | "dot" | "cumsum" | "logsumexp"
        | "topk" | "sort" | "add_" | "mul_" | "div_" | "sub_" | "clamp_" | "repeat" | "requires_grad_"
        | "type_as" | "cos" | "sin" | "log1p" | "expm1" | "lerp" | "flip" | "roll" | "scatter" => {
            Gives::Derived
        }
        "log_prob" | "rsample" | "entropy" | "kl_divergence" | "triu" | "tril" => Gives::Derived,
        "sample" | "multinomial" | "bernoulli" | "sample_n" => Gives::Detached,
        _ => Gives::Unknown,
    }
}

/// Returns whether an attribute or method of a graph or batch of this name is a number: `data.num_nodes`.
fn is_count(name: &str) -> bool {
    name.starts_with("num_") || name.starts_with("number_of_")
}

/// Returns whether a function or method without further arguments reduces a tensor to one number.
pub(crate) fn reduces(name: &str) -> bool {
    matches!(name, "mean" | "sum" | "norm" | "prod" | "std" | "var" | "max" | "min" | "median")
}

/// Returns whether it gives values and indices if a dimension is given.
pub(crate) fn has_indices(name: &str) -> bool {
    matches!(name, "max" | "min" | "median" | "mode" | "topk" | "sort" | "kthvalue" | "cummax" | "cummin")
}

/// Returns what an attribute of a tensor, or of the return value of a model, gives.
pub(crate) fn attribute(name: &str) -> Gives {
    match name {
        "data" => Gives::Detached,
        "shape" | "dtype" | "device" | "ndim" | "requires_grad" | "is_cuda" | "grad_fn" | "layout"
        | "is_leaf" | "name" => Gives::Plain,
        _ if is_count(name) => Gives::Plain,
        "T" | "mT" | "H" | "real" | "imag" => Gives::View,
        "grad" => Gives::Unknown,
        _ => Gives::Derived,
    }
}

/// Returns whether a decorator or context manager turns gradients off (or on); `None` if it does neither.
pub(crate) fn grad_mode(path: &str) -> Option<bool> {
    match path {
        "torch.no_grad"
        | "torch.inference_mode"
        | "torch.autograd.no_grad"
        | "torch.autograd.inference_mode"
        | "torch.autograd.grad_mode.no_grad"
        | "torch.inference_mode.inference_mode" => Some(false),
        "torch.enable_grad" | "torch.autograd.enable_grad" => Some(true),
        _ => None,
    }
}
