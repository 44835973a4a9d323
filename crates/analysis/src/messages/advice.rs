//! What to do about a message, and what it cannot tell.

use super::Message;
use super::judge::{MessageCause, Reason};
use super::kind::{Backend, MessageKind as Kind};

/// A command to run next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub command: String,
    pub why: &'static str,
}

/// What to change.
pub(super) fn fix(message: &Message, cause: MessageCause, reason: Reason) -> String {
    let fix = match (message.kind, cause) {
        (Kind::Mps, _) => {
            "a smaller batch or model; PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit, at the risk of a machine that swaps"
        }
        (Kind::MpsBuffer, _) => {
            "split the tensor, or compute it in parts; attention over a long sequence is the usual one"
        }
        (Kind::TorchOverflow, _) => "print the shapes on the line that failed",
        (Kind::Cublas | Kind::Cudnn, _) => {
            "leave room for it: a smaller batch, or torch.cuda.empty_cache() once before the first use. If the card is not full, the versions of CUDA and torch do not fit, or an index is out of range"
        }
        (Kind::Torch0 | Kind::CudaError, _) => {
            "look who has the card; if nobody has, the error may belong to an earlier kernel (CUDA_LAUNCH_BLOCKING=1 shows which) or to pinned host memory"
        }
        (Kind::Nccl, _) => {
            "leave room for it: a smaller batch, or set_per_process_memory_fraction so that PyTorch does not cache everything"
        }
        (Kind::SharedMemory, _) => {
            "docker run --shm-size=16g (or --ipc=host), fewer num_workers, or torch.multiprocessing.set_sharing_strategy('file_system')"
        }
        (Kind::Slurm, _) => {
            "sbatch --mem=…, fewer DataLoader workers, or load the model on one rank at a time"
        }
        (Kind::Cgroup, _) => {
            "raise the limit (docker run --memory, resources.limits.memory in Kubernetes, --mem in Slurm), fewer DataLoader workers, or load less at once"
        }
        (Kind::Evicted, _) => {
            "ask for the memory that the pod needs (resources.requests.memory), or load less at once"
        }
        (Kind::Colab, _) => {
            "a runtime with more RAM, or load less at once; the GPU has nothing to do with it"
        }
        (Kind::PageFile, _) => {
            "enlarge the page file (System > Advanced > Performance > Virtual memory), or fewer num_workers: each worker loads torch's libraries anew"
        }
        (Kind::Pinned, _) => "fewer or smaller pinned buffers; pin_memory=False where the memory is short",
        (Kind::MigAssert, _) => {
            "treat it as any message that the GPU is out of memory: make it need less, or take a larger slice; torch 2.2 and later say the numbers"
        }
        (Kind::Rmm, _) => {
            "a smaller pool or managed memory for RMM; if it shares the card with PyTorch, give PyTorch RMM's allocator"
        }
        (Kind::TensorRt, _) => "a smaller workspace or batch, or close what else has the card",
        (Kind::Tgi, _) => "lower --max-batch-prefill-tokens, or spread the model over more GPUs",
        (Kind::Container, _) => "raise the container's memory limit, or load less at once",
        (Kind::TorchCpu | Kind::Numpy, _) => {
            "load less at once, or in a smaller type; a shape that is larger than you expect is the usual mistake"
        }
        (Kind::VllmStartup, _) => "end the other processes, or lower gpu_memory_utilization",
        (Kind::VllmCache, _) => {
            "raise gpu_memory_utilization, spread the model over more GPUs (tensor_parallel_size), or quantize it"
        }
        (Kind::VllmLength, _) => "lower max_model_len, or raise gpu_memory_utilization",
        (Kind::Sglang, _) => {
            "raise --mem-fraction-static, spread the model over more GPUs (--tp), or quantize it"
        }
        (_, MessageCause::Limit) if message.backend == Backend::Xpu => {
            "UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1 allows larger blocks where the driver can; otherwise split the tensor"
        }
        (Kind::Triton, _) => {
            "smaller block sizes or num_stages for this kernel; a smaller batch does not help"
        }
        (Kind::Jax, _) => {
            "XLA_PYTHON_CLIENT_PREALLOCATE=false if it shares the card with PyTorch; otherwise a smaller batch"
        }
        (Kind::TensorFlow, _) => {
            "tf.config.experimental.set_memory_growth if it shares the card with PyTorch; otherwise a smaller batch"
        }
        (Kind::Ggml, _) => {
            "fewer layers on the GPU (-ngl), a shorter context (-c), or a smaller quantization"
        }
        (_, MessageCause::HostMemory) => "load less at once, fewer DataLoader workers, or more memory",
        (_, MessageCause::Fragmentation) if message.is_on_windows() => {
            "torch.cuda.empty_cache() before the large request, or PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8; expandable_segments, which the message may name, does not work on Windows"
        }
        (Kind::Torch10 | Kind::Torch14 | Kind::Torch110, MessageCause::Fragmentation)
            if message.backend != Backend::Npu =>
        {
            "torch 2.1 or later with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets free pieces grow together; max_split_size_mb, which the message may name, can make it much worse"
        }
        (_, MessageCause::Fragmentation) => {
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets free pieces grow together; max_split_size_mb, which older messages name, can make it much worse"
        }
        (_, MessageCause::Limit) => {
            "raise it: set_per_process_memory_fraction, or per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF"
        }
        (_, MessageCause::OtherProcess) if message.numbers.are_ranks() => {
            "give each rank its own card: torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before the first use, and map_location where checkpoints are loaded"
        }
        (_, MessageCause::OtherProcess) => {
            "end the other process, or choose another card with CUDA_VISIBLE_DEVICES"
        }
        (_, MessageCause::Capacity) if reason == Reason::Beside => {
            "give the other library less: a server that reserves memory for itself (mem-fraction-static, gpu_memory_utilization), JAX or TensorFlow in the same process, NCCL's buffers"
        }
        (_, MessageCause::Capacity) if reason == Reason::LargerThanDevice => {
            "make this one tensor smaller: print the shapes on the line that failed"
        }
        (_, MessageCause::Capacity) => {
            "make it need less: a smaller batch, activation checkpointing, a smaller type. empty_cache() creates no memory for PyTorch itself, and expandable_segments helps against fragmentation only"
        }
        _ => "record a run: the recording has what the message lacks",
    };
    let (settings, visible) = match message.backend {
        Backend::Hip => ("PYTORCH_HIP_ALLOC_CONF", "HIP_VISIBLE_DEVICES"),
        Backend::Npu => ("PYTORCH_NPU_ALLOC_CONF", "ASCEND_RT_VISIBLE_DEVICES"),
        Backend::Xpu => ("PYTORCH_ALLOC_CONF", "ZE_AFFINITY_MASK"),
        _ => return fix.to_owned(),
    };
    fix.replace("PYTORCH_CUDA_ALLOC_CONF", settings).replace("CUDA_VISIBLE_DEVICES", visible)
}

