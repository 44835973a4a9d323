"""What the emulated GPU offers besides PyTorch's own allocator: the driver's memory pools, managed memory, memory shared between
processes, NVML, streams and events."""

import json
import re

import pytest

from conftest import FORKING_PYTHON, Predict

MIB = 1 << 20

POOLED = """
    import torch
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"

    def counters():
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()

    small = torch.zeros(5 << 20, device="cuda")
    large = torch.zeros(40 << 20, device="cuda")
    print(counters())
    del large
    torch.cuda.synchronize()  # the pool keeps what PyTorch tells it to keep: everything
    print(counters())
    torch.cuda.empty_cache()
    print(counters())
    for step in range(5):
        layer = torch.nn.Linear(1024, 1024).cuda()
        layer(torch.randn(64, 1024, device="cuda")).sum().backward()
"""


def test_the_drivers_memory_pools_are_counted_and_recorded(predict: Predict) -> None:
    predict.write(POOLED)
    options = ("--gpu", "h200", "--once", "--json", "--steps", "all", "--python", FORKING_PYTHON.emulated)
    done = predict.run("predict", *options, "train.py", env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    counted = [
        tuple(int(number) // MIB for number in re.findall(r"\d+", line)) for line in re.findall(r"^\(.*\)$", done.stderr, re.M)
    ]
    # Chunks of 32 MiB, and one of the size of the large block.
    assert counted == [(180, 192, 180), (20, 192, 180), (20, 32, 180)]
    assert (answer["peak_allocated"], answer["peak_reserved"]) == (180 * MIB, 192 * MIB)
    assert answer["confidence"] == "estimate" and any("cudaMallocAsync" in reason for reason in answer["reasons"])


POOL_CALLS = """
    import ctypes, torch
    library = ctypes.CDLL(None)
    size = ctypes.c_size_t

    def attribute(pool, which):
        value = ctypes.c_uint64()
        assert library.cudaMemPoolGetAttribute(pool, which, ctypes.byref(value)) == 0
        return value.value

    def allocate(name, *more):
        at = ctypes.c_void_p()
        assert getattr(library, name)(ctypes.byref(at), size(1000), *more, None) == 0
        return at

    torch.zeros(1, device="cuda")
    RESERVED, USED, USED_HIGH = 5, 7, 8
    default, own = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.cudaDeviceGetDefaultMemPool(ctypes.byref(default), 0) == 0
    free, total = torch.cuda.mem_get_info()
    block = allocate("cudaMallocAsync")
    assert (attribute(default, RESERVED), attribute(default, USED)) == (32 << 20, 1024)
    assert torch.cuda.mem_get_info()[0] == free - (32 << 20)
    assert library.cudaFreeAsync(block, None) == 0
    assert attribute(default, USED) == 0 and attribute(default, RESERVED) == 32 << 20
    torch.cuda.synchronize()  # above the release threshold, which is 0 unless set
    assert attribute(default, RESERVED) == 0 and torch.cuda.mem_get_info()[0] == free

    properties = (ctypes.c_int32 * 22)(1, 0, 1, 0)
    assert library.cudaMemPoolCreate(ctypes.byref(own), properties) == 0
    block = allocate("cudaMallocFromPoolAsync", own)
    assert (attribute(own, USED), attribute(default, USED)) == (1024, 0)
    assert library.cudaFree(block) == 0 and attribute(own, USED) == 0 and attribute(own, USED_HIGH) == 1024
    assert library.cudaMemPoolTrimTo(own, size(0)) == 0 and attribute(own, RESERVED) == 0
    assert library.cudaMemPoolDestroy(own) == 0 and library.cudaMemPoolDestroy(default) == 1
    # Sharing a pool with another process is refused, not forgotten.
    assert library.cudaMemPoolExportToShareableHandle(None, default, 1, 0) == 801
"""

MANAGED_CALLS = """
    import ctypes, torch
    library = ctypes.CDLL(None)
    torch.zeros(1, device="cuda")
    size = 64 << 20
    free = torch.cuda.mem_get_info()[0]
    at = ctypes.c_void_p()
    assert library.cudaMallocManaged(ctypes.byref(at), ctypes.c_size_t(size), 1) == 0
    ctypes.memset(at, 7, 1 << 20)  # the host can write it
    host = torch.frombuffer((ctypes.c_uint8 * size).from_address(at.value), dtype=torch.uint8)
    assert host[: 1 << 20].cuda()[5].item() in (0, 7)
    torch.cuda.empty_cache()

    def taken():
        return free - torch.cuda.mem_get_info()[0]

    def prefetch(kind, device):
        place = device if torch.version.cuda < "13" else kind | device << 32
        return library.cudaMemPrefetchAsync(at, ctypes.c_size_t(size), ctypes.c_uint64(place), 0, None)

    before = taken()
    assert library.cudaMemAdvise(at, ctypes.c_size_t(size), 3, ctypes.c_uint64(1)) == 0
    assert prefetch(1, 0) == 0 and taken() == before + size
    assert prefetch(1, 0) == 0 and taken() == before + size  # twice is once
    assert prefetch(2, -1 & 0xffffffff) == 0 and taken() == before
    attributes = (ctypes.c_int32 * 6)()
    assert library.cudaPointerGetAttributes(attributes, at) == 0 and attributes[0] == 3
    is_managed = ctypes.c_int32()
    assert library.cuPointerGetAttribute(ctypes.byref(is_managed), 8, at) == 0 and is_managed.value == 1
    assert prefetch(1, 0) == 0 and library.cudaFree(at) == 0 and taken() == before
"""

STREAMS = """
    import torch
    lowest, highest = torch.cuda.Stream.priority_range()
    assert [torch.cuda.Stream(priority=priority).priority for priority in (0, -1, -100)] == [0, -1, highest]
    assert torch.cuda.current_stream().priority == 0
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    ended.record()
    assert begun.elapsed_time(ended) >= 0
    with torch.cuda.device(1):
        other = torch.cuda.Event(enable_timing=True)
        other.record()
    try:
        begun.elapsed_time(other)
    except RuntimeError as error:
        assert "invalid resource handle" in str(error)
    else:
        raise AssertionError("events of two devices have no time between them")
    torch.zeros(1, device="cuda")
"""


GRAPHS = """
    import torch, warnings
    x = torch.randn(64, 64, device="cuda")
    x @ x

    def is_empty(body):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                body()
        return any("is empty" in str(of.message) for of in found)

    nothing = {"nothing": lambda: None, "memory": lambda: torch.empty(5, device="cuda")}
    work = {"kernel": lambda: x.sin(), "product": lambda: x @ x, "copy": lambda: x.copy_(x.t().contiguous()), "zeros": x.zero_}
    assert {name: is_empty(body) for name, body in {**nothing, **work}.items()} == {
        **dict.fromkeys(nothing, True), **dict.fromkeys(work, False)
    }
"""


@pytest.mark.parametrize(
    ("program", "gpus"),
    [(POOL_CALLS, "1"), (MANAGED_CALLS, "1"), (STREAMS, "2"), (GRAPHS, "1")],
    ids=["pools", "managed memory", "streams", "graphs"],
)
def test_calls_of_the_driver(run, program: str, gpus: str) -> None:
    recorded = run(program, "--gpus", gpus)
    assert recorded.done.returncode == 0, recorded.done.stderr


SHARED = """
    import json, torch, torch.multiprocessing

    def work(queue, answers):
        x = queue.get()
        answers.put([list(x.shape), x.device.type, torch.cuda.memory_allocated(), (x + 1).shape == x.shape])
        del x
        queue.get()

    # Nobody has used CUDA yet, so both processes can.
    context = torch.multiprocessing.get_context("fork")
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(queue, answers))
    process.start()
    x = torch.ones(3 << 20, device="cuda")
    queue.put(x)
    print("ANSWER", json.dumps(answers.get(timeout=30)), flush=True)
    queue.put(None)
    process.join()
"""


def test_a_tensor_sent_to_another_process_takes_none_of_its_memory(run) -> None:
    recorded = run(SHARED)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert recorded.said("ANSWER") == [[3 << 20], "cuda", 0, True]


BINDINGS = """
    import collections, inspect, json, re, torch, pynvml
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    outcomes = {}
    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        if not re.match(r"nvml(DeviceGet|DeviceIs|SystemGet|UnitGet)", name):
            continue
        wanted = [of for of in inspect.signature(function).parameters.values() if of.default is of.empty]
        try:
            outcomes[name] = str(function(*(device if "handle" in of.name.lower() or "device" in of.name else 0 for of in wanted)))
        except pynvml.NVMLError as error:
            outcomes[name] = type(error).__name__
        except TypeError:
            pass  # wants a structure
    names = "Brand Architecture CudaComputeCapability ComputeMode CurrPcieLinkGeneration GraphicsRunningProcesses"
    chosen = {name: outcomes[f"nvmlDeviceGet{name}"] for name in [*names.split(), "CurrentClocksThrottleReasons"]}
    print("COUNTS", json.dumps(collections.Counter(outcomes.values())))
    print("CHOSEN", json.dumps(chosen))
"""


def test_nvml_answers_every_query_of_its_python_bindings(run) -> None:
    recorded = run(BINDINGS)
    assert recorded.done.returncode == 0, recorded.done.stderr
    counts = recorded.said("COUNTS")
    assert not {"NVMLError_FunctionNotFound", "NVMLError_Unknown", "NVMLError_Uninitialized"} & set(counts)
    assert recorded.said("CHOSEN") == {
        "Brand": "14",
        "Architecture": "9",
        "CudaComputeCapability": "(9, 0)",
        "ComputeMode": "0",
        "CurrPcieLinkGeneration": "5",
        "GraphicsRunningProcesses": "[]",
        "CurrentClocksThrottleReasons": "1",
    }


USING_CUDA = """
    import ctypes, torch
    torch.cuda.init()
    at = ctypes.c_void_p()
    assert ctypes.CDLL(None).cudaMallocManaged(ctypes.byref(at), ctypes.c_size_t(1 << 20), 1) == 0
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (USING_CUDA, "PyTorch allocated no GPU memory"),
        (USING_CUDA + "    raise ValueError('mine')", "failed before PyTorch allocated GPU memory"),
        ("import torch; torch.zeros(3); raise ValueError('mine')", "failed before it used CUDA"),
    ],
)
def test_a_program_that_used_cuda_without_pytorchs_allocator_is_not_said_to_have_used_none(run, program: str, words: str) -> None:
    assert words in run(program).done.stderr
