//! Real messages, as they were posted and as terminals, loggers and chats tear them: what is read, and that
//! nothing is invented.

use analysis::messages::{Message, Numbers, find_messages as messages};
use proptest::prelude::*;
use snapshot::Bytes;
use std::path::PathBuf;

/// Each file of `fixtures/messages`: its kind, backend, device, cause, and every number that it gives.
const TABLE: &str = "
torch-1.0-full | torch-1.0 | cuda | 0 | capacity | requested=1024.00 KiB, total=11.17 GiB, allocated=10.90 GiB, free=576.00 KiB, reserved_unallocated=30.96 MiB
torch-1.0-small-card | torch-1.0 | cuda | 0 | capacity | requested=25.00 MiB, total=3.94 GiB, allocated=3.14 GiB, free=21.56 MiB, reserved_unallocated=634.00 KiB
torch-1.0-fragmented | torch-1.0 | cuda | 0 | fragmentation | requested=1.72 GiB, total=10.76 GiB, allocated=4.01 GiB, free=356.00 MiB, reserved_unallocated=5.54 GiB
torch-1.0-free-was-enough | torch-1.0 | cuda | 0 | unknown | requested=12.50 MiB, total=10.92 GiB, allocated=8.57 MiB, free=9.28 GiB, reserved_unallocated=4.68 MiB
torch-1.0-larger-than-the-card | torch-1.0 | cuda | 0 | capacity | requested=16.00 GiB, total=11.93 GiB, allocated=4.00 GiB, free=7.33 GiB, reserved_unallocated=179.00 KiB
torch-1.4-fragmented | torch-1.4 | cuda | 0 | fragmentation | requested=2.87 GiB, total=14.76 GiB, allocated=8.77 GiB, free=19.75 MiB, reserved=13.71 GiB
torch-1.4-other-process | torch-1.4 | cuda | 0 | other_process | requested=36.00 MiB, total=10.76 GiB, allocated=996.23 MiB, free=8.81 MiB, reserved=1010.00 MiB
torch-1.4-cut-in-front | torch-1.4 | cuda | 0 | capacity | requested=20.00 MiB, total=1.96 GiB, allocated=1.24 GiB, free=2.88 MiB, reserved=1.25 GiB
torch-1.4-cut-behind | torch-1.4 | cuda | 0 | capacity | requested=92.00 MiB, total=1.96 GiB, allocated=1.46 GiB, free=16.38 MiB, reserved=1.51 GiB
torch-1.4-second-gpu | torch-1.4 | cuda | 1 | capacity | requested=130.00 MiB, total=7.80 GiB, allocated=5.91 GiB, free=33.56 MiB, reserved=6.09 GiB
torch-1.4-free-was-enough | torch-1.4 | cuda | 0 | unknown | requested=2.26 GiB, total=6.00 GiB, allocated=781.59 MiB, free=3.03 GiB, reserved=1.24 GiB
torch-1.4-other-process-k80 | torch-1.4 | cuda | 0 | other_process | requested=60.00 MiB, total=11.17 GiB, allocated=505.96 MiB, free=12.50 MiB, reserved=530.00 MiB
torch-1.4-notebook | torch-1.4 | cuda | 0 | other_process | requested=20.00 MiB, total=7.93 GiB, allocated=2.81 GiB, free=25.38 MiB, reserved=3.06 GiB
torch-1.10-full | torch-1.10 | cuda | 0 | capacity | requested=16.00 MiB, total=3.94 GiB, allocated=2.98 GiB, free=14.25 MiB, reserved=3.00 GiB
torch-1.10-fragmented | torch-1.10 | cuda | 0 | fragmentation | requested=192.00 MiB, total=4.00 GiB, allocated=3.08 GiB, free=0 bytes, reserved=3.47 GiB
torch-2.1-nearly-full | torch-2.1 | cuda | 0 | capacity | requested=32.00 MiB, total=4.00 GiB, free=41.56 MiB, this_process=3.44 GiB, allocated=2.58 GiB, reserved_unallocated=1.90 MiB
torch-2.1-container | torch-2.1 | cuda | 0 | capacity | requested=496.00 MiB, total=14.75 GiB, free=235.06 MiB, allocated=14.06 GiB, reserved_unallocated=330.42 MiB, process 20398=14.52 GiB
torch-2.1-no-process | torch-2.1 | cuda | 0 | fragmentation | requested=1.70 GiB, total=6.00 GiB, free=0 bytes, allocated=2.93 GiB, reserved_unallocated=2.30 GiB
torch-2.2-full | torch-2.1 | cuda | 0 | capacity | requested=22.00 MiB, total=23.65 GiB, free=11.06 MiB, this_process=23.60 GiB, allocated=22.90 GiB, reserved_unallocated=194.87 MiB
torch-2.2-larger-than-the-card | torch-2.1 | cuda | 0 | capacity | requested=112.89 GiB, total=79.14 GiB, free=58.59 GiB, this_process=9.25 GiB, allocated=8.27 GiB, reserved_unallocated=500.38 MiB, process 4078482=11.29 GiB
torch-2.2-too-large | torch-2.1 | cuda | 0 | capacity | requested=22.78 GiB, total=31.47 GiB, free=12.73 GiB, this_process=18.73 GiB, allocated=9.08 GiB, reserved_unallocated=9.35 GiB
torch-2.2-private-pools | torch-2.1 | cuda | 0 | capacity | requested=138.00 MiB, total=79.15 GiB, free=2.19 MiB, this_process=79.12 GiB, allocated=71.57 GiB, private_pools=39.77 MiB, reserved_unallocated=611.60 MiB
torch-2.2-container-pools | torch-2.1 | cuda | 0 | capacity | requested=3.82 GiB, total=79.14 GiB, free=3.02 GiB, allocated=75.34 GiB, private_pools=58.00 MiB, reserved_unallocated=75.30 MiB, process 3620138=76.10 GiB
torch-2.9-worker | torch-2.1 | cuda | 0 | capacity | requested=50.00 MiB, total=23.56 GiB, free=21.75 MiB, this_process=23.50 GiB, allocated=22.88 GiB, private_pools=24.00 MiB, reserved_unallocated=275.38 MiB
torch-async | torch-async | cuda | 0 | capacity | requested=640.00 MiB, total=14.75 GiB, free=27.06 MiB, allocated=13.74 GiB
torch-async-windows | torch-async | cuda | 0 | capacity | requested=512.00 KiB, total=15.99 GiB, free=0 bytes, allocated=15.16 GiB
torch-1.10-more-than-the-card | torch-1.10 | cuda | 0 | capacity | requested=1.78 GiB, total=4.00 GiB, allocated=7.42 GiB, free=0 bytes, reserved=9.23 GiB
torch-1.10-windows | torch-1.10 | cuda | 0 | capacity | requested=1.39 GiB, total=6.00 GiB, allocated=4.04 GiB, free=478.00 MiB, reserved=4.15 GiB
torch-2.2-fraction | torch-2.1 | cuda | 0 | unknown | requested=98.00 MiB, total=4.00 GiB, free=2.86 GiB, allocated=254.49 MiB, reserved_unallocated=97.51 MiB
xpu-block-limit | torch-1.4 | xpu | 0 | limit | requested=6.85 GiB, total=15.56 GiB, allocated=0 bytes, reserved=0 bytes, limit=4 GiB
torch-cpu-old | torch-cpu | host |  | host_memory | requested=72 GiB
hip-free-was-enough | torch-2.1 | hip | 0 | unknown | requested=432.00 MiB, total=15.92 GiB, free=7.12 GiB, allocated=8.08 GiB, reserved_unallocated=321.96 MiB
hip-limit | torch-2.1 | hip | 0 | limit | requested=2.00 MiB, total=255.98 GiB, free=244.65 GiB, limit=1.05 GiB, allocated=1017.01 MiB, private_pools=17.00 MiB, reserved_unallocated=54.99 MiB
hip-fragmented | torch-2.1 | hip | 0 | fragmentation | requested=6.64 GiB, total=19.92 GiB, free=6.22 GiB, allocated=5.34 GiB, reserved_unallocated=7.10 GiB
hip-contradiction | torch-2.1 | hip | 0 | capacity | requested=16.00 GiB, total=15.49 GiB, free=84.98 GiB, allocated=1.67 GiB, reserved_unallocated=8.08 GiB
hip-full | torch-2.1 | hip | 0 | capacity | requested=1.88 GiB, total=23.98 GiB, free=1.70 GiB, allocated=21.65 GiB, reserved_unallocated=279.78 MiB
mps-gib | torch-mps | mps |  | limit | allocated=9.57 GiB, other_allocations=17.35 GiB, limit=27.20 GiB, requested=292.50 MiB
mps-gb | torch-mps | mps |  | limit | allocated=8.89 GiB, other_allocations=172.98 MiB, limit=9.07 GiB, requested=6.25 MiB
xpu-ipex | torch-1.4 | xpu | 0 | unknown | requested=1.71 GiB, total=15.56 GiB, allocated=176.00 MiB, reserved=176.00 MiB
xpu-free-was-enough | torch-2.1 | xpu | 0 | unknown | requested=4.66 GiB, total=5.65 GiB, free=5.65 GiB, allocated=195.50 KiB, reserved_unallocated=1.81 MiB
npu-other-process | torch-1.10 | npu | 0 | other_process | requested=22.00 MiB, total=60.97 GiB, allocated=10.24 GiB, free=19.52 MiB, reserved=10.65 GiB
npu-fragmented | torch-1.10 | npu | 3 | fragmentation | requested=5.03 GiB, total=60.96 GiB, allocated=49.47 GiB, free=1.32 GiB, reserved=57.55 GiB
torch-0 | torch-0 | cuda |  | unknown | 
cuda-error | cuda-error | cuda |  | unknown | 
cublas | cublas | cuda |  | not_pytorch | 
cudnn | cudnn | cuda |  | not_pytorch | 
nccl | nccl | cuda |  | not_pytorch | requested=6291456 bytes
nccl-failure | nccl | cuda |  | not_pytorch | 
oom-killer | linux-oom-killer | host |  | host_memory | resident=12918388 KiB, shared=53352 KiB, process 698405=?
slurm | slurm-oom | host |  | host_memory | 
slurm-new | slurm-oom | host |  | host_memory | 
killed | killed | host |  | host_memory | 
killed-torchrun | killed | host |  | host_memory | 
killed-137 | killed | host |  | host_memory | 
killed-accelerate | killed | host |  | host_memory | 
torch-cpu | torch-cpu | host |  | host_memory | requested=132426121216 bytes
torch-cpu-windows | torch-cpu | host |  | host_memory | requested=1981808640 bytes
torch-cpu-with-advice | torch-cpu | host |  | host_memory | requested=264896512 bytes
numpy | numpy | host |  | host_memory | requested=58.0 GiB
numpy-point | numpy | host |  | host_memory | requested=117 GiB
shared-memory | shared-memory | host |  | host_memory | 
shared-memory-full | shared-memory | host |  | host_memory | 
shared-memory-open | open-files | host |  | host_memory | 
vllm-startup | vllm-startup | cuda |  | other_process | free=31.44 GiB, total=47.38 GiB, requested=45.01 GiB
vllm-startup-small | vllm-startup | cuda |  | limit | free=3.22 GiB, total=4.0 GiB, requested=3.6 GiB
vllm-kv-cache | vllm-kv-cache | cuda |  | limit | 
vllm-max-model-len | vllm-max-model-len | cuda |  | limit | max_model_len=4096, kv_cache_tokens=3664
vllm-max-model-len-new | vllm-max-model-len | cuda |  | limit | max_model_len=221000, requested=10.12 GiB, free=5.59 GiB, kv_cache_tokens=122080
jax | jax | other |  | not_pytorch | requested=7406166528 bytes
jax-allocating | jax | other |  | not_pytorch | requested=20029400304 bytes
tensorflow | tensorflow | other |  | not_pytorch | 
triton | triton-shared-memory | other |  | not_pytorch | shared_memory_required=131072, shared_memory_limit=101376
ggml | ggml | other | 1 | not_pytorch | requested=9866.00 MiB
";