/// What such a message cannot tell.
pub(super) fn unknowns(message: &Message, reason: Reason) -> Vec<String> {
    let unknowns: &[&str] = match message.kind {
        Kind::TorchOverflow | Kind::Triton | Kind::MpsBuffer => &[],
        Kind::Killed => {
            &["who killed it: a time limit, a preemption or a person sends the same signal; dmesg tells"]
        }
        Kind::PageFile => &["how large the page file is, and who else has it"],
        Kind::MigAssert => &["how full the slice was, and with what"],
        Kind::TensorFlow => &[
            "how full the card was, and who else had it",
            "whether it failed: TensorFlow tries again with less before it gives up",
        ],
        Kind::OomKiller
        | Kind::Cgroup
        | Kind::Evicted
        | Kind::Colab
        | Kind::Pinned
        | Kind::Container
        | Kind::Slurm
        | Kind::Ray => &["which objects filled the memory, and whether it was a leak or a peak"],
        Kind::TorchCpu | Kind::Numpy | Kind::Python | Kind::BadAlloc => {
            &["what else filled the memory of the machine"]
        }
        Kind::SharedMemory => &["how large /dev/shm is, and how much one batch takes"],
        Kind::VllmStartup => &["which processes have the rest"],
        Kind::Jax
        | Kind::Rmm
        | Kind::TensorRt
        | Kind::Ggml
        | Kind::Bitsandbytes
        | Kind::Cupy
        | Kind::OnnxRuntime
        | Kind::Paddle => &["how full the card was, and who else had it"],
        Kind::Torch0 | Kind::CudaError | Kind::Cublas | Kind::Cudnn | Kind::Nccl => {
            &["how full the card was, and with what", "whether another process had it"]
        }
        Kind::VllmCache | Kind::VllmLength | Kind::Sglang | Kind::Tgi => &["how much the model itself takes"],
        _ if reason == Reason::Listed => &["what the other processes are: it has only their numbers"],
        _ if reason == Reason::Unexplained => &["who has it", "how much of it is this process's own context"],
        _ => &[
            "which tensors fill it",
            "whether it was a leak or a peak: memory that climbs step by step ends in the same message",
            "the largest free piece",
        ],
    };
    unknowns.iter().map(|&unknown| unknown.to_owned()).collect()
}

