//! Messages that are not the caching allocator's: of the runtime and its libraries, of the machine's memory, of programs that
//! manage GPU memory themselves.

use super::allocator_message::Form;
use super::kind::{Backend, MessageKind};
use super::log::pattern;
use super::numbers::{Numbers, OtherProcess, SIZE, known_size};
use regex::{Captures, Regex};
use snapshot::Bytes;
use std::sync::LazyLock;

/// One form: words without white space, and what they are the words of. Groups are named by what they are.
type Row = (MessageKind, Backend, &'static str);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (MessageKind::Mps, Backend::Mps, r"MPSbackendoutofmemory(?:\(MPSallocated:(?<allocated>SIZE)(?:,otherallocations:(?<other_allocations>SIZE)(?:,maxallowed:(?<limit>SIZE)(?:\)?\.?Triedtoallocate(?<requested>SIZE))?)?)?)?"),
    (MessageKind::MpsBuffer, Backend::Mps, r"totalbytesofNDArray>2(?:32)?"),
    (MessageKind::MpsBuffer, Backend::Mps, r"Invalidbuffersize:(?<requested>SIZE)"),

    (MessageKind::TorchAsync, Backend::Cuda, r"Allocationondevice(?<device>\d*)wouldexceedallowedmemory\.?(?:\(outofmemory\))?(?:Currentlyallocated:(?<allocated>SIZE))?(?:Requested:(?<requested>SIZE))?(?:Devicelimit:(?<total>SIZE))?(?:Free\(accordingtoCUDA\):(?<free>SIZE))?(?:PyTorchlimit\(setbyuser-suppliedmemoryfraction\):(?<limit>SIZE))?"),
    (MessageKind::TorchShort, Backend::Cuda, r"Allocationondevice\d*"),
    (MessageKind::Torch0, Backend::Cuda, r"THCudaCheckFAILfile=[^=]{1,300}?line=\d+error=2:outofmemory"),
    (MessageKind::Torch0, Backend::Cuda, r"cudaruntimeerr(?:or)?\(2\):outofmemory"),
    (MessageKind::CudaError, Backend::Cuda, r"CUDA(?:driver|runtime)?error:outofmemory(?:Searchfor.?cudaErrorMemoryAllocation)?"),
    (MessageKind::CudaError, Backend::Xpu, r"UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    (MessageKind::MigAssert, Backend::Cuda, r"NVML_SUCCESS==rINTERNALASSERTFAILEDat.{1,200}?CUDACachingAllocator\.cpp"),
    (MessageKind::CudaError, Backend::Hip, r"HIP(?:driver|runtime)?error:outofmemory"),
    (MessageKind::CudaError, Backend::Hip, r"hipErrorOutOfMemory"),
    (MessageKind::CudaError, Backend::Cuda, r"CUDA_ERROR_OUT_OF_MEMORY"),
    (MessageKind::CudaError, Backend::Cuda, r"cudaErrorMemoryAllocation"),
    (MessageKind::Cublas, Backend::Cuda, r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
    (MessageKind::Cublas, Backend::Hip, r"(?:HIP|ROC)BLAS_STATUS_ALLOC_FAILED"),
    (MessageKind::Cudnn, Backend::Cuda, r"CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
    (MessageKind::Nccl, Backend::Cuda, r"Cudafailure(?:\d+)?'outofmemory'"),
    (MessageKind::Nccl, Backend::Cuda, r"FailedtoCUDA(?:calloc|malloc)(?:async)?(?<requested>\d+bytes)"),
    (MessageKind::Nccl, Backend::Hip, r"HIPfailure(?:\d+)?'outofmemory'"),

    (MessageKind::Cgroup, Backend::Host, r"Memorycgroupoutofmemory:Kill(?:ed)?process(?<killed_pid>\d+)(?:\([^)]{1,40}\)+[\w,:-]{0,60}?total-vm:(?<virtual_kib>[\d,]+)kB,anon-rss:(?<resident_kib>[\d,]+)kB)?"),
    (MessageKind::Cgroup, Backend::Host, r"oom-kill:constraint=CONSTRAINT_MEMCG"),
    (MessageKind::Cgroup, Backend::Host, r"memory:usage(?<used_kib>\d+)kB,limit(?<limit_kib>\d+)kB,failcnt"),
    (MessageKind::OomKiller, Backend::Host, r"[Oo]utofmemory:Kill(?:ed)?process(?<killed_pid>\d+)\([^)]{1,40}\)+[\w,-]{0,60}?total-vm:(?<virtual_kib>[\d,]+)kB,anon-rss:(?<resident_kib>[\d,]+)kB"),
    (MessageKind::OomKiller, Backend::Host, r"[Oo]utofmemory:Kill(?:ed)?process(?<killed_pid>\d+)"),
    (MessageKind::OomKiller, Backend::Host, r"Killedprocess(?<killed_pid>\d+)\([^)]{1,40}\)+,?(?:UID\d+,)?total-vm:(?<virtual_kib>[\d,]+)kB,anon-rss:(?<resident_kib>[\d,]+)kB"),
    (MessageKind::OomKiller, Backend::Host, r"oom-kill:constraint="),
    (MessageKind::OomKiller, Backend::Host, r"invokedoom-killer"),
    (MessageKind::Slurm, Backend::Host, r"havebeenOOMKilled"),
    (MessageKind::Container, Backend::Host, r#"(?:[Rr]eason"?[:=]"?|[Ss]tatus"?[:=]"?|\d+/\d+|[Tt]erminated:?|was|\()OOMKilled"#),
    (MessageKind::Container, Backend::Host, r#"OOMKilled"?[:=][Tt]rue"#),
    (MessageKind::Evicted, Backend::Host, r"Thenodewaslowonresource:memory"),
    (MessageKind::Colab, Backend::Host, r"Yoursessioncrashedafterusingallavailable(?:system)?RAM"),
    (MessageKind::Slurm, Backend::Host, r"Detected\d+oom[-_]kill"),
    (MessageKind::Slurm, Backend::Host, r"task\d+(?:-\d+)?:OutOfMemory"),
    (MessageKind::Slurm, Backend::Host, r"Exceeded(?:job|step)memorylimit"),
    (MessageKind::Ray, Backend::Host, r"killedduetothenoderunninglowonmemory(?:\.Memoryonthenode\(.{0,300}?memoryused=(?<resident>SIZE)\)wasrunningwas(?<used>SIZE)/(?<total>SIZE))?"),
    (MessageKind::Ray, Backend::Host, r"RayOutOfMemoryError:Morethan\d+%ofthememoryonnode.{1,100}?isused\((?<used_gib>\d+(?:\.\d+)?)/(?<total_gib>\d+(?:\.\d+)?)GB\)"),
    (MessageKind::Ray, Backend::Host, r"[1-9]\d*Workers\(tasks/actors\)killedduetomemorypressure\(OOM\)"),
    (MessageKind::Killed, Backend::Host, r"Signals\.SIGKILL:9"),
    (MessageKind::Killed, Backend::Host, r"Signal9\(SIGKILL\)"),
    (MessageKind::Killed, Backend::Host, r"signal:?SIGKILL"),
    (MessageKind::Killed, Backend::Host, r"killedbysignal:?Killed"),

    (MessageKind::TorchCpu, Backend::Host, r"DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory)(?::youtriedtoallocate(?<requested>\d+bytes))?"),
    (MessageKind::TorchCpu, Backend::Host, r"Torch:notenoughmemory:youtriedtoallocate(?<requested>SIZE)"),
    (MessageKind::Numpy, Backend::Host, r"Unabletoallocate(?:(?<requested>SIZE)for)?anarraywithshape"),
    (MessageKind::Numpy, Backend::Host, r"Unabletoallocate(?:(?<requested>SIZE)for)?arraywithshape"),
    (MessageKind::Python, Backend::Host, r"\[Errno12\]Cannotallocatememory"),
    (MessageKind::PageFile, Backend::Host, r"\[WinError1455\](?:Thepagingfileistoosmallforthisoperationtocomplete)?"),
    (MessageKind::PageFile, Backend::Host, r"The?pagingfileistoosmallforthisoperationtocomplete\.?(?:\(oserror1455\))?"),
    (MessageKind::Rmm, Backend::Other, r"(?:std::bad_alloc:)?out_of_memory:(?:CUDAerror|RMM|Maximumpoolsizeexceeded)"),
    (MessageKind::BadAlloc, Backend::Host, r"std::bad_alloc"),
    (MessageKind::SharedMemory, Backend::Host, r"insufficientsharedmemory\(shm\)"),
    (MessageKind::SharedMemory, Backend::Host, r"outofsharedmemory"),
    (MessageKind::SharedMemory, Backend::Host, r"unabletoopensharedmemoryobject"),
    (MessageKind::SharedMemory, Backend::Host, r"unabletowritetofile</torch_"),
    (MessageKind::SharedMemory, Backend::Host, r"unabletommap(?<requested>\d+bytes)fromfile</torch_"),

    (MessageKind::SharedMemory, Backend::Host, r"Errorwhilecreatingsharedmemorysegment"),

    (MessageKind::VllmStartup, Backend::Cuda, r"Freememoryondevice(?:cuda:(?<device>\d+))?\((?<free_gib>\d+(?:\.\d+)?)/(?<total_gib>\d+(?:\.\d+)?)GiB\)onstartupislessthandesiredGPUmemoryutilization(?:\([\d.]+,(?<requested>SIZE)\))?"),
    (MessageKind::VllmCache, Backend::Cuda, r"Noavailablememoryforthecacheblocks"),
    (MessageKind::VllmLength, Backend::Cuda, r"[Mm]axseqlen\((?<max_model_len>\d+)\)islargerthanthemaximumnumberoftokensthatcanbestoredinKVcache\((?<kv_cache_tokens>\d+)\)"),
    (MessageKind::VllmLength, Backend::Cuda, r"maxseqlen\((?<max_model_len>\d+)\),?\(?(?<requested>SIZE)KVcacheisneeded,whichislargerthantheavailableKVcachememory\((?<free>SIZE)\)(?:\.Basedontheavailablememory,theestimatedmaximummodellengthis(?<kv_cache_tokens>\d+)\.)?"),

    (MessageKind::Sglang, Backend::Cuda, r"Notenoughmemory\.?Pleasetrytoincrease--mem-fraction-static"),

    (MessageKind::Jax, Backend::Other, r"RESOURCE_EXHAUSTED:Failedtoallocaterequestfor(?<requested>SIZE)"),
    (MessageKind::Jax, Backend::Other, r"(?:RESOURCE_EXHAUSTED|Resourceexhausted):Outofmemory(?:whiletryingtoallocate|allocating)(?:(?<requested>\d+bytes|SIZE))?"),
    (MessageKind::TensorFlow, Backend::Other, r"OOMwhenallocatingtensorwithshape"),
    (MessageKind::TensorFlow, Backend::Other, r"ranoutofmemorytryingtoallocate(?<requested>SIZE)(?<harmless>(?:withfreed_by_count=\d+)?\.Thecallerindicatesthatthisisnotafailure)?"),
    (MessageKind::TensorFlow, Backend::Other, r"failedtocreatecublashandle:CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
    (MessageKind::TensorFlow, Backend::Other, r"[Cc]ouldnotcreatecudnnhandle:CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)"),
    (MessageKind::Pinned, Backend::Host, r"failedtoalloc(?<requested>\d+bytes)onhost:CUDA_ERROR_OUT_OF_MEMORY"),
    (MessageKind::Pinned, Backend::Host, r"couldnotallocatepinnedhostmemoryofsize:(?<requested_bytes>\d+)"),
    (MessageKind::TensorRt, Backend::Other, r"ErrorCode\d+:(?:OutOfMemory|CudaRuntime\(outofmemory\))"),
    (MessageKind::TensorRt, Backend::Other, r"RequestedamountofGPUmemory\((?<requested>\d+bytes)\)couldnotbeallocated"),
    (MessageKind::Tgi, Backend::Cuda, r"Notenoughmemorytohandle(?<prefill_tokens>\d+)prefilltokens"),
    (MessageKind::TensorFlow, Backend::Other, r"failedtoallocate[\d.]+[KMG]?\((?<requested>\d+bytes)\)fromdevice:CUDA_ERROR_OUT_OF_MEMORY"),
    (MessageKind::Triton, Backend::Other, r"outofresource:sharedmemory(?:,Required:(?<shared_memory_required>\d+),Hardwarelimit(?:ation)?:(?<shared_memory_limit>\d+))?"),
    (MessageKind::Ggml, Backend::Other, r"allocating(?<requested>SIZE)ondevice(?<device>\d+):cudaMallocfailed:outofmemory"),
    (MessageKind::Ggml, Backend::Other, r"cudaMallocfailed:outofmemory"),
    (MessageKind::Ggml, Backend::Other, r"ggml_vulkan:Devicememoryallocationofsize(?<requested_bytes>\d+)failed"),
    (MessageKind::Cupy, Backend::Other, r"Outofmemoryallocating(?<requested_bytes>\d[\d,]*)bytes\(allocatedsofar:"),
    (MessageKind::OnnxRuntime, Backend::Other, r"Failedtoallocatememoryforrequestedbufferofsize(?<requested_bytes>\d+)?"),
    (MessageKind::Paddle, Backend::Other, r"OutofmemoryerroronGPU(?<device>\d+)\.Cannotallocate(?<requested>SIZE)(?:memoryonGPU\d+,(?<used>SIZE)memoryhasbeenallocatedandavailablememoryisonly(?<free>SIZE))?"),
    (MessageKind::Bitsandbytes, Backend::Other, r"Erroroutofmemoryatline\d+infile"),
];

/// The forms as one pattern that finds where any of them begins.
pub(super) fn beginnings() -> String {
    let plain = |words: &str| UNNAMED.replace_all(&words.replace("SIZE", SIZE), "(?:").into_owned();
    ROWS.iter().map(|(_, _, words)| format!("(?:{})", plain(words))).collect::<Vec<_>>().join("|")
}

static UNNAMED: LazyLock<Regex> = LazyLock::new(|| pattern(r"\(\?<\w+>"));

static FORMS: LazyLock<Vec<(MessageKind, Backend, Regex)>> = LazyLock::new(|| {
    let form = |&(kind, backend, words): &Row| {
        (kind, backend, pattern(&format!("^(?:{})", words.replace("SIZE", SIZE))))
    };
    ROWS.iter().map(form).collect()
});

/// Reads the message at the start of `text`; `None` if there is none.
pub(super) fn read(text: &str) -> Option<Form> {
    FORMS.iter().find_map(|(kind, backend, form)| {
        let found = form.captures(text)?;
        let device = found.name("device").and_then(|device| device.as_str().parse().ok());
        let numbers = numbers(form, &found);
        let is_harmless = found.name("harmless").is_some();
        Some(Form {
            kind: *kind,
            backend: *backend,
            device,
            numbers,
            is_harmless,
            end: found[0].len().max(1),
        })
    })
}

fn numbers(form: &Regex, found: &Captures<'_>) -> Numbers {
    let mut numbers = Numbers::default();
    for name in form.capture_names().flatten() {
        let Some(text) = found.name(name).map(|part| part.as_str()) else { continue };
        let bytes = || known_size(text);
        let plain = || text.replace(',', "").parse::<u64>().ok();
        match name {
            "requested" => numbers.requested = bytes(),
            "allocated" => numbers.allocated = bytes(),
            "other_allocations" => numbers.other_allocations = bytes(),
            "limit" => numbers.limit = bytes(),
            "free" => numbers.free = bytes(),
            "total" => numbers.total = bytes(),
            "resident" => numbers.resident = bytes(),
            "used" => numbers.used = bytes(),
            "used_gib" => numbers.used = known_size(&format!("{text}GiB")),
            "used_kib" => numbers.used = known_size(&format!("{text}KiB")),
            "limit_kib" => numbers.limit = known_size(&format!("{text}KiB")),
            "prefill_tokens" => numbers.more.extend(plain().map(|number| ("prefill_tokens", number))),
            "requested_bytes" => numbers.requested = plain().map(Bytes),
            "free_gib" => numbers.free = known_size(&format!("{text}GiB")),
            "total_gib" => numbers.total = known_size(&format!("{text}GiB")),
            "resident_kib" => numbers.resident = plain().map(|kib| Bytes(kib.saturating_mul(1024))),
            "killed_pid" => {
                numbers.others = plain().map(|pid| OtherProcess { pid, bytes: None }).into_iter().collect()
            }
            "max_model_len" => numbers.more.extend(plain().map(|number| ("max_model_len", number))),
            "kv_cache_tokens" => numbers.more.extend(plain().map(|number| ("kv_cache_tokens", number))),
            "shared_memory_required" => numbers.more.extend(plain().map(|n| ("shared_memory_required", n))),
            "shared_memory_limit" => numbers.more.extend(plain().map(|n| ("shared_memory_limit", n))),
            _ => {}
        }
    }
    numbers
}