/// Other programs' messages in short: what is expected, and the text.
const LINES: &[(&str, &str)] = &[
    (
        "tpu | other |  | not_pytorch | used=21.90 GiB, total=7.48 GiB",
        r#"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.90G of 7.48G hbm. Exceeded hbm capacity by 14.42G."#,
    ),
    (
        "tpu-vmem | other |  | not_pytorch | used=17.25 MiB, total=16.00 MiB",
        r#"RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 17.25M of 16.00M vmem. Exceeded vmem capacity by 1.25M."#,
    ),
    (
        "tpu | other |  | not_pytorch | requested=5.39 GiB, free=2.85 GiB",
        r#"ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 5.39G. That was not possible. There are 2.85G free.; (0x0x0_HBM0)"#,
    ),
    (
        "tpu | other |  | not_pytorch | requested=6.47 GiB, free=5.32 GiB",
        r#"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 6.47G at the bottom of memory. That was not possible. There are 5.32G free, 0B reserved, and 5.32G reservable."#,
    ),
    (
        "tpu | other |  | not_pytorch | total=95.74 GiB",
        r#"RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available bytes: 95.74G"#,
    ),
    (
        "onnxruntime-limit | other |  | limit | free=189612800 bytes, requested=221179904 bytes",
        r#"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. Name:'c' Status Message: bfc_arena.cc:358 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Available memory of 189612800 is smaller than requested bytes of 221179904"#,
    ),
    (
        "onnxruntime | other | 0 | not_pytorch",
        r#"Microsoft.ML.OnnxRuntimeGenAI.OnnxRuntimeGenAIException: CUDA failure 2: out of memory ; GPU=0 ; hostname=HOST ; expr=cudaMalloc((void**)&p, size);"#,
    ),
    (
        "onnxruntime | other |  | capacity | requested=4585490524328388608 bytes",
        r#"bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn) Failed to allocate memory for requested buffer of size 4585490524328388608"#,
    ),
    (
        "torch-1.4 | cuda | 0 | capacity | requested=17179869181.42 GiB, total=15.92 GiB, allocated=8.41 GiB, free=6.21 GiB, reserved=8.47 GiB",
        r#"RuntimeError: CUDA out of memory. Tried to allocate 17179869181.42 GiB (GPU 0; 15.92 GiB total capacity; 8.41 GiB already allocated; 6.21 GiB free; 8.47 GiB reserved in total by PyTorch)"#,
    ),
    (
        "torch-mps | mps |  | unknown | allocated=0 bytes, other_allocations=0 bytes, limit=7.93 GiB, requested=256 bytes",
        r#"RuntimeError: MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: 7.93 GB). Tried to allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)."#,
    ),
    (
        "memory-map | host |  | host_memory | requested=1024 bytes",
        r#"RuntimeError: unable to mmap 1024 bytes from file </torch_24388_3149150117_1021>: Cannot allocate memory (12)"#,
    ),
    (
        "nccl-shared-memory | host |  | host_memory | requested=9637888 bytes",
        r#"node1:101:137 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-NzwJ7O (size 9637888)"#,
    ),
    (
        "container-killed | host |  | host_memory",
        r#"    Last State:     Terminated
      Reason:       Error
      Exit Code:    137"#,
    ),
    (
        "systemd-oomd | host |  | host_memory",
        r#"systemd-oomd[812]: Killed /user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1234.scope due to memory pressure for /user.slice/user-1000.slice/user@1000.service being 62.39% > 50.00% for > 20s with reclaim activity"#,
    ),
    (
        "yarn | host |  | host_memory | used=12.5 GiB, limit=12 GiB",
        r#"ERROR YarnScheduler: Lost executor 3 on node3: Container killed by YARN for exceeding memory limits. 12.5 GB of 12 GB physical memory used. Consider boosting spark.yarn.executor.memoryOverhead."#,
    ),
    (
        "java | host |  | host_memory",
        r#"Exception in thread "main" java.lang.OutOfMemoryError: Java heap space
	at java.util.Arrays.copyOf(Arrays.java:3332)"#,
    ),
    (
        "tensorrt | other |  | not_pytorch",
        r#"[E] [TRT] safeRuntime.cpp (25) - Cuda Error in nvinfer1::internal::DefaultAllocator::allocate: 2 (out of memory)"#,
    ),
    (
        "tensorrt | other |  | not_pytorch | requested=150994944 bytes",
        r#"[TensorRT] ERROR: Requested amount of memory (150994944 bytes) could not be allocated. There may not be enough free memory for allocation to succeed."#,
    ),
    (
        "tensorrt-llm | other |  | not_pytorch",
        r#"[TensorRT-LLM][ERROR] [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory (tensorrt_llm/runtime/tllmBuffers.h:112)"#,
    ),
    (
        "cuda-error | xpu |  | unknown",
        r#"RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)"#,
    ),
    (
        "python | host |  | host_memory",
        r#"RuntimeError: Native API failed. Native API returns: -6 (PI_ERROR_OUT_OF_HOST_MEMORY)"#,
    ),
    ("ggml | other |  | not_pytorch", r#"CUDA error 2 at ggml-cuda.cu:359: out of memory"#),
    (
        "ollama-system-memory | host |  | host_memory | requested=10.6 GiB, free=7.4 GiB",
        r#"Error: model requires more system memory (10.6 GiB) than is available (7.4 GiB)"#,
    ),
    (
        "ggml | other |  | not_pytorch",
        r#"Error: llama runner process has terminated: CUDA error: out of memory"#,
    ),
    (
        "tensorflow-pool | other |  | not_pytorch | requested=2147483648 bytes",
        r#"E tensorflow/stream_executor/cuda/cuda_driver.cc:806] failed to allocate 2.00G (2147483648 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory"#,
    ),
    (
        "faiss | other | 1 | not_pytorch | requested=536870912 bytes",
        r#"RuntimeError: Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const faiss::gpu::AllocRequest&) at faiss/gpu/StandardGpuResources.cpp:443: Error: 'err == cudaSuccess' failed: Failed to cudaMalloc 536870912 bytes on device 1 (error 2 out of memory"#,
    ),
    (
        "faiss | other | 0 | not_pytorch | requested=1610612736 bytes",
        r#"Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 0 space Device stream 0x7f7b46ba9a60 size 1610612736 bytes (cudaMalloc error out of memory [2])"#,
    ),
    (
        "torch-directml | other |  | not_pytorch | requested=234881024 bytes",
        r#"RuntimeError: Could not allocate tensor with 234881024 bytes. There is not enough GPU video memory available!"#,
    ),
    (
        "mlx | other |  | not_pytorch",
        r#"libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"#,
    ),
    (
        "mlx-buffer | other |  | limit | requested=48736917632 bytes, limit=30150672384 bytes",
        r#"RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum allowed buffer size of 30150672384 bytes."#,
    ),
    (
        "triton-shared-memory | other |  | not_pytorch | tensor_memory_required=768, tensor_memory_limit=512",
        r#"triton.runtime.errors.OutOfResources: out of resource: tensor memory, Required: 768, Hardware limit: 512. Reducing block sizes or `num_stages` may help."#,
    ),
    (
        "cuda-error | cuda |  | unknown",
        r#"RuntimeError: cumm/include/tensorview/tensor.h:223
cuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback."#,
    ),
];

struct Row {
    name: &'static str,
    text: String,
    expected: String,
}

fn rows() -> Vec<Row> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/messages");
    let row = |line: &'static str| {
        let (name, expected) = line.split_once(" | ").expect("a name and what is expected");
        let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).expect("the fixture is there");
        Row { name, text, expected: expected.trim_end_matches(['|', ' ']).to_owned() }
    };
    let short = |&(expected, text): &(&'static str, &str)| Row {
        name: expected,
        text: text.to_owned(),
        expected: expected.to_owned(),
    };
    TABLE.trim().lines().map(row).chain(LINES.iter().map(short)).collect()
}

