"""The emulated GPU refuses what a GPU refuses. What is expected here was seen on an H200 with driver 580, CUDA 13.0 and torch 2.11."""

import pytest

PRELUDE = """
    import ctypes, json, os, sys, threading
    import torch

    library = ctypes.CDLL(None)
    room = ctypes.create_string_buffer(4096)
    known = {"room": ctypes.addressof(room), "more": ctypes.addressof(room) + 2048}

    def call(text):
        name, *arguments = text.split()
        arguments = [known[word] if word in known else int(word) for word in arguments]
        return getattr(library, name)(*map(ctypes.c_void_p, arguments))

    def create(name, function, *arguments):
        to = ctypes.c_void_p()
        assert getattr(library, function)(ctypes.byref(to), *arguments) == 0
        known[name] = to.value

    def in_child(question):
        "What a forked process answers."
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                answer = question()
            except Exception as error:
                answer = f"{type(error).__name__}: {error}".splitlines()[0]
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            answer = json.loads(file.read())
        os.wait()
        return answer

    def in_thread(question):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(question()))
        thread.start()
        thread.join()
        return answers[0]

    def say(answers):
        print("ANSWERS", json.dumps(answers))
"""


@pytest.fixture
def answers(run):
    """What a program says with `say`."""

    def answers(program: str) -> dict:
        recorded = run(PRELUDE + program)
        assert recorded.done.returncode == 0, recorded.done.stderr
        return recorded.said("ANSWERS")

    return answers


REFUSED_AFTER_FORK = [
    "cudaGetDevice room",
    "cudaSetDevice 0",
    "cudaDeviceGetAttribute room 16 0",
    "cudaDeviceSynchronize",
    "cudaMemGetInfo room more",
    "cudaMalloc room 512",
    "cudaFree 0",
    "cudaFree memory",
    "cudaHostAlloc room 512 0",
    "cudaFreeHost pinned",
    "cudaPointerGetAttributes room memory",
    "cudaMemcpy room more 8 0",
    "cudaMemcpy room memory 8 2",
    "cudaMemsetAsync memory 0 8 stream",
    "cudaStreamCreate room",
    "cudaStreamQuery stream",
    "cudaStreamQuery 0",
    "cudaStreamSynchronize stream",
    "cudaStreamWaitEvent stream event 0",
    "cudaStreamIsCapturing stream room",
    "cudaStreamDestroy stream",
    "cudaEventCreate room",
    "cudaEventRecord event stream",
    "cudaEventDestroy event",
    "cudaLaunchKernel 0 1 1 0 0 0",
    "cuInit 0",
    "cuDeviceGetCount room",
    "cuDeviceGetName room 64 0",
    "cuCtxGetCurrent room",
    "cuCtxSetCurrent 0",
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxGetState 0 room more",
    "cuDevicePrimaryCtxRetain room 0",
    "cuMemAddressReserve room 2097152 0 0 0",
    "cuModuleLoadData room more",
    "cuLaunchKernel 0 1 1 1 1 1 1 0 0 0 0",
    "cuStreamSynchronize 0",
]
ANSWERED_AFTER_FORK = [
    "cudaGetDeviceCount room",
    "cudaGetDeviceProperties room 0",
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaDriverGetVersion room",
    "cudaEventQuery event",
    "cudaEventSynchronize event",
    "cudaProfilerStop",
    "cuDriverGetVersion room",
    "cuGetErrorString 3 room",
    "cuStreamSynchronize stream",
    "nvmlInit_v2",
    "nvmlDeviceGetCount_v2 room",
]
INITIALIZATION_ERROR = 3
INVALID_CONTEXT = 201


def test_a_process_forked_after_cuda_began_gets_initialization_errors(answers):
    calls = REFUSED_AFTER_FORK + ANSWERED_AFTER_FORK
    found = answers(f"""
    torch.zeros(1, device="cuda")
    create("stream", "cudaStreamCreate")
    create("event", "cudaEventCreate")
    create("memory", "cudaMalloc", ctypes.c_size_t(512))
    create("pinned", "cudaMallocHost", ctypes.c_size_t(512))
    say({{text: in_child(lambda: call(text)) for text in {calls}}})
    """)
    expected = dict.fromkeys(REFUSED_AFTER_FORK, INITIALIZATION_ERROR) | dict.fromkeys(ANSWERED_AFTER_FORK, 0)
    assert found == expected


@pytest.mark.nightly
def test_libraries_give_no_handle_in_a_process_forked_after_cuda_began(answers):
    found = answers("""
    torch.zeros(1, device="cuda")
    calls = ["cublasCreate_v2 room", "cudnnCreate room", "cusolverDnCreate room"]
    say({text: in_child(lambda: call(text)) for text in calls})
    """)
    assert found == {"cublasCreate_v2 room": 1, "cudnnCreate room": 1001, "cusolverDnCreate room": 1}


