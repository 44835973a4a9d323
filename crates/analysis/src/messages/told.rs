//! What happened, in words, for messages that say it by what they are.

use super::Message;
use super::kind::MessageKind as Kind;
use super::render::written;
use crate::words::grouped;

/// What happened and why, in one sentence.
pub(super) fn summary(message: &Message) -> String {
    let numbers = &message.numbers;
    let requested =
        numbers.requested.map_or_else(String::new, |requested| format!(" for {}", written(requested)));
    match message.kind {
        Kind::Mps => "the limit for MPS was reached; the message is cut off".to_owned(),
        Kind::MpsBuffer => format!("Metal gives no single buffer{requested}: the tensor is larger than it allows"),
        Kind::Torch0 | Kind::CudaError => "the driver had no memory left; the message has no numbers".to_owned(),
        Kind::Cublas => "cuBLAS could not start: usually the card is full and it finds no room for its workspace".to_owned(),
        Kind::Cudnn => "cuDNN could not start: usually the card is full and it finds no room for its handle".to_owned(),
        Kind::Nccl => format!("NCCL found no room{requested} for its buffers: it takes memory beside PyTorch's"),
        Kind::OomKiller => {
            let pid = numbers.others.first().map_or_else(String::new, |other| format!(" {}", other.pid));
            let had = numbers.resident.map_or_else(String::new, |resident| format!(", which had {} of it", written(resident)));
            format!("the machine ran out of memory, not the GPU: Linux killed process{pid}{had}")
        }
        Kind::Cgroup => {
            let limit = numbers.limit.map_or_else(String::new, |limit| format!(" of {}", written(limit)));
            let pid = numbers.others.first().map_or_else(String::new, |other| format!(" {}", other.pid));
            let had = numbers.resident.map_or_else(String::new, |resident| format!(", which had {}", written(resident)));
            format!("the container or job reached its memory limit{limit}, not the machine's end and not the GPU: Linux killed process{pid}{had}")
        }
        Kind::Evicted => "the node ran low on memory, not the GPU: Kubernetes evicted the pod".to_owned(),
        Kind::Colab => "the notebook's machine ran out of memory, not the GPU".to_owned(),
        Kind::PageFile => "Windows ran out of memory that it may promise, not the GPU: the page file is too small".to_owned(),
        Kind::Pinned => format!("the machine had no pinned memory{requested}, which the GPU copies from and to: not the GPU's own"),
        Kind::MigAssert => "the GPU ran out of memory, and PyTorch failed to say how much it has: it cannot count that of a part of a GPU (MIG)".to_owned(),
        Kind::Rmm => "RMM (RAPIDS) found no room on the GPU: it manages memory itself, not through PyTorch".to_owned(),
        Kind::TensorRt => format!("TensorRT found no room{requested} on the GPU: it manages memory itself, not through PyTorch"),
        Kind::Tgi => match numbers.more("prefill_tokens") {
            Some(tokens) => format!("TGI's own limit: there is no room for {} tokens of prefill beside the model", grouped(tokens)),
            None => "TGI's own limit: there is no room for the prefill beside the model".to_owned(),
        },
        Kind::Container => "the container ran out of memory, not the GPU: it was killed at its limit".to_owned(),
        Kind::Slurm => "the job ran out of the machine's memory, not the GPU's: Slurm killed it at its limit".to_owned(),
        Kind::Ray => {
            let used = numbers.used.zip(numbers.total);
            let used = used.map_or_else(String::new, |(used, total)| format!(" ({} of {} in use)", written(used), written(total)));
            let had = numbers.resident.map_or_else(String::new, |resident| format!(", which had {}", written(resident)));
            format!("the machine ran out of memory, not the GPU{used}: Ray killed the task{had}")
        }
        Kind::Killed => "the process was killed from outside (SIGKILL): most often because the machine ran out of memory".to_owned(),
        Kind::TorchCpu => format!("the machine had no memory{requested}: a tensor on the CPU, not on the GPU"),
        Kind::Numpy => format!("the machine had no memory{requested}: a NumPy array, not a tensor on the GPU"),
        Kind::Python => "the machine had no memory for Python, not the GPU".to_owned(),
        Kind::BadAlloc => "the machine had no memory for C++ code of the program, not the GPU".to_owned(),
        Kind::SharedMemory => "shared memory (/dev/shm) is full, not the GPU: DataLoader workers and NCCL pass data through it".to_owned(),
        Kind::VllmStartup => {
            let share = |bytes: Option<snapshot::Bytes>| bytes.map_or_else(|| "too little".to_owned(), written);
            format!(
                "vLLM found {} free of {} before it began and wanted {}",
                share(numbers.free),
                share(numbers.total),
                numbers.requested.map_or_else(|| "more".to_owned(), written)
            )
        }
        Kind::VllmCache => "vLLM's own limit: the model fills what gpu_memory_utilization allows, nothing is left for the KV cache".to_owned(),
        Kind::VllmLength => match (numbers.more("max_model_len"), numbers.more("kv_cache_tokens"), numbers.requested, numbers.free) {
            (Some(length), _, Some(needed), Some(free)) => format!(
                "vLLM's own limit: one request of {} tokens needs {} of KV cache, and {} is left",
                grouped(length),
                written(needed),
                written(free)
            ),
            (Some(length), Some(tokens), ..) => {
                format!("vLLM's own limit: the KV cache holds {} tokens, one request may have {}", grouped(tokens), grouped(length))
            }
            _ => "vLLM's own limit: the KV cache is smaller than one request".to_owned(),
        },
        Kind::Sglang => "SGLang's own limit: the model fills what --mem-fraction-static allows, nothing is left for the KV cache".to_owned(),
        Kind::Cupy => format!("CuPy found no room{requested}: it manages memory itself, not through PyTorch"),
        Kind::OnnxRuntime => format!("ONNX Runtime found no room{requested}: it manages memory itself, not through PyTorch"),
        Kind::Paddle => format!("PaddlePaddle found no room{requested}{}: it manages memory itself, not through PyTorch",
            numbers.free.map_or_else(String::new, |free| format!(" with {} free", written(free)))
        ),
        Kind::Jax => format!("JAX ran out of memory{requested}: XLA manages it, not PyTorch"),
        Kind::TensorFlow => format!("TensorFlow ran out of memory{requested}: its own allocator manages it, not PyTorch's"),
        Kind::Triton => match (numbers.more("shared_memory_required"), numbers.more("shared_memory_limit")) {
            (Some(required), Some(limit)) => format!(
                "not the GPU's memory: a Triton kernel wants {} bytes of on-chip shared memory, this GPU has {}",
                grouped(required),
                grouped(limit)
            ),
            _ => "not the GPU's memory: a Triton kernel wants more on-chip shared memory than this GPU has".to_owned(),
        },
        Kind::Ggml => format!("llama.cpp found no room{requested}: it manages memory itself, not through PyTorch"),
        Kind::Bitsandbytes => "bitsandbytes found no room: it takes memory beside PyTorch's allocator".to_owned(),
        _ => format!("{} is out of memory", message.device_name()),
    }
}
