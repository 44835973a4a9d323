//! The kinds of out-of-memory messages: one table with all that is specific to a kind.
//!
//! A new message of another program is a variant of [`MessageKind`] and its row in [`KINDS`].

/// Kind of an out-of-memory message: PyTorch's own by the release that introduced it, and other programs'
/// messages that are easily mistaken for one. Each has its row in [`KINDS`], in the same order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// PyTorch 1.0 to 1.3: `… already allocated; … free; … cached)`.
    Torch10,
    /// PyTorch 1.4 to 1.9: `… reserved in total by PyTorch)`.
    Torch14,
    /// PyTorch 1.10 to 2.0: as 1.4, with a hint about `max_split_size_mb`.
    Torch110,
    /// PyTorch 2.1 and later: `Of the allocated memory …`.
    Torch21,
    /// `Tried to allocate more than 1EB memory.`
    TorchOverflow,
    /// PyTorch's allocator for Metal.
    Mps,
    /// One buffer that is larger than Metal allows.
    MpsBuffer,
    /// The backend `cudaMallocAsync`: `Allocation on device 0 would exceed allowed memory`.
    TorchAsync,
    /// `CUDA out of memory` without numbers, or with too few to determine the release.
    TorchShort,
    /// PyTorch before 1.0: `cuda runtime error (2) : out of memory`.
    Torch0,
    /// The CUDA, HIP or XPU runtime's own error, without numbers.
    CudaError,
    /// An assertion of PyTorch where the driver does not count a device's memory: a part of a GPU (MIG), a
    /// Jetson.
    MigAssert,
    /// cuBLAS or hipBLAS without room for its handle.
    Cublas,
    /// cuDNN without room for its handle.
    Cudnn,
    /// cuDNN without an algorithm whose workspace fits.
    CudnnAlgorithm,
    /// cuSOLVER, cuSPARSE or cuFFT without room for its handle or workspace.
    CudaLibrary,
    /// NCCL or RCCL without room for its buffers.
    Nccl,
    /// Record of the Linux OOM killer at the limit of a container or job.
    Cgroup,
    /// Record of the Linux OOM killer.
    OomKiller,
    /// A Slurm job killed at its memory limit.
    Slurm,
    /// A container killed at its memory limit, as Kubernetes and Docker report it.
    Container,
    /// A container that Kubernetes reports as killed, but not as out of memory.
    ContainerKilled,
    /// A pod evicted by Kubernetes because its node ran low on memory.
    Evicted,
    /// A Colab session that used up the machine's memory.
    Colab,
    /// A task killed by Ray's memory monitor.
    Ray,
    /// A process killed by systemd-oomd.
    SystemdOomd,
    /// An executor killed by YARN.
    Yarn,
    /// Java's heap.
    Java,
    /// A process that got SIGKILL, sender unknown.
    Killed,
    /// PyTorch's CPU allocator.
    TorchCpu,
    /// NumPy.
    Numpy,
    /// Python's `MemoryError`, or the operating system's error.
    Python,
    /// A file that could not be mapped.
    MemoryMap,
    /// Windows without room in its page file.
    PageFile,
    /// RMM, the memory manager of RAPIDS.
    Rmm,
    /// C++ `std::bad_alloc`.
    BadAlloc,
    /// Shared memory (`/dev/shm`).
    SharedMemory,
    /// NCCL without a segment of shared memory.
    NcclSharedMemory,
    /// A process without file descriptors for tensors in shared memory.
    OpenFiles,
    /// vLLM: less free at startup than `gpu_memory_utilization` asks for.
    VllmStartup,
    /// vLLM: no room for the KV cache.
    VllmCache,
    /// vLLM: `max_model_len` larger than the KV cache.
    VllmLength,
    /// SGLang: no room for the KV cache.
    Sglang,
    /// JAX (XLA).
    Jax,
    /// XLA on a TPU.
    Tpu,
    /// On-chip memory of a TPU.
    TpuVmem,
    /// TensorFlow.
    TensorFlow,
    /// TensorFlow's pool without more of the GPU's memory; it tries again with less.
    TensorFlowPool,
    /// Pinned host memory, which the GPU copies from and to.
    Pinned,
    /// TensorRT.
    TensorRt,
    /// TensorRT-LLM.
    TensorRtLlm,
    /// Text Generation Inference: no room for the prefill.
    Tgi,
    /// transformers: a quantized model that `device_map` would place on the CPU in part.
    QuantizedOffload,
    /// On-chip shared memory of a Triton kernel.
    Triton,
    /// llama.cpp.
    Ggml,
    /// Ollama, without memory of the machine.
    Ollama,
    /// MXNet.
    Mxnet,
    /// CuPy.
    Cupy,
    /// ONNX Runtime.
    OnnxRuntime,
    /// ONNX Runtime at the limit of its arena.
    OnnxRuntimeLimit,
    /// PaddlePaddle.
    Paddle,
    /// bitsandbytes.
    Bitsandbytes,
    /// FAISS.
    Faiss,
    /// PyTorch on DirectML.
    DirectMl,
    /// MLX.
    Mlx,
    /// A buffer larger than Metal allows, in MLX.
    MlxBuffer,
}

impl MessageKind {
    /// Name in JSON. For PyTorch's allocator, the release that introduced the kind.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its row in [`KINDS`].
    pub(super) fn row(self) -> &'static KindRow {
        &KINDS[self as usize]
    }

    /// Whether Linux wrote it while it killed a process.
    pub(super) fn is_kernels(self) -> bool {
        matches!(self, MessageKind::OomKiller | MessageKind::Cgroup)
    }
}

/// What ran out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Hip,
    /// Intel GPUs.
    Xpu,
    /// Apple GPUs.
    Mps,
    /// Ascend NPUs.
    Npu,
    /// The memory of the machine.
    Host,
    /// Memory managed by another program or library.
    Other,
}

impl Backend {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Cuda => "cuda",
            Backend::Hip => "hip",
            Backend::Xpu => "xpu",
            Backend::Mps => "mps",
            Backend::Npu => "npu",
            Backend::Host => "host",
            Backend::Other => "other",
        }
    }

    /// What a device of it is called, as its messages do.
    pub(super) fn device_word(self) -> &'static str {
        if self == Backend::Npu { "NPU" } else { "GPU" }
    }
}

/// Why an allocation failed, as far as its message shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageCause {
    /// What is in use and what was asked for do not fit.
    Capacity,
    /// PyTorch held enough, but not in one piece.
    Fragmentation,
    /// Other processes hold what is missing.
    OtherProcess,
    /// A setting allows less than the device has.
    Limit,
    /// The memory of the machine, not of the device.
    HostMemory,
    /// Another program's memory management, or not memory of the device at all.
    NotPytorch,
    /// The message does not show it.
    Unknown,
}

impl MessageCause {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            MessageCause::Capacity => "capacity",
            MessageCause::Fragmentation => "fragmentation",
            MessageCause::OtherProcess => "other_process",
            MessageCause::Limit => "limit",
            MessageCause::HostMemory => "host_memory",
            MessageCause::NotPytorch => "not_pytorch",
            MessageCause::Unknown => "unknown",
        }
    }
}