/// A message as a row of the table.
fn row(message: &Message) -> String {
    let device = message.device.map(|device| device.to_string()).unwrap_or_default();
    let numbers: Vec<String> =
        written(&message.numbers).into_iter().map(|(name, bytes)| format!("{name}={bytes}")).collect();
    let row = [
        message.kind.name(),
        message.backend.name(),
        &device,
        message.explain().cause.name(),
        &numbers.join(", "),
    ];
    row.join(" | ").trim_end_matches(['|', ' ']).to_owned()
}

/// The same with sizes in bytes, as the table's are once they are computed.
fn in_bytes(expected: &str) -> String {
    let (front, numbers) =
        expected.rsplit_once(" | ").filter(|(_, numbers)| numbers.contains('=')).unwrap_or((expected, ""));
    let bytes = |size: &str| -> String {
        let Some((number, unit)) = size.split_once(' ') else { return size.to_owned() };
        let scale = match unit {
            "GiB" => 1u64 << 30,
            "MiB" => 1 << 20,
            "KiB" => 1 << 10,
            _ => return number.to_owned(),
        };
        ((number.parse::<f64>().expect("a number") * scale as f64).round() as u64).to_string()
    };
    let mut fields: Vec<String> = numbers
        .split(", ")
        .filter_map(|field| field.split_once('='))
        .map(|(name, size)| format!("{name}={}", bytes(size)))
        .collect();
    fields.sort();
    format!("{front} | {}", fields.join(", ")).trim_end_matches(['|', ' ']).to_owned()
}

