//! Whose message it is.

/// What ran out of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    Cuda,
    Hip,
    Xpu,
    Mps,
    Npu,
    /// The memory of the machine.
    Host,
    Other,
}

impl Backend {
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

/// A form of message: PyTorch's own by the release that it appeared with, and what is easily mistaken for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// `cuda runtime error (2) : out of memory`
    Torch0,
    /// `… already allocated; … free; … cached)`
    Torch10,
    /// `… reserved in total by PyTorch)`
    Torch14,
    /// The same with a hint about `max_split_size_mb`.
    Torch110,
    /// `Of the allocated memory …`
    Torch21,
    /// `Allocation on device 0 would exceed allowed memory`: the backend `cudaMallocAsync`.
    TorchAsync,
    /// `CUDA out of memory` and no numbers, or too few to tell the release.
    TorchShort,
    /// `Tried to allocate more than 1EB memory.`
    TorchOverflow,
    Mps,
    /// One buffer that is larger than Metal allows.
    MpsBuffer,
    /// The runtime's own error, without numbers.
    CudaError,
    /// PyTorch 2.1 fails to count what a part of a GPU (MIG) has, while it writes its message.
    MigAssert,
    Cublas,
    Cudnn,
    Nccl,
    /// The kernel's record of what it has killed.
    OomKiller,
    /// The same at the limit of a container or of a job.
    Cgroup,
    /// Kubernetes and Docker.
    Container,
    /// Kubernetes, for the sake of the node.
    Evicted,
    Colab,
    Slurm,
    Ray,
    /// A process that got SIGKILL from somebody.
    Killed,
    TorchCpu,
    Numpy,
    /// `MemoryError`, or what the operating system says.
    Python,
    /// Windows has no room in its page file.
    PageFile,
    /// Memory of the machine that the GPU can reach.
    Pinned,
    BadAlloc,
    SharedMemory,
    VllmStartup,
    VllmCache,
    VllmLength,
    Sglang,
    Tgi,
    Jax,
    TensorFlow,
    Triton,
    Ggml,
    Bitsandbytes,
    Cupy,
    OnnxRuntime,
    Paddle,
    /// RAPIDS.
    Rmm,
    TensorRt,
}

impl MessageKind {
    /// The name in JSON. PyTorch's allocator: the release from which on its messages look like this.
    pub fn name(self) -> &'static str {
        match self {
            MessageKind::Torch0 => "torch-0",
            MessageKind::Torch10 => "torch-1.0",
            MessageKind::Torch14 => "torch-1.4",
            MessageKind::Torch110 => "torch-1.10",
            MessageKind::Torch21 => "torch-2.1",
            MessageKind::TorchAsync => "torch-async",
            MessageKind::TorchShort => "torch-short",
            MessageKind::TorchOverflow => "torch-overflow",
            MessageKind::Mps => "torch-mps",
            MessageKind::MpsBuffer => "torch-mps-buffer",
            MessageKind::CudaError => "cuda-error",
            MessageKind::MigAssert => "torch-mig",
            MessageKind::Cublas => "cublas",
            MessageKind::Cudnn => "cudnn",
            MessageKind::Nccl => "nccl",
            MessageKind::OomKiller => "linux-oom-killer",
            MessageKind::Cgroup => "linux-cgroup-oom",
            MessageKind::Container => "container-oom",
            MessageKind::Evicted => "kubernetes-evicted",
            MessageKind::Colab => "colab-ram",
            MessageKind::Slurm => "slurm-oom",
            MessageKind::Ray => "ray-oom",
            MessageKind::Killed => "killed",
            MessageKind::TorchCpu => "torch-cpu",
            MessageKind::Numpy => "numpy",
            MessageKind::Python => "python",
            MessageKind::PageFile => "windows-page-file",
            MessageKind::Pinned => "pinned-memory",
            MessageKind::BadAlloc => "bad-alloc",
            MessageKind::SharedMemory => "shared-memory",
            MessageKind::VllmStartup => "vllm-startup",
            MessageKind::VllmCache => "vllm-kv-cache",
            MessageKind::VllmLength => "vllm-max-model-len",
            MessageKind::Sglang => "sglang",
            MessageKind::Tgi => "tgi",
            MessageKind::Jax => "jax",
            MessageKind::TensorFlow => "tensorflow",
            MessageKind::Triton => "triton-shared-memory",
            MessageKind::Ggml => "ggml",
            MessageKind::Bitsandbytes => "bitsandbytes",
            MessageKind::Cupy => "cupy",
            MessageKind::OnnxRuntime => "onnxruntime",
            MessageKind::Paddle => "paddle",
            MessageKind::Rmm => "rmm",
            MessageKind::TensorRt => "tensorrt",
        }
    }

    /// Whether Linux wrote it while it killed a process.
    pub(super) fn is_kernels(self) -> bool {
        matches!(self, MessageKind::OomKiller | MessageKind::Cgroup)
    }

    /// Whether PyTorch's caching allocator wrote it, with what it knows of the device.
    pub(super) fn is_allocators(self) -> bool {
        use MessageKind::{Torch10, Torch14, Torch21, Torch110, TorchAsync, TorchShort};
        matches!(self, Torch10 | Torch14 | Torch110 | Torch21 | TorchAsync | TorchShort)
    }
}