def test_pytorch_fails_in_a_process_forked_after_cuda_began_as_on_a_gpu(answers):
    error = "AcceleratorError: CUDA error: initialization error"
    bad_fork = (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. "
        "To use CUDA with multiprocessing, you must use the 'spawn' start method"
    )
    expected = {
        "torch.cuda._is_in_bad_fork()": True,
        "torch.cuda.is_initialized()": False,
        "torch.cuda.is_available()": True,
        "torch.cuda.device_count()": 1,
        "torch.cuda.memory_allocated()": 0,
        "torch._C._cuda_memoryStats(0)['num_ooms']": 0,
        "len(torch.cuda.memory._snapshot()['segments'])": 1,
        "torch._C._cuda_setMemoryMetadata('')": error,
        "torch._C._cuda_getMemoryMetadata()": error,
        "torch._C._cuda_getDevice()": bad_fork,
        "torch.zeros(1, device='cuda').item()": bad_fork,
        "tensor.cpu().tolist()": error,
        "(tensor + 1).tolist()": error,
        "tensor[1:].shape": error,
        "torch.zeros(1).pin_memory().tolist()": error,
        "event.query()": True,
        "(torch.ones(2) + 1).tolist()": [2.0, 2.0],
    }
    found = answers(f"""
    tensor = torch.zeros(4, device="cuda")
    event = torch.cuda.Event()
    event.record()
    say({{text: in_child(lambda: eval(text)) for text in {list(expected)}}})
    """)
    assert found == expected


def test_a_process_forked_before_cuda_began_uses_the_gpu(answers):
    question = "lambda: (torch.ones(3, device='cuda') + 1).tolist()"
    found = answers(f"""
    # PyTorch counts devices through NVML, which leaves the driver alone.
    count = torch.cuda.device_count()
    say([count, in_child({question}), torch.cuda.is_initialized(), in_child(lambda: call("cudaGetDevice room"))])
    """)
    assert found == [1, [2.0, 2.0, 2.0], False, 0]


@pytest.mark.parametrize("first", ["cudaGetLastError", "cudaGetDeviceCount room", "cuInit 0"])
def test_the_first_call_of_the_runtime_or_the_driver_decides_about_later_forks(answers, first):
    found = answers(f"""
    before = in_child(lambda: call("cudaGetDevice room"))
    call("{first}")
    say([before, in_child(lambda: call("cudaGetDevice room"))])
    """)
    assert found == [0, INITIALIZATION_ERROR]


def test_the_driver_refuses_calls_before_it_is_initialized(answers):
    expected = {
        "cuDeviceGetCount room": INITIALIZATION_ERROR,
        "cuCtxGetCurrent room": INITIALIZATION_ERROR,
        "cuMemAddressReserve room 2097152 0 0 0": INITIALIZATION_ERROR,
        "cuDriverGetVersion room": 0,
        "cuInit 0": 0,
    }
    found = answers(f"""
    say({{text: in_child(lambda: call(text)) for text in {list(expected)}}})
    """)
    assert found == expected


def test_the_driver_needs_a_current_context_which_the_runtime_makes(answers):
    found = answers("""
    torch.zeros(1, device="cuda")

    def context():
        assert call("cuCtxGetCurrent room") == 0
        return int.from_bytes(room[:8], "little")

    def with_the_driver():
        return [context(), call("cuCtxGetDevice room"), call("cuModuleLoadData room more"), call("cuMemGetInfo_v2 room more")]

    def after(text):
        return [call(text), context() == primary, call("cuCtxGetDevice room")]

    def push_and_pop():
        known["primary"] = primary
        return [call("cuCtxPushCurrent_v2 primary"), context() == primary, call("cuCtxPopCurrent_v2 room"), context()]

    primary = context()
    say({
        "primary": primary != 0,
        "driver": in_thread(with_the_driver),
        "cudaGetDevice": in_thread(lambda: after("cudaGetDevice room")),
        "cudaSetDevice": in_thread(lambda: after("cudaSetDevice 0")),
        "cudaStreamQuery": in_thread(lambda: after("cudaStreamQuery 0")),
        "push and pop": in_thread(push_and_pop),
    })
    """)
    assert found == {
        "primary": True,
        "driver": [0, INVALID_CONTEXT, INVALID_CONTEXT, INVALID_CONTEXT],
        "cudaGetDevice": [0, False, INVALID_CONTEXT],
        "cudaSetDevice": [0, True, 0],
        "cudaStreamQuery": [0, True, 0],
        "push and pop": [0, True, 0, 0],
    }


LOADER = """
    import sys, torch, torch.nn as nn, torch.nn.functional as F
    from torch.utils.data import DataLoader, Dataset

    class Normalize(nn.Module):
        def forward(self, image):
            return (image - 0.13) / 0.31

    class Digits(Dataset):
        def __init__(self):
            self.transform = nn.Sequential(Normalize(), nn.Flatten())

        def __len__(self):
            return 64

        def __getitem__(self, index):
            return self.transform(torch.full((1, 8, 8), float(index))), index % 10

    model = nn.Linear(64, 10).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in DataLoader(Digits(), batch_size=8, num_workers=2):
        F.cross_entropy(model(images.flatten(1).to("cuda")), labels.to("cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained")
"""


@pytest.mark.nightly
def test_workers_of_a_data_loader_run_modules_and_leave_no_recording(run):
    recorded = run(LOADER)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert "trained" in recorded.done.stdout
    assert {path.name.partition(".")[0] for path in recorded.folder.glob("rank*")} == {"rank0"}
