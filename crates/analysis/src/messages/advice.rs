//! What to do about a message, and what it does not show: by its kind, and for PyTorch's allocator by the
//! cause that its numbers show.

use super::judge::Reason;
use super::kinds::{Backend, MessageCause, MessageKind, Next};
use super::{InferenceServer, Message};

/// A command to run next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NextCommand {
    /// The command line.
    pub command: String,
    /// What it shows.
    pub why: &'static str,
}

/// What to change.
pub(super) fn fix(message: &Message, cause: MessageCause, reason: Reason) -> String {
    let fix = match reason {
        Reason::Impossible => "print the shapes on the line that failed",
        Reason::FreeWasEnough if message.kind == MessageKind::Mps => {
            "check that `torch.ones(1, device=\"mps\")` works on this machine at all"
        }
        _ => message.kind.row().advice.unwrap_or_else(|| fix_for_cause(message, cause, reason)),
    };
    let (settings, visible, blocking) = match message.backend {
        Backend::Hip => ("PYTORCH_HIP_ALLOC_CONF", "HIP_VISIBLE_DEVICES", "HIP_LAUNCH_BLOCKING"),
        Backend::Npu => ("PYTORCH_NPU_ALLOC_CONF", "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_LAUNCH_BLOCKING"),
        // It has no such setting as the last.
        Backend::Xpu => ("PYTORCH_ALLOC_CONF", "ZE_AFFINITY_MASK", ""),
        _ => return fix.to_owned(),
    };
    fix.replace("PYTORCH_CUDA_ALLOC_CONF", settings)
        .replace(" GPU", &format!(" {}", message.backend.device_word()))
        .replace("CUDA_VISIBLE_DEVICES", visible)
        .replace(" (CUDA_LAUNCH_BLOCKING=1 shows which)", &shows_which(blocking))
}

fn shows_which(blocking: &str) -> String {
    if blocking.is_empty() { String::new() } else { format!(" ({blocking}=1 shows which)") }
}

fn fix_for_cause(message: &Message, cause: MessageCause, reason: Reason) -> &'static str {
    match cause {
        MessageCause::Limit if message.backend == Backend::Xpu => {
            "UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1 allows larger blocks where the driver can; otherwise \
             split the tensor"
        }
        MessageCause::Limit => {
            "raise it: set_per_process_memory_fraction, or per_process_memory_fraction in \
             PYTORCH_CUDA_ALLOC_CONF"
        }
        MessageCause::Fragmentation => fix_for_fragmentation(message),
        MessageCause::OtherProcess if message.numbers.are_ranks() => {
            "give each rank its own GPU: torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before the \
             first use, and map_location where checkpoints are loaded"
        }
        MessageCause::OtherProcess => {
            "end the other process, or choose another GPU with CUDA_VISIBLE_DEVICES"
        }
        MessageCause::Capacity if message.server == Some(InferenceServer::Vllm) => {
            "lower gpu_memory_utilization, which leaves more for activations and CUDA graphs, or limit how \
             much runs at once (max_num_seqs, max_num_batched_tokens). `oomph explain` finds the value if \
             the log goes back to the start of vLLM"
        }
        MessageCause::Capacity if message.server == Some(InferenceServer::Sglang) => {
            "lower --mem-fraction-static, which leaves more for activations and CUDA graphs, or limit how \
             much runs at once (--max-running-requests, --chunked-prefill-size). `oomph explain` finds the \
             value if the log goes back to the start of SGLang"
        }
        MessageCause::Capacity if reason == Reason::NonPytorch => {
            "give the other library less: a server that reserves memory for itself (mem-fraction-static, \
             gpu_memory_utilization), JAX or TensorFlow in the same process, NCCL's buffers"
        }
        MessageCause::Capacity if reason == Reason::LargerThanDevice => {
            "make this one tensor smaller: print the shapes on the line that failed"
        }
        MessageCause::Capacity => {
            "reduce memory use: a smaller batch, activation checkpointing, a smaller dtype. `empty_cache()` \
             does not give PyTorch more memory; `expandable_segments` helps only with fragmentation"
        }
        MessageCause::HostMemory | MessageCause::NotPytorch | MessageCause::Unknown => {
            "record a run to see what used the memory"
        }
    }
}