/// Every number that is there, by name, sorted.
fn written(numbers: &Numbers) -> Vec<(String, String)> {
    let sizes: [(&str, Option<Bytes>); 13] = [
        ("requested", numbers.requested),
        ("total", numbers.total),
        ("free", numbers.free),
        ("allocated", numbers.allocated),
        ("reserved", numbers.reserved),
        ("reserved_unallocated", numbers.reserved_unallocated),
        ("private_pools", numbers.private_pools),
        ("limit", numbers.limit),
        ("this_process", numbers.this_process),
        ("other_allocations", numbers.other_allocations),
        ("resident", numbers.resident),
        ("shared", numbers.shared),
        ("used", numbers.used),
    ];
    let mut all: Vec<(String, String)> = sizes
        .iter()
        .filter_map(|(name, size)| Some(((*name).to_owned(), size.as_ref()?.0.to_string())))
        .collect();
    all.extend(numbers.others.iter().map(|other| {
        (format!("process {}", other.pid), other.bytes.map_or("?".to_owned(), |bytes| bytes.0.to_string()))
    }));
    all.extend(numbers.more.iter().map(|(name, number)| ((*name).to_owned(), number.to_string())));
    all.sort();
    all
}

#[test]
fn every_message_is_read_to_the_last_number() {
    let mut wrong = Vec::new();
    for Row { name, text, expected } in rows() {
        let found: Vec<String> = messages(text.as_bytes()).iter().map(row).collect();
        if found != [in_bytes(&expected)] {
            wrong.push(format!("{name}\n  expected {}\n  found    {found:#?}", in_bytes(&expected)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fixture_is_in_the_table_with_its_source() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/messages");
    let sources = std::fs::read_to_string(folder.join("README.md")).expect("the sources are there");
    let names: Vec<&str> = rows().iter().map(|row| row.name).collect();
    for file in std::fs::read_dir(&folder).expect("the folder is there") {
        let file = file.expect("an entry").file_name().into_string().expect("a name");
        let Some(name) = file.strip_suffix(".txt") else { continue };
        assert!(names.contains(&name), "{name} is not in the table");
        assert!(sources.contains(&format!("| `{file}` | https://")), "{name} has no source");
    }
    assert!(names.len() >= 30);
}

/// What terminals, loggers and chats do to a text.
fn torn(text: &str) -> Vec<(String, Vec<u8>)> {
    let letters: Vec<char> = text.trim_end().chars().collect();
    let wrapped =
        |width: usize| letters.chunks(width).map(|line| line.iter().collect::<String>()).collect::<Vec<_>>();
    let words = || {
        let mut lines = vec![String::new()];
        for word in text.split_whitespace() {
            let line = lines.last_mut().expect("a line");
            if line.len() + word.len() > 60 && !line.is_empty() {
                lines.push(word.to_owned());
            } else {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
        }
        lines
    };
    let prefixed = |prefix: &str| text.lines().map(|line| format!("{prefix}{line}\n")).collect::<String>();
    let mut all: Vec<(String, String)> = [7, 20, 37, 79, 80, 120]
        .iter()
        .map(|&width| (format!("wrapped at {width}"), wrapped(width).join("\n")))
        .collect();
    all.extend([
        ("quoted and wrapped".to_owned(), words().iter().map(|line| format!("> {line}\n")).collect()),
        ("wrapped by words, CRLF".to_owned(), words().join("\r\n")),
        ("ranks".to_owned(), prefixed("[rank3]: ")),
        ("mpirun".to_owned(), prefixed("[1,3]<stderr>:")),
        ("times".to_owned(), prefixed("2025-11-12T11:25:13.4961658Z ERROR ")),
        ("ray".to_owned(), prefixed("(RayWorkerWrapper pid=123, ip=10.0.0.1) ")),
        ("colours".to_owned(), prefixed("\x1b[1;31m\x1b[0m")),
        ("a progress bar in front".to_owned(), format!(" 12%|█▏  | 3/25 [00:01<00:09]\r{text}")),
        ("JSON".to_owned(), format!("{{\"message\": {}}}", serde_json::Value::from(text))),
        ("a markdown fence".to_owned(), format!("```text\n{text}```\n")),
    ]);
    let mut all: Vec<(String, Vec<u8>)> =
        all.into_iter().map(|(how, text)| (how, text.into_bytes())).collect();
    all.push((
        "bytes that are no text".to_owned(),
        [b"\xff\xfe\x80 log\n", text.as_bytes(), b"\n\xc3"].concat(),
    ));
    all
}

#[test]
fn a_torn_message_is_the_same_message() {
    let mut wrong = Vec::new();
    for Row { name, text, expected } in rows() {
        for (how, torn) in torn(&text) {
            // What says that a process was killed is a line of its own, and only that.
            let is_line = expected.starts_with("killed") && (how.contains("wrapped") || how == "JSON");
            let found: Vec<String> = messages(&torn).iter().map(row).collect();
            if found != [in_bytes(&expected)] && !is_line {
                wrong.push(format!(
                    "{name}, {how}\n  expected {}\n  found    {found:#?}",
                    in_bytes(&expected)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether each number of the answers stands in the text: its digits there, with the unit that makes it what
/// it is.
fn assert_not_invented(text: &str) {
    let squeezed: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut sizes = vec![];
    let digits = |letter: char| letter.is_ascii_digit() || letter == '.';
    for number in squeezed.split(|letter| !digits(letter)) {
        let number = number.trim_matches('.');
        for scale in [1u64, 1 << 10, 1 << 20, 1 << 30] {
            let exact = number.parse::<u64>().ok().map(|number| number.saturating_mul(scale));
            let rounded = || number.parse::<f64>().ok().map(|number| (number * scale as f64).round() as u64);
            sizes.extend(exact.or_else(rounded));
        }
    }
    for message in messages(text.as_bytes()) {
        for (name, number) in written(&message.numbers) {
            let is_there = number == "?" || sizes.contains(&number.parse().expect("a number"));
            assert!(is_there, "{name}={number} is not in {text:?}");
        }
        for other in &message.numbers.others {
            assert!(sizes.contains(&other.pid), "process {} is not in {text:?}", other.pid);
        }
        let verdict = message.explain();
        assert!(
            !verdict.summary.is_empty() && !verdict.fix.is_empty() && !verdict.steps.is_empty(),
            "{text:?}"
        );
    }
}

#[test]
fn a_message_that_is_cut_off_anywhere_has_no_invented_number() {
    for Row { text, .. } in rows() {
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_not_invented(&text[..at]);
            assert_not_invented(&text[at..]);
        }
    }
}

#[test]
fn a_driver_that_cannot_pin_memory_is_out_of_host_memory() {
    let log = |code: &str| {
        format!(
            "  File \"train.py\", line 20, in load\n    {code}\nRuntimeError: CUDA error: out of memory\n"
        )
    };
    let boxed =
        "│ ❱ 217 │   │   return tensor.pin_memory()   │\n╰────────╯\nRuntimeError: CUDA error: out of memory";
    for log in [log("x = x.pin_memory()"), log("x = torch.empty(9, pin_memory=True)"), boxed.to_owned()] {
        let found = messages(log.as_bytes());
        assert_eq!(found[0].kind.name(), "pinned-memory", "{log}");
    }
    for code in ["x = x.cuda()", "loader = DataLoader(data, pin_memory=True)", "def pin_memory(self):"] {
        assert_eq!(messages(log(code).as_bytes())[0].kind.name(), "cuda-error", "{code}");
    }
}

#[test]
fn a_number_ends_where_the_next_line_has_its_own() {
    let arena =
        "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size";
    for after in
        ["\n\n2021-07-08:01:27:55,801 ERROR [web.py:1793]", "\n 50%|█████     | 5/10 [00:01<00:01]", " 12"]
    {
        let found = messages(format!("{arena} 25690112{after}").as_bytes());
        assert_eq!(found[0].numbers.requested, Some(Bytes(25_690_112)), "{after}");
    }
    // However long that line is.
    let long = format!("{arena} 25690112\n7{}", "x".repeat(20_000));
    assert_eq!(messages(long.as_bytes())[0].numbers.requested, Some(Bytes(25_690_112)));
    let wrapped = messages(format!("{arena} 25690\n112\n").as_bytes());
    assert_eq!(wrapped[0].numbers.requested, Some(Bytes(25_690_112)));
}

#[test]
fn escapes_of_escapes_are_read_once() {
    let nested =
        format!("&{}gt; CUDA out of memory. Tried to allocate 2.00&nbsp;GiB", "amp;".repeat(300_000));
    let found = messages(nested.as_bytes());
    assert_eq!(found[0].numbers.requested, Some(Bytes(2 << 30)));
}

#[test]
fn half_a_number_is_none() {
    for text in [
        "CUDA out of memory. Tried to allocate 1 -  1.05 GiB allowed",
        "CUDA out of memory. Tried to allocate 1.05",
    ] {
        assert!(
            messages(text.as_bytes()).iter().all(|message| message.numbers == Numbers::default()),
            "{text}"
        );
    }
}

#[test]
fn ranks_are_distinguished_and_repeated_messages_are_counted() {
    let text = rows().into_iter().find(|row| row.name == "torch-2.2-full").expect("it is there").text;
    let mut log = String::new();
    for rank in [0, 1, 1, 0] {
        log += &format!(
            "[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File \"/home/me/train.py\", line {}, in step\n",
            20 + rank
        );
        log += &format!("[rank{rank}]:     loss = model(x)\n[rank{rank}]: {text}");
    }
    log += &text;
    let found = messages(log.as_bytes());
    let seen: Vec<_> =
        found.iter().map(|message| (message.rank, message.count, message.lines.clone())).collect();
    assert_eq!(seen, [(Some(0), 3, vec![4, 16, 17]), (Some(1), 2, vec![8, 12])]);
    assert_eq!(found[1].site.as_ref().map(|site| site.short()), Some("train.py:21".to_owned()));
}

#[test]
fn a_message_that_is_repeated_in_part_is_one() {
    let text =
        rows().into_iter().find(|row| row.name == "torch-2.2-private-pools").expect("it is there").text;
    let whole = messages(text.as_bytes());
    for length in [80, 150, 300, 400] {
        for log in
            [format!("{text}...\nERROR {}...\n", &text[..length]), format!("{} ...\n{text}", &text[..length])]
        {
            let found = messages(log.as_bytes());
            assert_eq!((found.len(), &found[0].numbers), (1, &whole[0].numbers), "{log}");
        }
    }
}

#[test]
fn a_long_log_is_read_as_a_short_one() {
    let text =
        rows().into_iter().find(|row| row.name == "torch-2.2-private-pools").expect("it is there").text;
    let filler = "INFO step 12 loss 0.123 mem 10.2 GiB reserved, 3.1 GiB free, Process 12 has 3.00 GiB memory in use\n";
    for lines in [0, 1, 10_000, 13_107, 40_000] {
        let log = format!("{}{text}{}", filler.repeat(lines), filler.repeat(3));
        let found = messages(log.as_bytes());
        assert_eq!(found.iter().map(|message| message.line()).collect::<Vec<_>>(), [lines as u64 + 1]);
        assert_eq!(found[0].numbers, messages(text.as_bytes())[0].numbers);
    }
}

#[test]
fn a_log_without_a_message_has_none() {
    for text in [
        "",
        "\n\n",
        "step 1 ok\n",
        "catch (CUDA out of memory, retry)",
        "if 'out of memory' in str(e):",
        "killed time at the airport",
    ] {
        assert_eq!(messages(text.as_bytes()), [], "{text:?}");
    }
}

/// Short messages, and their kinds.
#[test]
fn short_messages_are_distinguished() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("torch.OutOfMemoryError: Allocation on device \n\nGot an OOM", "torch-short unknown"),
        (
            "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /envs/include/rmm/mr/device/cuda_memory_resource.hpp",
            "rmm not_pytorch",
        ),
        (
            "[7093.5] memory: usage 67108864kB, limit 67108864kB, failcnt 1234\n[7093.5] Memory cgroup out of memory: Killed process 63635 (python) total-vm:120832000kB, anon-rss:66060288kB, file-rss:8924kB",
            "linux-cgroup-oom host_memory",
        ),
        (
            "E tensorflow/stream_executor/cuda/cuda_driver.cc:893] failed to alloc 374391296 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "pinned-memory host_memory",
        ),
        (
            "E tensorflow/stream_executor/cuda/cuda_blas.cc:226] failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED",
            "tensorflow not_pytorch",
        ),
        (
            "(GPU 0; 15.75 GiB total capacity; 79.11 MiB already allocated; 3.62 MiB free; 86.00 MiB reserved in total by PyTorch)",
            "torch-1.4 other_process",
        ),
        (
            "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/work/c10/cuda/CUDACachingAllocator.cpp\":1154, please report a bug to PyTorch.",
            "torch-mig unknown",
        ),
        (
            "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
            "torch-0 unknown",
        ),
        (
            "OSError: The paging file is too small for this operation to complete. (os error 1455)",
            "windows-page-file host_memory",
        ),
        (
            "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
            "cuda-error unknown",
        ),
        (
            "ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node\nnode-1 is used (11.8 / 12.3 GB). The top 5",
            "ray-oom host_memory",
        ),
        (
            "2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
            "ray-oom host_memory",
        ),
        (
            "mxnet.base.MXNetError: [11:18:15] src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory",
            "mxnet not_pytorch",
        ),
        ("RuntimeError: cudaMalloc failed: out of memory", "cuda-error unknown"),
        ("InternalError (see above for traceback): Dst tensor is not initialized.", "tensorflow not_pytorch"),
        ("Your session crashed after using all available RAM.", "colab-ram host_memory"),
        ("The node was low on resource: memory.", "kubernetes-evicted host_memory"),
        (
            "ERROR: [TRT]: 2: [virtualMemoryBuffer.cpp::resizePhysical::160] Error Code 2: OutOfMemory (no further information)",
            "tensorrt not_pytorch",
        ),
        (
            "RuntimeError: GET was unable to find an engine to execute this computation",
            "cudnn-algorithm unknown",
        ),
        (
            "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
            "cuda-library not_pytorch",
        ),
        ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "cuda-library not_pytorch"),
        (
            "RuntimeError: unable to open shared memory object </torch_3422_1> in read-write mode: Too many open files (24)",
            "open-files host_memory",
        ),
        ("RuntimeError: received 0 items of ancdata", "open-files host_memory"),
        (
            "RuntimeError: unable to mmap 9976578928 bytes from file </models/x.safetensors>: Cannot allocate memory (12)",
            "python host_memory",
        ),
        ("OSError: Cannot allocate memory (os error 12)", "python host_memory"),
        ("MemoryError: could not allocate 134217728 bytes", "python host_memory"),
        (
            "systemd[1]: train.service: A process of this unit has been killed by the OOM killer.",
            "linux-oom-killer host_memory",
        ),
        ("systemd[1]: train.service: Failed with result 'oom-kill'.", "linux-oom-killer host_memory"),
        ("State: OUT_OF_MEMORY (exit code 0)", "slurm-oom host_memory"),
        ("123.0   python  OUT_OF_ME+  0:125", "slurm-oom host_memory"),
        ("Error: llama runner process has terminated: cudaMalloc failed: out of memory", "ggml not_pytorch"),
        (
            "RuntimeError: unable to open shared memory object </torch_3422_1> in read-write mode",
            "open-files host_memory",
        ),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-1x'", "shared-memory host_memory"),
        (
            "torch._inductor.exc.InductorError: RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_red_fused_add_1 Required: 272640 Hardware limit:232448 Reducing block sizes or `num_stages` may help.",
            "triton-shared-memory not_pytorch",
        ),
        (
            "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit\nthe quantized model.",
            "quantized-offload capacity",
        ),
        ("Server error: Not enough memory to handle 256 prefill tokens. You need to decrease", "tgi limit"),
        (
            "MPSNDArray.mm:850: failed assertion [MPSNDArray initWithDevice:descriptor:] Error: total bytes of NDArray > 2**32'",
            "torch-mps-buffer limit",
        ),
        (
            "CUDA out of memory. Tried to allocate 2,50 GiB (GPU 0; 8,00 GiB total capacity; 6,64 GiB already allocated; 21,00 MiB free; 6,80 GiB reserved in total by PyTorch)",
            "torch-1.4 capacity",
        ),
    ] {
        let found: Vec<String> = messages(text.as_bytes())
            .iter()
            .map(|message| format!("{} {}", message.kind.name(), message.explain().cause.name()))
            .collect();
        if found != [expected] {
            wrong.push(format!("{text}\n  expected {expected}\n  found    {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_was_no_failure_is_no_message() {
    for text in [
        "W tensorflow/core/common_runtime/bfc_allocator.cc:239] Allocator (GPU_0_bfc) ran out of memory trying to allocate 120.70MiB with freed_by_count=0. The caller indicates that this is not a failure, but",
        // torch.compile tries configurations, and leaves these out.
        "E1216 10:00:00 100 torch/_inductor/select_algorithm.py:1756] [0/0] Exception out of resource: shared memory, Required: 131072, Hardware limit:101376. Reducing block sizes or `num_stages` may help. for benchmark choice TritonTemplateCaller(/tmp/x.py, num_stages=5)\nepoch 0 loss 0.5",
        "Runtime error during autotuning: \nout of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.. \nIgnoring this choice.",
        "kube_pod_container_status_last_terminated_reason{container=\"x\",reason=\"OOMKilled\"} 0",
        "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode: No such file or directory (2)",
        // Who killed it is named.
        "slurmstepd: error: *** STEP 123.0 ON gpu01 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***\nsrun: error: gpu01: task 1: Exited with exit code 137",
    ] {
        assert_eq!(messages(text.as_bytes()), [], "{text}");
    }
}

#[test]
fn shared_memory_of_a_killed_process_is_named() {
    let text = "[1.2] Out of memory: Killed process 4242 (python) total-vm:98765432kB, anon-rss:1048576kB, file-rss:1024kB, shmem-rss:62914560kB, UID:1000";
    let found = messages(text.as_bytes());
    assert_eq!(found[0].numbers.shared, Some(Bytes(60 << 30)));
    assert!(found[0].explain().summary.ends_with("which had 1.00 GiB of it and 60.00 GiB of shared memory"));
}

#[test]
fn advice_names_what_the_program_has() {
    let fix = |text: &str| messages(text.as_bytes())[0].explain().fix;
    assert!(fix("RuntimeError: HIP error: out of memory").contains("HIP_LAUNCH_BLOCKING=1"));
    assert!(
        !fix("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)")
            .contains("LAUNCH_BLOCKING")
    );
    let text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.10 GiB is free. Process 111 has 39.00 GiB memory in use. Process 222 has 39.05 GiB memory in use. Of the allocated memory 37.50 GiB is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated.";
    let next = messages(text.as_bytes())[0].explain().steps;
    assert_eq!(next[0].command, "ps -fp 222", "the other one is this process");
}

#[test]
fn a_card_with_memory_left_is_not_called_full() {
    for (text, part) in [
        (
            "CUDA out of memory. Tried to allocate 4.22 GiB. GPU 0 has a total capacity of 15.69 GiB of which 3.71 GiB is free. Including non-PyTorch memory, this process has 11.14 GiB memory in use. Of the allocated memory 10.14 GiB is allocated by PyTorch, and 771.43 MiB is reserved by PyTorch but unallocated.",
            "3.71 GiB was free",
        ),
        (
            "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 95.07 GiB of which 298.69 MiB is free. Including non-PyTorch memory, this process has 94.77 GiB memory in use. Of the allocated memory 79.00 GiB is allocated by PyTorch, and 206.06 MiB is reserved by PyTorch but unallocated.",
            "outside PyTorch, more than a context takes",
        ),
    ] {
        let summary = messages(text.as_bytes())[0].explain().summary;
        assert!(summary.contains(part) && !summary.contains("full"), "{summary}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = messages(&bytes);
    }

    #[test]
    fn parts_of_messages_in_any_order_invent_nothing(parts in prop::collection::vec((0usize..64, 0usize..400, 0usize..400), 1..6)) {
        let rows = rows();
        let mut text = String::new();
        for (row, start, length) in parts {
            let letters = rows[row % rows.len()].text.chars();
            // White space between two parts keeps their numbers apart for this test; the reader does not see
            // it.
            text.extend(letters.skip(start).take(length));
            text.push_str(" - ");
        }
        assert_not_invented(&text);
    }
}

#[test]
fn more_messages_than_anybody_reads_are_counted() {
    let mut reader = analysis::messages::MessageReader::default();
    for step in 0..5_000 {
        let line = format!(
            "skipped: CUDA out of memory. Tried to allocate {step}.00 MiB (GPU 0; 10.92 GiB total capacity; 10.12 GiB already allocated; 1.44 MiB free; 10.33 GiB reserved in total by PyTorch)\n"
        );
        reader.read(line.as_bytes());
    }
    let (messages, more) = reader.finish();
    assert_eq!((messages.len(), more), (2_000, 3_000));
}

/// The longest line that is read as a whole.
const LONG_LINE: usize = 1 << 20;

/// Reads a log, and measures how long that takes.
fn timed(log: &str) -> (Vec<Message>, std::time::Duration) {
    let begun = std::time::Instant::now();
    let found = messages(log.as_bytes());
    (found, begun.elapsed())
}

#[test]
fn one_long_line_takes_no_longer_than_many_short_ones() {
    for (unit, is_message) in [
        ("a", false),
        ("7", false),
        ("1,234 ", false),
        (r#"[{"a": "#, false),
        (r#"\"[("#, false),
        ("\u{1b}[0", false),
        ("Tried to allocate 5 ", false),
        ("NVML_SUCCESS == r INTERNAL ASSERT FAILED at ", false),
        ("Killed process 1 (python) total-vm:1", false),
        ("--- ", false),
        ("│ ", false),
        // Words that go on at once are no error that is printed.
        ("CUDA out of memory", false),
        ("CUDA out of memory ", false),
        ("CUDA error: out of memory. ", true),
        (r#"{"level": "error", "message": "CUDA out of memory"}, "#, true),
        (
            r#"Traceback (most recent call last):\n  File \"/w/a.py\", line 3, in f\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"#,
            true,
        ),
        (
            r#"File \"/usr/lib/python3/dist-packages/torch/a.py\", line 3, in f\nRuntimeError: CUDA out of memory.\n"#,
            true,
        ),
    ] {
        let count = LONG_LINE / unit.len();
        let (found, one_line) = timed(&unit.repeat(count));
        assert_eq!(!found.is_empty(), is_message, "{unit}");
        // Both take about the same. What is read again for each message takes fifty times longer; seconds
        // more are a busy machine.
        let (_, many_lines) = timed(&format!("{unit}\n").repeat(count));
        assert!(
            one_line < many_lines * 20 + std::time::Duration::from_secs(5),
            "`{unit}`: {one_line:?} in one line, {many_lines:?} in many"
        );
    }
}