/// All that is specific to one kind of message.
pub(super) struct KindRow {
    /// The kind; its position in the enum is that of the row.
    pub(super) kind: MessageKind,
    /// Name in JSON.
    pub(super) name: &'static str,
    /// Program or library that prints it, for the list of those that are known.
    pub(super) program: &'static str,
    /// Whether PyTorch's caching allocator wrote it: its numbers decide the cause, the words and the advice.
    pub(super) is_allocators: bool,
    /// The cause that the kind alone shows.
    pub(super) cause: MessageCause,
    /// Whether it says who sent the SIGKILL that a shell only reports as "Killed".
    pub(super) explains_kill: bool,
    /// Regular expressions for the message without its white space, and what runs out of memory when they
    /// match. `SIZE` stands for a size, `XLA` for one as XLA writes it; a group has the name of the number
    /// that it captures (`matching.rs`). At one place in a text the first pattern of the table counts.
    pub(super) patterns: &'static [(Backend, &'static str)],
    /// Where the words without a number count as an error.
    pub(super) bare: Bare,
    /// What happened and why, in one sentence: the first template whose numbers the message has
    /// (`template.rs`).
    pub(super) words: &'static [&'static str],
    /// What to change; `None` where that depends on the cause.
    pub(super) advice: Option<&'static str>,
    /// What such a message does not show; `None` where that depends on the cause.
    pub(super) unknowns: Option<&'static [&'static str]>,
    /// What to run next; `None` where that depends on the cause.
    pub(super) next: Option<&'static [Next]>,
}

/// Where the words of a message without numbers count as an error, and not as talk about one (`context.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bare {
    /// Everywhere: the words are specific enough.
    Always,
    /// Unless a quotation mark precedes them.
    Unquoted,
    /// After the name of an error or at the start of a line, and at the end of a sentence.
    AsSentence,
    /// After the name of an error or at the start of a line.
    AsErrorLine,
    /// As an error line, or after the words of the C++ runtime.
    AsCppException,
    /// Unquoted, and not in the middle of a sentence.
    AsRuntimeError,
}

/// A command that answers what a message cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// A command, and what it shows.
    Run(&'static str, &'static str),
    /// The backend's tool that lists the processes on a device.
    ListProcesses,
    /// A recording of the program on its device, where there is a recorder for it.
    Record,
    /// A recording of the program on the CPU.
    RecordOnCpu,
}

/// A row without what is specific.
const DEFAULT: KindRow = KindRow {
    kind: MessageKind::TorchShort,
    name: "",
    program: "",
    is_allocators: false,
    cause: MessageCause::Unknown,
    explains_kill: false,
    patterns: &[],
    bare: Bare::Unquoted,
    words: &["{device} is out of memory"],
    advice: None,
    unknowns: None,
    next: None,
};

/// A row of PyTorch's caching allocator, whose messages `allocator_message.rs` reads.
const ALLOCATOR: KindRow = KindRow { program: PYTORCH, is_allocators: true, ..DEFAULT };

/// PyTorch with the devices whose messages are known.
const PYTORCH: &str = "PyTorch (CUDA, ROCm, XPU, MPS, NPU and CPU)";

/// Programs and libraries whose messages are known, each once, in the order of the table.
pub fn programs() -> Vec<&'static str> {
    let mut programs: Vec<&str> = Vec::new();
    for row in KINDS {
        if !programs.contains(&row.program) {
            programs.push(row.program);
        }
    }
    programs
}