fn fix_for_fragmentation(message: &Message) -> &'static str {
    use MessageKind::{Torch10, Torch14, Torch110};
    let is_before_expandable =
        matches!(message.kind, Torch10 | Torch14 | Torch110) && message.backend != Backend::Npu;
    if message.is_on_windows() {
        "torch.cuda.empty_cache() before the large request, or \
         PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8; expandable_segments, which the \
         message may name, does not work on Windows"
    } else if is_before_expandable {
        "torch 2.1 or later with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets free memory be \
         merged; max_split_size_mb, which the message may name, can make it much worse"
    } else {
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets free memory be merged; max_split_size_mb, \
         which older messages name, can make it much worse"
    }
}

/// What such a message does not show.
pub(super) fn unknowns(message: &Message, reason: Reason) -> Vec<String> {
    let for_reason: &[&str] = match reason {
        Reason::Listed => &["what the other processes are: it has only their numbers"],
        Reason::Unexplained => &["which process uses it", "how much of it is this process's own context"],
        Reason::Impossible => return Vec::new(),
        _ => &[
            "which tensors fill it",
            "whether it was a leak or a peak: memory that climbs step by step ends in the same message",
            "the largest free block",
        ],
    };
    let unknowns = message.kind.row().unknowns.unwrap_or(for_reason);
    unknowns.iter().map(|&unknown| unknown.to_owned()).collect()
}

/// Commands that answer what the message cannot.
pub(super) fn steps(message: &Message, cause: MessageCause, reason: Reason) -> Vec<NextCommand> {
    if reason == Reason::Listed {
        let itself = message.numbers.itself().map(|process| process.pid);
        let others = message.numbers.others.iter().map(|other| other.pid);
        let pids: Vec<String> =
            others.filter(|pid| Some(*pid) != itself).map(|pid| pid.to_string()).collect();
        let what = "what they are, outside of any container";
        let listed = NextCommand { command: format!("ps -fp {}", pids.join(",")), why: what };
        return vec![listed, command(Next::ListProcesses, message.backend)];
    }
    let for_cause: &[Next] = match cause {
        _ if reason == Reason::Impossible => &[Next::RecordOnCpu],
        _ if message.server.is_some() => &[Next::ListProcesses],
        MessageCause::OtherProcess => &[Next::ListProcesses, Next::Record],
        MessageCause::Fragmentation if has_recorder(message.backend) => &[
            Next::Record,
            Next::Run(
                "oomph simulate --search oomph-recording",
                "which allocator settings would have avoided it",
            ),
        ],
        MessageCause::Capacity if has_recorder(message.backend) => &[
            Next::Record,
            Next::Run(
                "oomph predict --gpu NAME --try amp,checkpoint,batch/2 train.py",
                "what each technique saves, without a GPU",
            ),
        ],
        _ => &[Next::Record],
    };
    let next = message.kind.row().next.filter(|_| reason != Reason::Impossible).unwrap_or(for_cause);
    next.iter().map(|&next| command(next, message.backend)).collect()
}

/// Whether oomph records on such devices: the recorder knows CUDA's allocator, which ROCm's is too, and the
/// CPU's.
fn has_recorder(backend: Backend) -> bool {
    matches!(backend, Backend::Cuda | Backend::Hip)
}

fn command(next: Next, backend: Backend) -> NextCommand {
    let (command, why) = match next {
        Next::Run(command, why) => (command, why),
        Next::ListProcesses => {
            let tool = match backend {
                Backend::Hip => "rocm-smi --showpids",
                Backend::Npu => "npu-smi info",
                Backend::Xpu => "xpu-smi ps",
                _ => "nvidia-smi",
            };
            (
                tool,
                if backend == Backend::Npu {
                    "which processes use the NPU"
                } else {
                    "which processes use the GPU"
                },
            )
        }
        Next::Record if has_recorder(backend) => {
            ("oomph run train.py", "records until it fails, then names the lines that fill the memory")
        }
        Next::Record => {
            ("oomph run --cpu train.py", "the same tensors on the CPU: what fills the memory, and which line")
        }
        Next::RecordOnCpu => (
            "oomph run --cpu train.py",
            "records tensors on the CPU, and names the lines that fill the memory",
        ),
    };
    NextCommand { command: command.to_owned(), why }
}