/// Commands that answer what the message cannot.
pub(super) fn steps(message: &Message, cause: MessageCause, reason: Reason) -> Vec<Step> {
    let step = |command: &str, why| Step { command: command.to_owned(), why };
    // The recorder knows CUDA's allocator, which ROCm's is too, and the CPU's.
    let has_recorder = matches!(message.backend, Backend::Cuda | Backend::Hip);
    let record = || match has_recorder {
        true => {
            step("oomph run train.py", "records until it fails, then names the lines that fill the memory")
        }
        false => step(
            "oomph run --cpu train.py",
            "the same tensors on the CPU: what fills the memory, and which line",
        ),
    };
    let on_cpu = || {
        step(
            "oomph run --cpu train.py",
            "records tensors on the CPU, and names the lines that fill the memory",
        )
    };
    let who = || match message.backend {
        Backend::Hip => step("rocm-smi --showpids", "which processes have the card"),
        Backend::Npu => step("npu-smi info", "which processes have the card"),
        Backend::Xpu => step("xpu-smi ps", "which processes have the card"),
        _ => step("nvidia-smi", "which processes have the card"),
    };
    match (message.kind, cause) {
        (Kind::SharedMemory, _) => vec![step("df -h /dev/shm", "how large it is, and how full")],
        (Kind::Killed, _) => vec![
            step("dmesg -T | grep -i -A2 oom-kill", "whether it was the kernel, and what it killed"),
            step("oomph explain dmesg.log", "the kernel's record in words"),
        ],
        (Kind::Slurm, _) => vec![step(
            "sacct -j JOB --format=JobID,MaxRSS,ReqMem,State",
            "what the job had and what it was allowed",
        )],
        (Kind::PageFile, _) => vec![step(
            "systeminfo | findstr Virtual",
            "how much memory Windows may promise, and how much it has",
        )],
        (Kind::Evicted, _) => {
            vec![step("kubectl describe node NODE", "what the node has and what the pods have asked for")]
        }
        (Kind::Cgroup, _) => vec![
            step("cat /sys/fs/cgroup/memory.max", "the limit, read inside of the container or job"),
            on_cpu(),
        ],
        (Kind::Container, _) => {
            vec![step("docker stats --no-stream", "what the container has and what it is allowed")]
        }
        (
            Kind::OomKiller
            | Kind::Colab
            | Kind::Pinned
            | Kind::Ray
            | Kind::BadAlloc
            | Kind::Numpy
            | Kind::Python,
            _,
        ) => {
            vec![step("free -g", "what the machine has"), on_cpu()]
        }
        (Kind::TorchCpu, _) => vec![on_cpu()],
        (
            Kind::VllmStartup
            | Kind::Ggml
            | Kind::Bitsandbytes
            | Kind::Jax
            | Kind::TensorFlow
            | Kind::Cupy
            | Kind::Rmm
            | Kind::TensorRt
            | Kind::OnnxRuntime
            | Kind::Paddle,
            _,
        ) => {
            vec![who()]
        }
        (Kind::VllmCache | Kind::VllmLength | Kind::Sglang | Kind::Tgi, _) => vec![who()],
        (Kind::Triton, _) => vec![step(
            "TRITON_PRINT_AUTOTUNING=1 python train.py",
            "which configuration of the kernel is tried",
        )],
        (Kind::Mps | Kind::MpsBuffer, _) => vec![record()],
        (Kind::Torch0 | Kind::CudaError | Kind::MigAssert | Kind::Cublas | Kind::Cudnn | Kind::Nccl, _) => {
            vec![who(), record()]
        }
        (_, MessageCause::OtherProcess) if reason == Reason::Listed => {
            let pids: Vec<String> =
                message.numbers.others.iter().map(|other| other.pid.to_string()).collect();
            vec![
                step(&format!("ps -fp {}", pids.join(",")), "what they are, outside of any container"),
                who(),
            ]
        }
        (_, MessageCause::OtherProcess) => vec![who(), record()],
        (_, MessageCause::Fragmentation) if has_recorder => {
            vec![
                record(),
                step(
                    "oomph simulate --search oomph-recording",
                    "which allocator settings would have avoided it",
                ),
            ]
        }
        (_, MessageCause::Capacity) if has_recorder => {
            vec![
                record(),
                step(
                    "oomph predict --gpu NAME --try amp,checkpoint,batch/2 train.py",
                    "what each technique saves, without a GPU",
                ),
            ]
        }
        _ => vec![record()],
    }
}