/// Every kind of message, in the order of [`MessageKind`].
pub(super) static KINDS: &[KindRow] = &[
    KindRow { kind: MessageKind::Torch10, name: "torch-1.0", ..ALLOCATOR },
    KindRow { kind: MessageKind::Torch14, name: "torch-1.4", ..ALLOCATOR },
    KindRow { kind: MessageKind::Torch110, name: "torch-1.10", ..ALLOCATOR },
    KindRow { kind: MessageKind::Torch21, name: "torch-2.1", ..ALLOCATOR },
    KindRow { kind: MessageKind::TorchOverflow, name: "torch-overflow", program: PYTORCH, ..DEFAULT },
    KindRow {
        kind: MessageKind::Mps,
        name: "torch-mps",
        program: PYTORCH,
        patterns: &[(
            Backend::Mps,
            concat!(
                r"MPSbackendoutofmemory(?:\(MPSallocated:(?<allocated>SIZE)(?:,otherallocations:",
                r"(?<other_allocations>SIZE)(?:,maxallowed:(?<limit>SIZE)(?:\)?\.?Triedtoallocate",
                r"(?<requested>SIZE))?)?)?)?"
            ),
        )],
        words: &["the limit for MPS was reached; the message is cut off"],
        advice: Some(
            "a smaller batch or model; PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit, at the \
             risk of a machine that swaps",
        ),
        next: Some(&[Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::MpsBuffer,
        name: "torch-mps-buffer",
        program: PYTORCH,
        cause: MessageCause::Limit,
        patterns: &[
            (Backend::Mps, r"totalbytesofNDArray>2(?:32)?"),
            (Backend::Mps, r"Invalidbuffersize:(?<requested>SIZE)"),
        ],
        words: &["Metal cannot allocate a single buffer[ of {requested}]: the tensor is larger than it \
             allows"],
        advice: Some(
            "split the tensor, or compute it in parts; attention over a long sequence is the usual \
             cause",
        ),
        unknowns: Some(&[]),
        next: Some(&[Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TorchAsync,
        name: "torch-async",
        patterns: &[(
            Backend::Cuda,
            concat!(
                r"Allocationondevice(?<device>\d*)wouldexceedallowedmemory\.?(?:\(outofmemory\))?",
                r"(?:Currentlyallocated:(?<allocated>SIZE))?(?:Requested:(?<requested>SIZE))?",
                r"(?:Devicelimit:(?<total>SIZE))?(?:Free\(accordingtoCUDA\):(?<free>SIZE))?",
                r"(?:PyTorchlimit\(setbyuser-suppliedmemoryfraction\):(?<limit>SIZE))?"
            ),
        )],
        ..ALLOCATOR
    },
    KindRow {
        kind: MessageKind::TorchShort,
        name: "torch-short",
        patterns: &[(Backend::Cuda, r"Allocationondevice\d*")],
        bare: Bare::AsSentence,
        ..ALLOCATOR
    },
    KindRow {
        kind: MessageKind::Torch0,
        name: "torch-0",
        program: PYTORCH,
        patterns: &[
            (Backend::Cuda, r"THCudaCheckFAILfile=[^=]{1,300}?line=\d+error=2:outofmemory"),
            (Backend::Cuda, r"cudaruntimeerr(?:or)?\(2\):outofmemory"),
        ],
        words: &["the driver had no memory left; the message has no numbers"],
        advice: Some(
            "check which process uses the GPU; if none does, the error may belong to an earlier kernel \
             (CUDA_LAUNCH_BLOCKING=1 shows which) or to pinned host memory",
        ),
        unknowns: Some(&["how full the GPU was, and with what", "whether another process used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::CudaError,
        name: "cuda-error",
        program: "the GPU drivers",
        patterns: &[
            (
                Backend::Cuda,
                r"CUDA(?:driver|runtime)?error:outofmemory(?:Searchfor.?cudaErrorMemoryAllocation)?",
            ),
            (Backend::Xpu, r"(?:UR_RESULT|PI)_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)"),
            (Backend::Cuda, r"cudafailedwitherror2outofmemory"),
            (Backend::Hip, r"HIP(?:driver|runtime)?error:outofmemory"),
            (Backend::Hip, r"hipErrorOutOfMemory"),
            (Backend::Cuda, r"CUDA_ERROR_OUT_OF_MEMORY"),
            (Backend::Cuda, r"cudaErrorMemoryAllocation"),
            (Backend::Cuda, r"cudaMallocfailed:outofmemory"),
        ],
        bare: Bare::AsRuntimeError,
        words: &["the driver had no memory left; the message has no numbers"],
        advice: Some(
            "check which process uses the GPU; if none does, the error may belong to an earlier kernel \
             (CUDA_LAUNCH_BLOCKING=1 shows which) or to pinned host memory",
        ),
        unknowns: Some(&["how full the GPU was, and with what", "whether another process used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::MigAssert,
        name: "torch-mig",
        program: PYTORCH,
        patterns: &[(
            Backend::Cuda,
            r"NVML_SUCCESS==rINTERNALASSERTFAILEDat.{1,200}?CUDACachingAllocator\.cpp",
        )],
        words: &["the GPU ran out of memory, and PyTorch failed to say how much it has: the driver did not \
             count it, as for a part of a GPU (MIG) or a Jetson"],
        advice: Some(
            "treat it as any message that the GPU is out of memory: reduce memory use, or on MIG take a \
             larger slice",
        ),
        unknowns: Some(&["how full the GPU was, and with what"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Cublas,
        cause: MessageCause::NotPytorch,
        name: "cublas",
        program: "cuBLAS",
        patterns: &[
            (Backend::Cuda, r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
            (Backend::Hip, r"(?:HIP|ROC)BLAS_STATUS_ALLOC_FAILED"),
        ],
        words: &["cuBLAS could not start: usually the GPU is full and it cannot allocate its workspace"],
        advice: Some(
            "leave room for it: a smaller batch, or torch.cuda.empty_cache() once before the first use. If \
             the GPU is not full, the versions of CUDA and torch do not match, or an index is out of range",
        ),
        unknowns: Some(&["how full the GPU was, and with what", "whether another process used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Cudnn,
        cause: MessageCause::NotPytorch,
        name: "cudnn",
        program: "cuDNN",
        patterns: &[(Backend::Cuda, r"CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)")],
        words: &["cuDNN could not start: usually the GPU is full and it cannot allocate its handle"],
        advice: Some(
            "leave room for it: a smaller batch, or torch.cuda.empty_cache() once before the first use. If \
             the GPU is not full, the versions of CUDA and torch do not match, or an index is out of range",
        ),
        unknowns: Some(&["how full the GPU was, and with what", "whether another process used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::CudnnAlgorithm,
        name: "cudnn-algorithm",
        program: "cuDNN",
        patterns: &[
            (Backend::Cuda, r"GETwasunabletofindanenginetoexecutethiscomputation"),
            (Backend::Cuda, r"FINDwasunabletofindanenginetoexecutethiscomputation"),
            (Backend::Cuda, r"UnabletofindavalidcuDNNalgorithmtorun"),
        ],
        bare: Bare::Always,
        words: &[
            "cuDNN found no way to compute a convolution: either no workspace fitted into what the GPU \
             had left, or it has none for this shape, dtype and card",
        ],
        advice: Some(
            "try a smaller batch: if that runs, it was memory. If not, check that the versions of torch, \
             CUDA and cuDNN match the card, or try another dtype",
        ),
        unknowns: Some(&["how full the GPU was, and with what"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::CudaLibrary,
        cause: MessageCause::NotPytorch,
        name: "cuda-library",
        program: "cuSOLVER, cuSPARSE, cuFFT",
        patterns: &[
            (Backend::Cuda, r"CUSOLVER_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
            (Backend::Cuda, r"CUSOLVER_STATUS_INTERNAL_ERROR,?whencalling[`']?cusolverDnCreate"),
            (Backend::Cuda, r"CUSPARSE_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INSUFFICIENT_RESOURCES)"),
            (Backend::Cuda, r"CUFFT_ALLOC_FAILED"),
        ],
        words: &["a CUDA library could not start or had no workspace: usually because the GPU is full"],
        advice: Some(
            "leave room for it: a smaller batch, or torch.cuda.empty_cache() once before the first use. If \
             the GPU is not full, the versions of CUDA and torch do not match",
        ),
        unknowns: Some(&["how full the GPU was, and with what", "whether another process used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Nccl,
        cause: MessageCause::NotPytorch,
        name: "nccl",
        program: "NCCL",
        patterns: &[
            (Backend::Cuda, r"Cudafailure(?:\d+)?'outofmemory'"),
            (Backend::Cuda, r"FailedtoCUDA(?:calloc|malloc)(?:async)?(?<requested>\d+bytes)"),
            (Backend::Hip, r"HIPfailure(?:\d+)?'outofmemory'"),
        ],
        bare: Bare::Always,
        words: &["NCCL could not allocate[ {requested} for] its buffers: it allocates outside PyTorch"],
        advice: Some(
            "leave room for it: a smaller batch, or set_per_process_memory_fraction so that \
             PyTorch does not cache everything",
        ),
        unknowns: Some(&["how full the GPU was, and with what", "whether another process used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Cgroup,
        name: "linux-cgroup-oom",
        program: "the Linux OOM killer",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[
            (
                Backend::Host,
                concat!(
                    r"Memorycgroupoutofmemory:Kill(?:ed)?process(?<killed_pid>\d+)",
                    r"(?:\([^)]{1,40}\)+[\w,:-]{0,60}?total-vm:(?<virtual_kib>[\d,]+)kB,anon-rss:",
                    r"(?<resident_kib>[\d,]+)kB(?:,file-rss:[\d,]+kB,shmem-rss:(?<shared_kib>[\d,]+)kB)?)?"
                ),
            ),
            (Backend::Host, r"oom-kill:constraint=CONSTRAINT_MEMCG"),
            (Backend::Host, r"memory:usage(?<used_kib>\d+)kB,limit(?<limit_kib>\d+)kB,failcnt"),
        ],
        words: &[
            "the container or job reached its memory limit[ of {limit}], not the machine's end and not \
             the GPU: Linux killed process[ {pid}][, which had {resident}][ and {shared} of shared memory]",
        ],
        advice: Some(
            "raise the limit (docker run --memory, resources.limits.memory in Kubernetes, --mem in Slurm), \
             use fewer DataLoader workers, or load less data at once",
        ),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[
            Next::Run("cat /sys/fs/cgroup/memory.max", "the limit, read inside of the container or job"),
            Next::RecordOnCpu,
        ]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::OomKiller,
        name: "linux-oom-killer",
        program: "the Linux OOM killer",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[
            (
                Backend::Host,
                concat!(
                    r"[Oo]utofmemory:Kill(?:ed)?process(?<killed_pid>\d+)\([^)]{1,40}\)+[\w,-]{0,60}?tota",
                    r"l-vm:(?<virtual_kib>[\d,]+)kB,anon-rss:(?<resident_kib>[\d,]+)kB",
                    r"(?:,file-rss:[\d,]+kB,shmem-rss:(?<shared_kib>[\d,]+)kB)?"
                ),
            ),
            (Backend::Host, r"[Oo]utofmemory:Kill(?:ed)?process(?<killed_pid>\d+)"),
            (
                Backend::Host,
                concat!(
                    r"Killedprocess(?<killed_pid>\d+)\([^)]{1,40}\)+,?(?:UID\d+,)?total-vm:",
                    r"(?<virtual_kib>[\d,]+)kB,anon-rss:(?<resident_kib>[\d,]+)kB",
                    r"(?:,file-rss:[\d,]+kB,shmem-rss:(?<shared_kib>[\d,]+)kB)?"
                ),
            ),
            (Backend::Host, r"oom-kill:constraint="),
            (Backend::Host, r"invokedoom-killer"),
            // systemd's words
            (Backend::Host, r"hasbeenkilledbytheOOMkiller"),
            (Backend::Host, r"Failedwithresult'oom-kill'"),
        ],
        words: &["the machine ran out of memory, not the GPU: Linux killed process[ {pid}][, which had \
             {resident} of it][ and {shared} of shared memory]"],
        advice: Some("load less data at once, use fewer DataLoader workers, or add RAM"),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Slurm,
        name: "slurm-oom",
        program: "Slurm",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[
            (Backend::Host, r"havebeenOOMKilled"),
            (Backend::Host, r"Detected\d+oom[-_]kill"),
            (Backend::Host, r"task\d+(?:-\d+)?:OutOfMemory"),
            (Backend::Host, r"Exceeded(?:job|step)memorylimit"),
            (Backend::Host, r"State:OUT_OF_MEMORY"),
            (Backend::Host, r"OUT_OF_ME\+"),
        ],
        words: &["the job ran out of the machine's memory, not the GPU's: Slurm killed it at its limit"],
        advice: Some("sbatch --mem=…, fewer DataLoader workers, or load the model on one rank at a time"),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run(
            "sacct -j JOB --format=JobID,MaxRSS,ReqMem,State",
            "what the job had and what it was allowed",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Container,
        name: "container-oom",
        program: "containers",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[
            (
                Backend::Host,
                concat!(
                    r#"(?:[Rr]eason"?[:=]"?|[Ss]tatus"?[:=]"?|\d+/\d+|[Tt]erminated:?|was|\()OOMKilled"#,
                    // A metric that counts none.
                    r#"(?:"\}(?<harmless>0))?"#
                ),
            ),
            (Backend::Host, r#"OOMKilled"?[:=][Tt]rue"#),
        ],
        bare: Bare::Always,
        words: &["the container ran out of memory, not the GPU: it was killed at its limit"],
        advice: Some("raise the container's memory limit, or load less data at once"),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("docker stats --no-stream", "what the container has and what it is allowed")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::ContainerKilled,
        name: "container-killed",
        program: "containers",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[(Backend::Host, r"Reason:ErrorExitCode:137")],
        bare: Bare::Always,
        words: &["the container was killed (SIGKILL), but Kubernetes does not say `OOMKilled`: a failed \
             liveness probe or a deletion sends the same signal"],
        advice: Some(
            "look at the pod's events first; if the node's kernel killed it, raise the memory limit or load \
             less data at once",
        ),
        unknowns: Some(&["who killed it"]),
        next: Some(&[Next::Run(
            "kubectl describe pod POD",
            "its events: failed probes, evictions, deletions",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Evicted,
        name: "kubernetes-evicted",
        program: "Kubernetes",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[(Backend::Host, r"Thenodewaslowonresource:memory")],
        words: &["the node ran low on memory, not the GPU: Kubernetes evicted the pod"],
        advice: Some(
            "ask for the memory that the pod needs (resources.requests.memory), or load less data at once",
        ),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run(
            "kubectl describe node NODE",
            "what the node has and what the pods have \
             asked for",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Colab,
        name: "colab-ram",
        program: "Colab",
        cause: MessageCause::HostMemory,
        patterns: &[(Backend::Host, r"Yoursessioncrashedafterusingallavailable(?:system)?RAM")],
        words: &["the notebook's machine ran out of memory, not the GPU"],
        advice: Some("a runtime with more RAM, or load less data at once; the GPU has nothing to do with it"),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Ray,
        name: "ray-oom",
        program: "Ray",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[
            (
                Backend::Host,
                concat!(
                    r"killedduetothenoderunninglowonmemory(?:\.Memoryonthenode\(.{0,300}?memoryused=",
                    r"(?<resident>SIZE)\)wasrunningwas(?<used>SIZE)/(?<total>SIZE))?"
                ),
            ),
            (
                Backend::Host,
                concat!(
                    r"RayOutOfMemoryError:Morethan\d+%ofthememoryonnode.{1,100}?isused\((?<used_gib>\d+",
                    r"(?:\.\d+)?)/(?<total_gib>\d+(?:\.\d+)?)GB\)"
                ),
            ),
            (Backend::Host, r"[1-9]\d*Workers\(tasks/actors\)killedduetomemorypressure\(OOM\)"),
        ],
        words: &["the machine ran out of memory, not the GPU[ ({used} of {total} in use)]: Ray killed the \
             task[, which had {resident}]"],
        advice: Some("load less data at once, use fewer DataLoader workers, or add RAM"),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::SystemdOomd,
        name: "systemd-oomd",
        program: "systemd-oomd",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[(
            Backend::Host,
            concat!(
                r"Killed/[!-~]{1,300}?dueto(?:memorypressurefor/[!-~]{1,300}?being[\d.]+%|",
                r"memoryused\(\d+\)/total\(\d+\)andswapused)"
            ),
        )],
        words: &["the machine ran low on memory, not the GPU: systemd-oomd killed the program before the \
             kernel had to"],
        advice: Some(
            "load less data at once, use fewer DataLoader workers, or exempt it from systemd-oomd \
             (systemd-run --user --scope -p ManagedOOMPreference=omit)",
        ),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("oomctl", "what systemd-oomd watches, and its limits"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Yarn,
        name: "yarn",
        program: "YARN",
        cause: MessageCause::HostMemory,
        explains_kill: true,
        patterns: &[(
            Backend::Host,
            concat!(
                r"[Cc]ontainerkilledbyYARNforexceeding(?:physical)?memorylimits\.",
                r"(?:(?<used>SIZE)of(?<limit>SIZE)(?:physical)?memoryused)?"
            ),
        )],
        words: &["the executor used more of the machine's memory than YARN allows it[: {used} of {limit}]; \
             the GPU is not involved"],
        advice: Some(
            "raise spark.executor.memoryOverhead (Python and native libraries are outside of Java's heap), \
             or give each task less data",
        ),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("yarn logs -applicationId APPLICATION", "the logs of the executors")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Java,
        name: "java",
        program: "Java",
        cause: MessageCause::HostMemory,
        patterns: &[(
            Backend::Host,
            r"java\.lang\.OutOfMemoryError:(?:Javaheapspace|GCoverheadlimitexceeded|Directbuffermemory)",
        )],
        bare: Bare::Always,
        words: &["Java ran out of memory: its own limit, not the GPU's"],
        advice: Some(
            "raise the limit (java -Xmx, spark.driver.memory and spark.executor.memory), or give it less \
             data at once",
        ),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("free -g", "what the machine has")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Killed,
        name: "killed",
        program: "shells (SIGKILL)",
        cause: MessageCause::HostMemory,
        patterns: &[
            (Backend::Host, r"Signals\.SIGKILL:9"),
            (Backend::Host, r"Signal9\(SIGKILL\)"),
            (Backend::Host, r"signal:?SIGKILL"),
            (Backend::Host, r"killedbysignal:?Killed"),
        ],
        words: &["the process was killed (SIGKILL), usually because the machine ran out of memory"],
        advice: Some("load less data at once, use fewer DataLoader workers, or add RAM"),
        unknowns: Some(&["who killed it: a time limit, a preemption or a person sends the same signal; \
             dmesg shows it"]),
        next: Some(&[
            Next::Run("dmesg -T | grep -i -A2 oom-kill", "whether it was the kernel, and what it killed"),
            Next::Run("oomph explain dmesg.log", "the kernel's record in words"),
        ]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TorchCpu,
        name: "torch-cpu",
        program: PYTORCH,
        cause: MessageCause::HostMemory,
        patterns: &[
            (
                Backend::Host,
                concat!(
                    r"DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory)(?::youtriedtoallocate",
                    r"(?<requested>\d+bytes))?"
                ),
            ),
            (Backend::Host, r"Torch:notenoughmemory:youtriedtoallocate(?<requested>SIZE)"),
        ],
        words: &["out of host memory[ ({requested} requested)]: a tensor on the CPU, not on the GPU"],
        advice: Some(
            "load less data at once, or use a smaller dtype; a shape that is larger than you expect is the \
             usual mistake",
        ),
        unknowns: Some(&["what else filled the memory of the machine"]),
        next: Some(&[Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Numpy,
        name: "numpy",
        program: "NumPy",
        cause: MessageCause::HostMemory,
        patterns: &[
            (Backend::Host, r"Unabletoallocate(?:(?<requested>SIZE)for)?anarraywithshape"),
            (Backend::Host, r"Unabletoallocate(?:(?<requested>SIZE)for)?arraywithshape"),
        ],
        words: &["out of host memory[ ({requested} requested)]: a NumPy array, not a tensor on the GPU"],
        advice: Some(
            "load less data at once, or use a smaller dtype; a shape that is larger than you expect is the \
             usual mistake",
        ),
        unknowns: Some(&["what else filled the memory of the machine"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Python,
        name: "python",
        program: "Python",
        cause: MessageCause::HostMemory,
        patterns: &[
            (Backend::Host, r"\[Errno12\]Cannotallocatememory"),
            (Backend::Host, r"Cannotallocatememory\(oserror12\)"),
            (Backend::Host, r"MemoryError:couldnotallocate(?<requested>\d+bytes)"),
            (Backend::Host, r"(?:UR_RESULT|PI)_ERROR_OUT_OF_HOST_MEMORY"),
            // Less than 1 GB does not fit for another reason: `MemoryMap`.
            (
                Backend::Host,
                r"unabletommap(?<requested>\d{10,19}bytes)fromfile<[^>]{1,300}>:Cannotallocatememory",
            ),
        ],
        words: &["out of host memory: the program could not allocate; the GPU is not involved"],
        advice: Some("load less data at once, use fewer DataLoader workers, or add RAM"),
        unknowns: Some(&["what else filled the memory of the machine"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::MemoryMap,
        name: "memory-map",
        program: "Linux",
        cause: MessageCause::HostMemory,
        patterns: &[(
            Backend::Host,
            concat!(
                r"unabletommap(?<requested>\d+bytes)fromfile<[^>]{1,300}>:Cannotallocatememory",
                r"(?:\(12\))?"
            ),
        )],
        words: &[
            "Linux refused to map another {requested|part} of a file, although memory is left: usually \
             the process has too many maps (vm.max_map_count, 65,530 by default)",
        ],
        advice: Some(
            "keep fewer tensors that workers sent (`.clone()` what you keep), or raise the limit (sysctl \
             vm.max_map_count=1048576)",
        ),
        unknowns: Some(&["how many maps the process had"]),
        next: Some(&[
            Next::Run("sysctl vm.max_map_count", "how many maps a process may have"),
            Next::Run("wc -l /proc/PID/maps", "how many it has, while it runs"),
        ]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::PageFile,
        name: "windows-page-file",
        program: "Windows",
        cause: MessageCause::HostMemory,
        patterns: &[
            (Backend::Host, r"\[WinError1455\](?:Thepagingfileistoosmallforthisoperationtocomplete)?"),
            (Backend::Host, r"The?pagingfileistoosmallforthisoperationtocomplete\.?(?:\(oserror1455\))?"),
        ],
        words: &["Windows reached its commit limit, not the GPU's memory: the page file is too small"],
        advice: Some(
            "enlarge the page file (System > Advanced > Performance > Virtual memory), or fewer \
             num_workers: each worker loads its own copy of torch's libraries",
        ),
        unknowns: Some(&["how large the page file is, and who else has it"]),
        next: Some(&[Next::Run(
            "systeminfo | findstr Virtual",
            "how much memory Windows may commit, and \
             how much it has",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Rmm,
        name: "rmm",
        program: "RMM",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            r"(?:std::bad_alloc:)?out_of_memory:(?:CUDAerror|RMM|Maximumpoolsizeexceeded)",
        )],
        words: &["RMM (RAPIDS) could not allocate GPU memory: it manages memory itself, not through PyTorch"],
        advice: Some(
            "a smaller pool or managed memory for RMM; if it shares the GPU with PyTorch, give PyTorch RMM's \
             allocator",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::BadAlloc,
        name: "bad-alloc",
        program: "C++",
        cause: MessageCause::HostMemory,
        patterns: &[(Backend::Host, r"std::bad_alloc")],
        bare: Bare::AsCppException,
        words: &["out of host memory: C++ code of the program could not allocate; the GPU is not involved"],
        advice: Some("load less data at once, use fewer DataLoader workers, or add RAM"),
        unknowns: Some(&["what else filled the memory of the machine"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::SharedMemory,
        name: "shared-memory",
        program: "DataLoader workers",
        cause: MessageCause::HostMemory,
        patterns: &[
            (Backend::Host, r"insufficientsharedmemory\(shm\)"),
            (Backend::Host, r"outofsharedmemory"),
            (
                Backend::Host,
                concat!(
                    r"unabletoopensharedmemoryobject<[^>]{1,200}>in[\w-]{1,40}mode:",
                    // The object is gone or belongs to somebody else.
                    r"(?:(?<harmless>Nosuchfile|Permissiondenied)|[^T])"
                ),
            ),
            (Backend::Host, r"unabletowritetofile</torch_"),
            (Backend::Host, r"unabletommap(?<requested>\d+bytes)fromfile</torch_"),
            (Backend::Host, r"Nospaceleftondevice:['`]?/dev/shm/"),
        ],
        bare: Bare::Always,
        words: &["shared memory (/dev/shm) is full, not the GPU: DataLoader workers and NCCL pass data \
             through it"],
        advice: Some(
            "docker run --shm-size=16g (or --ipc=host), fewer num_workers, or \
             torch.multiprocessing.set_sharing_strategy('file_system')",
        ),
        unknowns: Some(&["how large /dev/shm is, and how much one batch takes"]),
        next: Some(&[Next::Run("df -h /dev/shm", "how large it is, and how full")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::NcclSharedMemory,
        name: "nccl-shared-memory",
        program: "NCCL",
        cause: MessageCause::HostMemory,
        patterns: &[(
            Backend::Host,
            r"Errorwhilecreatingsharedmemorysegment(?:/dev/shm/[\w-]{1,80}\(size(?<requested_bytes>\d+)\))?",
        )],
        bare: Bare::Always,
        words: &[
            "NCCL could not create a segment[ of {requested}] in /dev/shm, through which the ranks of a \
             machine pass data: usually because it is full",
        ],
        advice: Some(
            "docker run --shm-size=16g (or --ipc=host). If /dev/shm has room, the line above the message has \
             the reason; NCCL_SHM_DISABLE=1 avoids it at the price of speed",
        ),
        unknowns: Some(&["how large /dev/shm is, and how full"]),
        next: Some(&[Next::Run("df -h /dev/shm", "how large it is, and how full")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::OpenFiles,
        name: "open-files",
        program: "DataLoader workers",
        cause: MessageCause::HostMemory,
        patterns: &[
            (
                Backend::Host,
                // In releases that do not print a reason, this is the usual one.
                concat!(
                    r"unabletoopensharedmemoryobject<?[\w/.-]{0,80}>?(?:in[\w-]{1,40}mode)?",
                    r"(?::Toomanyopenfiles)?"
                ),
            ),
            (Backend::Host, r"received\d+itemsofancdata"),
        ],
        bare: Bare::Always,
        words: &["too many open files, not too little memory: each tensor from a DataLoader worker takes a \
             file descriptor for as long as it lives"],
        advice: Some(
            "copy what you keep of a batch (`.clone()`, `copy.deepcopy`), raise the limit (ulimit -n 65536), \
             or torch.multiprocessing.set_sharing_strategy('file_system')",
        ),
        unknowns: Some(&["what the limit is, and which tensors are kept"]),
        next: Some(&[Next::Run("ulimit -n", "how many files a process may have open")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::VllmStartup,
        name: "vllm-startup",
        program: "vLLM",
        patterns: &[(
            Backend::Cuda,
            concat!(
                r"Freememoryondevice(?:cuda:(?<device>\d+))?\((?<free_gib>\d+(?:\.\d+)?)/",
                r"(?<total_gib>\d+(?:\.\d+)?)GiB\)onstartupislessthandesiredGPUmemoryutilization",
                r"(?:\([\d.]+,(?<requested>SIZE)\))?"
            ),
        )],
        words: &["vLLM found {free|too little} free of {total|too little} at startup and wanted \
             {requested|more}"],
        advice: Some("end the other processes, or lower gpu_memory_utilization"),
        unknowns: Some(&["which processes use the rest"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::VllmCache,
        name: "vllm-kv-cache",
        program: "vLLM",
        cause: MessageCause::Limit,
        patterns: &[(Backend::Cuda, r"Noavailablememoryforthecacheblocks")],
        words: &[
            "vLLM's own limit: the model fills what gpu_memory_utilization allows, nothing is left for \
             the KV cache",
        ],
        advice: Some(
            "raise gpu_memory_utilization, spread the model over more GPUs (tensor_parallel_size), \
             or quantize it",
        ),
        unknowns: Some(&["how much the model itself takes"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::VllmLength,
        name: "vllm-max-model-len",
        program: "vLLM",
        cause: MessageCause::Limit,
        patterns: &[
            (
                Backend::Cuda,
                concat!(
                    r"[Mm]axseqlen\((?<max_model_len>\d+)\)islargerthanthemaximumnumberoftokensthatcanbest",
                    r"oredinKVcache\((?<kv_cache_tokens>\d+)\)"
                ),
            ),
            (
                Backend::Cuda,
                concat!(
                    r"maxseqlen\((?<max_model_len>\d+)\),?\(?(?<requested>SIZE)",
                    r"KVcacheisneeded,whichislargerthantheavailableKVcachememory\((?<free>SIZE)\)",
                    r"(?:\.Basedontheavailablememory,theestimatedmaximummodellengthis",
                    r"(?<kv_cache_tokens>\d+)\.)?"
                ),
            ),
        ],
        words: &[
            "vLLM's own limit: one request of {max_model_len} tokens needs {requested} of KV cache, \
             and {free} is left",
            "vLLM's own limit: the KV cache holds {kv_cache_tokens} tokens, one request may have \
             {max_model_len}",
            "vLLM's own limit: the KV cache is smaller than one request",
        ],
        advice: Some("lower max_model_len, or raise gpu_memory_utilization"),
        unknowns: Some(&["how much the model itself takes"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Sglang,
        name: "sglang",
        program: "SGLang",
        cause: MessageCause::Limit,
        patterns: &[(Backend::Cuda, r"Notenoughmemory\.?Pleasetrytoincrease--mem-fraction-static")],
        words: &["SGLang's own limit: the model fills what --mem-fraction-static allows, nothing is left \
             for the KV cache"],
        advice: Some("raise --mem-fraction-static, spread the model over more GPUs (--tp), or quantize it"),
        unknowns: Some(&["how much the model itself takes"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Jax,
        name: "jax",
        program: "JAX",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (Backend::Other, r"RESOURCE_EXHAUSTED:Failedtoallocaterequestfor(?<requested>SIZE)"),
            (
                Backend::Other,
                concat!(
                    r"(?:RESOURCE_EXHAUSTED|Resourceexhausted):Outofmemory(?:whiletryingtoallocate|",
                    r"allocating)(?:(?<requested>\d+bytes|SIZE))?"
                ),
            ),
        ],
        bare: Bare::AsErrorLine,
        words: &["JAX ran out of memory[ while allocating {requested}]: XLA manages it, not PyTorch"],
        advice: Some(
            "XLA_PYTHON_CLIENT_PREALLOCATE=false if it shares the GPU with PyTorch; otherwise a smaller \
             batch",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Tpu,
        name: "tpu",
        program: "XLA on TPUs",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (
                Backend::Other,
                concat!(
                    r"Ranoutofmemoryinmemoryspacehbm\.",
                    r"(?:Used(?<used_xla>XLA)of(?<total_xla>XLA)hbm\.?)?"
                ),
            ),
            (
                Backend::Other,
                concat!(
                    r"Attemptingto(?:allocate|reserve)(?<requested_xla>XLA)(?:atthebottomofmemory)?\.",
                    r"Thatwasnotpossible\.(?:Thereare(?<free_xla>XLA)free)?"
                ),
            ),
            (
                Backend::Other,
                concat!(
                    r"TPUTensorCoreHbmusage:XLA,SparseCoreHbmusageXLA,exceedingavailablebytes:",
                    r"(?<total_xla>XLA)"
                ),
            ),
        ],
        words: &[
            "the program needs {used} of a TPU's memory, and it has {total}: XLA plans memory when it \
             compiles",
            "{requested} did not fit into the TPU's memory[: {free} was free]",
            "the program needs more than the TPU's memory[, {total}]: XLA plans memory when it compiles",
        ],
        advice: Some(
            "a smaller batch per chip, a model that is sharded over more chips, or less kept for the \
             backward pass (jax.checkpoint)",
        ),
        unknowns: Some(&["which arrays these are: XLA lists the largest below the message"]),
        next: Some(&[Next::Run(
            "jax.profiler.save_device_memory_profile(\"memory.prof\")",
            "in the program, before it fails: what the device holds",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TpuVmem,
        name: "tpu-vmem",
        program: "XLA on TPUs",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            concat!(
                r"Ranoutofmemoryinmemoryspace[sv]mem\.",
                r"(?:Used(?<used_xla>XLA)of(?<total_xla>XLA)[sv]mem\.?)?"
            ),
        )],
        words: &[
            "not the TPU's main memory: a kernel needs more on-chip memory than its limit allows[: {used} of \
             {total}]",
        ],
        advice: Some(
            "smaller blocks in the kernel (Pallas), or a higher limit \
             (LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=…); a smaller batch does not help",
        ),
        unknowns: Some(&[]),
        next: Some(&[Next::Run(
            "LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=32768 python train.py",
            "whether a higher limit is enough",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TensorFlow,
        name: "tensorflow",
        program: "TensorFlow",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (Backend::Other, r"OOMwhenallocatingtensorwithshape"),
            (Backend::Other, r"Dsttensorisnotinitialized"),
            (
                Backend::Other,
                concat!(
                    r"ranoutofmemorytryingtoallocate(?<requested>SIZE)(?<harmless>",
                    r"(?:withfreed_by_count=\d+)?\.Thecallerindicatesthatthisisnotafailure)?"
                ),
            ),
            (Backend::Other, r"failedtocreatecublashandle:CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
            (
                Backend::Other,
                concat!(
                    r"[Cc]ouldnotcreatecudnnhandle:CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|",
                    r"INTERNAL_ERROR)"
                ),
            ),
        ],
        words: &[
            "TensorFlow ran out of memory[ while allocating {requested}]: its own allocator manages it, not \
             PyTorch's",
        ],
        advice: Some(
            "tf.config.experimental.set_memory_growth if it shares the GPU with PyTorch; otherwise a smaller \
             batch",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TensorFlowPool,
        name: "tensorflow-pool",
        program: "TensorFlow",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            concat!(
                r"failedtoallocate[\d.]+[KMG]?\((?<requested>\d+bytes)\)",
                r"fromdevice:CUDA_ERROR_OUT_OF_MEMORY"
            ),
        )],
        words: &[
            "TensorFlow could not allocate[ {requested}] for its pool: its own allocator manages memory, not \
             PyTorch's",
        ],
        advice: Some(
            "tf.config.experimental.set_memory_growth if it shares the GPU with PyTorch; otherwise a smaller \
             batch",
        ),
        unknowns: Some(&[
            "how full the GPU was, and which other processes used it",
            "whether it failed: TensorFlow tries again with less before it gives up",
        ]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Pinned,
        name: "pinned-memory",
        program: "the GPU drivers",
        cause: MessageCause::HostMemory,
        patterns: &[
            (Backend::Host, r"failedtoalloc(?<requested>\d+bytes)onhost:CUDA_ERROR_OUT_OF_MEMORY"),
            (Backend::Host, r"couldnotallocatepinnedhostmemoryofsize:(?<requested_bytes>\d+)"),
        ],
        words: &[
            "out of pinned host memory[ ({requested} requested)], which the GPU copies from and to; not the \
             GPU's own memory",
        ],
        advice: Some("fewer or smaller pinned buffers; pin_memory=False where the memory is short"),
        unknowns: Some(&["which objects filled the memory, and whether it was a leak or a peak"]),
        next: Some(&[Next::Run("free -g", "what the machine has"), Next::RecordOnCpu]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TensorRt,
        name: "tensorrt",
        program: "TensorRT",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (Backend::Other, r"ErrorCode\d+:(?:OutOfMemory|CudaRuntime\(outofmemory\))"),
            (Backend::Other, r"Requestedamountof(?:GPU)?memory\((?<requested>\d+bytes)\)couldnotbeallocated"),
            (Backend::Other, r"CudaErrorin[\w:]{0,80}allocate:2\(outofmemory\)"),
            (Backend::Other, r"OutOfMemoryErrorinallocate"),
        ],
        words: &["TensorRT could not allocate[ {requested} of] GPU memory: it manages memory itself, not \
             through PyTorch"],
        advice: Some("a smaller workspace or batch, or end the other processes on the GPU"),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::TensorRtLlm,
        name: "tensorrt-llm",
        program: "TensorRT-LLM",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            r"CUDAruntimeerrorin::?cudaMalloc\w{0,20}\([!-~]{0,100}?\):outofmemory",
        )],
        words: &["TensorRT-LLM could not allocate GPU memory: it manages memory itself, not through PyTorch"],
        advice: Some(
            "lower free_gpu_memory_fraction (kv_cache_free_gpu_mem_fraction in Triton's config.pbtxt), build \
             the engine with a smaller max_batch_size or max_seq_len, or end the other processes on the GPU",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Tgi,
        name: "tgi",
        program: "Text Generation Inference",
        cause: MessageCause::Limit,
        patterns: &[(Backend::Cuda, r"Notenoughmemorytohandle(?<prefill_tokens>\d+)prefilltokens")],
        words: &[
            "TGI's own limit: there is no room for {prefill_tokens} tokens of prefill next to the model",
            "TGI's own limit: there is no room for the prefill next to the model",
        ],
        advice: Some("lower --max-batch-prefill-tokens, or spread the model over more GPUs"),
        unknowns: Some(&["how much the model itself takes"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::QuantizedOffload,
        name: "quantized-offload",
        program: "transformers",
        cause: MessageCause::Capacity,
        patterns: &[(Backend::Cuda, r"SomemodulesaredispatchedontheCPUorthedisk\.")],
        bare: Bare::Unquoted,
        words: &["the quantized model does not fit into the free memory of the GPU: some of its modules \
             would have to stay on the CPU or the disk"],
        advice: Some(
            "free the GPU first (an earlier model or another process may hold it), or use a smaller model, \
             4-bit weights or more GPUs. To let modules stay on the CPU, pass \
             `llm_int8_enable_fp32_cpu_offload=True` and a `device_map`",
        ),
        unknowns: Some(&["how large the model is, and how much of the GPU was free"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Triton,
        name: "triton-shared-memory",
        program: "Triton",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (
                Backend::Other,
                concat!(
                    r"outofresource:sharedmemory(?:,Required:(?<shared_memory_required>\d+),Hardwarelimit",
                    // While it tries configurations, torch.compile leaves out those that fail.
                    r"(?:ation)?:(?<shared_memory_limit>\d+)(?:\.Reducingblocksizesor[`']?num_stages[`']?",
                    r"mayhelp\.+(?<harmless>forbenchmarkchoice|Ignoringthischoice))?)?"
                ),
            ),
            (
                Backend::Other,
                concat!(
                    r"outofresource:tensormemory,Required:(?<tensor_memory_required>\d+),Hardwarelimit",
                    r"(?:ation)?:(?<tensor_memory_limit>\d+)"
                ),
            ),
            // torch.compile names the kernel instead.
            (
                Backend::Other,
                concat!(
                    r"outofresource:triton_\w{1,300}?Required:(?<shared_memory_required>\d+)Hardwarelimit:",
                    r"(?<shared_memory_limit>\d+)"
                ),
            ),
        ],
        words: &[
            "not the GPU's memory: a Triton kernel wants {shared_memory_required} bytes of on-chip \
             shared memory, this GPU has {shared_memory_limit}",
            "not the GPU's memory: a Triton kernel wants {tensor_memory_required} columns of on-chip tensor \
             memory, this GPU has {tensor_memory_limit}",
            "not the GPU's memory: a Triton kernel wants more on-chip shared memory than this GPU has",
        ],
        advice: Some("smaller block sizes or num_stages for this kernel; a smaller batch does not help"),
        unknowns: Some(&[]),
        next: Some(&[Next::Run(
            "TRITON_PRINT_AUTOTUNING=1 python train.py",
            "which configuration of the kernel is tried",
        )]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Ggml,
        name: "ggml",
        program: "llama.cpp",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (
                Backend::Other,
                r"allocating(?<requested>SIZE)ondevice(?<device>\d+):cudaMallocfailed:outofmemory",
            ),
            (Backend::Other, r"ggml_vulkan:Devicememoryallocationofsize(?<requested_bytes>\d+)failed"),
            (Backend::Other, r"llamarunnerprocesshasterminated:(?:cudaMallocfailed|CUDAerror):outofmemory"),
            (Backend::Other, r"CUDAerror2at[\w./-]{0,200}ggml-cuda\.cu:\d+:outofmemory"),
        ],
        words: &["llama.cpp could not allocate[ {requested} of] GPU memory: it manages memory itself, not \
             through PyTorch"],
        advice: Some("fewer layers on the GPU (-ngl), a shorter context (-c), or a smaller quantization"),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Ollama,
        name: "ollama-system-memory",
        program: "Ollama",
        cause: MessageCause::HostMemory,
        patterns: &[(
            Backend::Host,
            r"modelrequiresmoresystemmemory\((?<requested>SIZE)\)thanisavailable\((?<free>SIZE)\)",
        )],
        words: &["the model needs {requested|more} of the machine's memory, not of the GPU's, and \
             {free|too little} is available"],
        advice: Some(
            "a smaller model or quantization, a shorter context (num_ctx), or close other programs; on a \
             server or in a container, more memory",
        ),
        unknowns: Some(&["who uses the rest"]),
        next: Some(&[Next::Run("free -g", "what the machine has")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Mxnet,
        name: "mxnet",
        program: "MXNet",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            r"pooled_storage_manager\.h:\d+:(?:cudaMallocfailed:outofmemory|Memoryallocationfailed)",
        )],
        words: &["MXNet could not allocate GPU memory: it manages memory itself, not through PyTorch"],
        advice: Some(
            "a smaller batch; a larger MXNET_GPU_MEM_POOL_RESERVE if MXNet shares the GPU with other \
             programs",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Cupy,
        name: "cupy",
        program: "CuPy",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            r"Outofmemoryallocating(?<requested_bytes>\d[\d,]*)bytes\(allocatedsofar:",
        )],
        words: &[
            "CuPy could not allocate[ {requested} of] GPU memory: it manages memory itself, not through \
             PyTorch",
        ],
        advice: Some(
            "cupy.get_default_memory_pool().free_all_blocks() releases the unused memory of its pool; \
             cupy.cuda.set_allocator can give it PyTorch's allocator where both use the GPU",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::OnnxRuntime,
        name: "onnxruntime",
        program: "ONNX Runtime",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (Backend::Other, r"Failedtoallocatememoryforrequestedbufferofsize(?<requested_bytes>\d+)?"),
            (Backend::Other, r"CUDAfailure2:outofmemory;GPU=(?<device>\d+)"),
        ],
        words: &["ONNX Runtime could not allocate[ {requested} of] memory: it manages memory itself, not \
             through PyTorch"],
        advice: Some(
            "a smaller batch or model. On a GPU, arena_extend_strategy=kSameAsRequested keeps its arena from \
             doubling, and enable_cpu_mem_arena=False turns off the one on the CPU",
        ),
        unknowns: Some(&["whether it was memory of the GPU or of the machine, and how full that was"]),
        next: Some(&[Next::ListProcesses, Next::Run("free -g", "what the machine has")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::OnnxRuntimeLimit,
        name: "onnxruntime-limit",
        program: "ONNX Runtime",
        cause: MessageCause::Limit,
        patterns: &[(
            Backend::Other,
            concat!(
                r"Availablememoryof(?<free_bytes>\d+)issmallerthanrequestedbytesof",
                r"(?<requested_bytes>\d+)"
            ),
        )],
        words: &["ONNX Runtime's own limit: {free|too little} was left of gpu_mem_limit, and \
             {requested|more} was requested"],
        advice: Some("raise gpu_mem_limit of the CUDA provider, or use a smaller batch"),
        unknowns: Some(&["how much of the GPU was free"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Paddle,
        name: "paddle",
        program: "PaddlePaddle",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            concat!(
                r"OutofmemoryerroronGPU(?<device>\d+)\.Cannotallocate(?<requested>SIZE)",
                r"(?:memoryonGPU\d+,(?<used>SIZE)memoryhasbeenallocatedandavailablememoryisonly",
                r"(?<free>SIZE))?"
            ),
        )],
        words: &[
            "PaddlePaddle could not allocate[ {requested} of] GPU memory[ with {free} free]: it manages \
             memory itself, not through PyTorch",
        ],
        advice: Some(
            "a smaller batch; paddle.device.cuda.empty_cache() releases unused memory to other programs on \
             the GPU",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Bitsandbytes,
        name: "bitsandbytes",
        program: "bitsandbytes",
        cause: MessageCause::NotPytorch,
        patterns: &[(Backend::Other, r"Erroroutofmemoryatline\d+infile")],
        words: &["bitsandbytes could not allocate GPU memory: it allocates outside PyTorch"],
        advice: Some("record a run to see what used the memory"),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses, Next::Record]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Faiss,
        name: "faiss",
        program: "FAISS",
        cause: MessageCause::NotPytorch,
        patterns: &[
            (
                Backend::Other,
                concat!(
                    r"[Ff]ailedtocudaMalloc(?<requested>\d+bytes)(?:ondevice(?<device>\d+))?",
                    r"(?:\(error2outofmemory\)?)?"
                ),
            ),
            (
                Backend::Other,
                concat!(
                    r"StandardGpuResources:allocfailtype\w{1,40}dev(?<device>\d+)space\w{1,20}stream\w{1,20}",
                    r"size(?<requested>\d+bytes)\(cudaMallocerroroutofmemory\[2\]\)"
                ),
            ),
        ],
        words: &[
            "FAISS could not allocate[ {requested} of] GPU memory: it manages memory itself, not through \
             PyTorch",
        ],
        advice: Some(
            "StandardGpuResources.setTempMemory with a smaller size, useFloat16 or a compressed index \
             (IVFPQ), or shards of it on several GPUs",
        ),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::ListProcesses]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::DirectMl,
        name: "torch-directml",
        program: "DirectML",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            concat!(
                r"Couldnotallocatetensorwith(?<requested>\d+bytes)\.",
                r"(?:ThereisnotenoughGPUvideomemoryavailable!?)?"
            ),
        )],
        words: &["DirectML could not allocate[ {requested} of] the GPU's memory"],
        advice: Some("a smaller batch, image or model, half precision, or close other programs on the GPU"),
        unknowns: Some(&["how full the GPU was, and which other processes used it"]),
        next: Some(&[Next::Run("taskmgr", "the GPU's dedicated and shared memory, on its Performance page")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::Mlx,
        name: "mlx",
        program: "MLX",
        cause: MessageCause::NotPytorch,
        patterns: &[(
            Backend::Other,
            r"InsufficientMemory\(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory\)",
        )],
        bare: Bare::Always,
        words: &[
            "the GPU of the Mac ran out of memory while it computed: MLX, or another program that uses \
             Metal",
        ],
        advice: Some(
            "a smaller model, quantization, batch or context; mx.set_wired_limit and mx.set_cache_limit \
             decide what MLX keeps",
        ),
        unknowns: Some(&["how much was in use, and by whom"]),
        next: Some(&[Next::Run("sysctl iogpu.wired_limit_mb", "how much memory the GPU may keep")]),
        ..DEFAULT
    },
    KindRow {
        kind: MessageKind::MlxBuffer,
        name: "mlx-buffer",
        program: "MLX",
        cause: MessageCause::Limit,
        patterns: &[(
            Backend::Other,
            concat!(
                r"\[metal::malloc\]Attemptingtoallocate(?<requested>\d+bytes)whichisgreaterthanthemaximum",
                r"allowedbuffersizeof(?<limit>\d+bytes)"
            ),
        )],
        words: &["Metal does not allocate a single buffer of {requested|this size}: its limit is \
             {limit|smaller}"],
        advice: Some(
            "compute it in parts: a smaller batch, a shorter context or prefill (--prefill-step-size), a \
             quantized KV cache",
        ),
        unknowns: Some(&[]),
        next: Some(&[Next::Run(
            "python -c 'import mlx.core as mx; print(mx.metal.device_info())'",
            "the largest buffer (max_buffer_length)",
        )]),
        ..DEFAULT
    },
];

/// Checks that each row is at the index of its kind, and names its program.
const _: () = {
    let mut row = 0;
    while row < KINDS.len() {
        assert!(KINDS[row].kind as usize == row, "the rows of `KINDS` are not in the order of `MessageKind`");
        assert!(!KINDS[row].program.is_empty(), "a row of `KINDS` has no program");
        row += 1;
    }
};
