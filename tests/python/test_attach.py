"""`oomph attach`: processes that were started without oomph, on the emulated GPU and on the CPU, and what is left in them.

    ATTACH_PYTHON=python3.14 pytest tests/python/test_attach.py

attaches to programs that another interpreter runs; it needs torch and numpy."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

from conftest import EMULATOR, FORKING_PYTHON, OOMPH, Recorded
from forking import EMULATED

GPU = (
    "name=NVIDIA H200;devices=1;memory=150109880320;others=0;context=552599552;cublas=71303168;cudnn=102760448;major=9;minor=0;"
    "multiprocessors=132;threads_per_multiprocessor=2048;blocks_per_multiprocessor=32;shared_per_multiprocessor=233472;"
    "shared_per_block_optin=232448;l2=62914560;clock_khz=1980000;memory_clock_khz=3201000;bus_bits=6144"
)
"""As `oomph run --emulate h200` describes it to the emulator."""

OTHER_PYTHON = os.environ.get("ATTACH_PYTHON")

BEGIN = """
    import collections, functools, gc, json, os, pathlib, selectors, signal, socket, subprocess, sys, threading, time, weakref
    import torch

    def state():
        import ctypes, linecache, multiprocessing.util, torch.optim.optimizer as optimizers
        gc.collect()
        actions = [line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
        return {
            "modules": sorted(sys.modules), "meta_path": len(sys.meta_path), "path": list(sys.path),
            "threads": len(os.listdir("/proc/self/task")), "frames": len(sys._current_frames()),
            "descriptors": sorted(os.listdir("/proc/self/fd")), "signals": actions, "environ": dict(os.environ),
            "collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)], "switch": sys.getswitchinterval(),
            "forks": len(multiprocessing.util._afterfork_registry), "finalizers": len(multiprocessing.util._finalizer_registry),
            "call": id(torch.nn.Module.__call__), "caches": sorted(linecache.cache),
            "optimizer hooks": [len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks)],
            "record": torch.cuda.memory._record_memory_history.__module__, "empty": type(torch._C._cuda_emptyCache).__name__,
            "resize": "resize_" in vars(torch.UntypedStorage), "modes": torch._C._len_torch_dispatch_stack(),
            "queued": len(torch.cuda._queued_calls),
            "history": torch.cuda.is_initialized() and torch._C._cuda_isHistoryEnabled(),
            "functions": sorted({f.__module__ for f in gc.get_objects() if type(f).__name__ == "function"
                                 and str(f.__module__).startswith("oomph")}),
            "mapped": sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "/" in line}),
        }

    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.01)

    def say(word, value):
        print(word, json.dumps(value), flush=True)

    threading.Thread(target=int).start()  # with the first thread, the C library sets up a signal of its own
    say("pid", os.getpid())
"""

TRAIN = (
    BEGIN
    + """
    DEVICE = sys.argv[1]
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    kept, times, allocated, batches = [], [], [], []
    gc.disable()

    def step():
        batch = torch.ones(32, 64, device=DEVICE)
        batches.append(weakref.ref(batch))
        time.sleep(0.01)
        net(batch).sum().backward()
        kept.append(torch.ones(100_000, device=DEVICE))  # retained
        optimizer.step()
        if DEVICE == "cuda":
            allocated.append(torch.cuda.memory_allocated())
        optimizer.zero_grad()
        times.append(time.time())

    for _ in range(3):
        step()
    before = state()
    say("ready", 1)
    while not os.path.exists("stop") and len(times) < int(sys.argv[2]):
        step()
    say("batches", sum(batch() is not None for batch in batches))
    say("before", before)
    say("after", state())
    say("times", times)
    say("allocated", allocated)
"""
)
RETAINED_LINE = next(number for number, line in enumerate(TRAIN.splitlines(), 1) if line.endswith("# retained"))


class Program:
    """A program that runs, without oomph."""

    def __init__(self, folder: pathlib.Path, text: str, *arguments: str, gpu: bool) -> None:
        self.folder = folder
        (folder / "program.py").write_text(textwrap.dedent(text))
        environment = {**os.environ, **EMULATED, "OOMPH_EMULATOR": GPU} if gpu else dict(os.environ)
        if OTHER_PYTHON and gpu:
            for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
                (folder / name).symlink_to(EMULATOR)
            environment |= {"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": str(EMULATOR)}
        python = OTHER_PYTHON or (FORKING_PYTHON.emulated if gpu else FORKING_PYTHON.cpu)
        self.process = subprocess.Popen(
            [python, "program.py", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: dict[str, object] = {}
        self.pid = self.until("pid")

    def until(self, word: str):
        """What it says under this word."""
        while word not in self.said:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            name, _, value = line.partition(" ")
            self.said[name] = json.loads(value)
        return self.said[word]

    def start_attaching(self, *options: str, output: str = "recording") -> subprocess.Popen:
        command = [OOMPH, "attach", str(self.pid), "-o", output, "--force", *options]
        environment = {**os.environ, "NO_COLOR": "1"}
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def start_recording(self, *options: str) -> subprocess.Popen:
        """Attaches, and returns when the recording has begun."""
        attaching = self.start_attaching(*options)
        while "recording process" not in (line := attaching.stderr.readline()):
            assert line
        return attaching

    def attach(self, *options: str, output: str = "recording", fails: bool = False) -> Recorded:
        attaching = self.start_attaching(*options, output=output)
        out, said = attaching.communicate(timeout=300)
        assert (attaching.returncode != 0) == fails, out + said
        return Recorded(subprocess.CompletedProcess(attaching.args, attaching.returncode, out, said), self.folder / output)

    def stop(self) -> dict:
        """Has it end, and returns what it has said."""
        time.sleep(1)  # the recorder's thread has a few more instructions to run when `oomph` has ended
        (self.folder / "stop").touch()
        rest, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        assert errors == ""
        for line in rest.splitlines():
            name, _, value = line.partition(" ")
            self.said[name] = json.loads(value)
        return self.said


@pytest.fixture
def start(tmp_path):
    programs = []

    def start(text: str, *arguments: str, gpu: bool = False) -> Program:
        programs.append(Program(tmp_path, text, *arguments, gpu=gpu))
        return programs[-1]

    yield start
    for program in programs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, signal.SIGKILL)
        program.process.kill()
        program.process.communicate()


MAY_STAY = {"modules": {"resource"}}
"""A module of the standard library that the recorder imports."""
if OTHER_PYTHON:
    # Modules of other Pythons' standard libraries; the last one's name goes on with that of the platform.
    MAY_STAY["modules"] |= {"secrets", "hmac", "_hmac", "ctypes._layout", "_sysconfigdata"}


def assert_nothing_is_left(before: dict, after: dict) -> None:
    for name in before:
        if isinstance(before[name], list) and name in MAY_STAY:
            new = set(after[name]) - set(before[name])
            assert {module.split("__")[0] if module.startswith("_sys") else module for module in new} <= MAY_STAY[name], name
        elif name == "mapped":
            assert not [path for path in set(after[name]) - set(before[name]) if "oomph" in path]
        else:
            assert after[name] == before[name], name


def allocated_lines(recorded: Recorded, per_step: int) -> Counter:
    """Sizes and lines of the program of the allocations in the last steps."""
    found = Counter()
    for event in recorded.allocations()[-per_step:]:
        own = [frame["line"] for frame in event["frames"] if frame["filename"].endswith("program.py")]
        found[event["size"], own[0] if own else None] += 1
    return found


@pytest.mark.nightly
def test_bytes_and_lines_are_those_of_a_recorder_started_with_the_program(start, run):
    recorded = run(TRAIN, "--detail", "full", name="program.py", arguments=("cuda", "30"))
    program = start(TRAIN, "cuda", "100000", gpu=True)
    program.until("ready")
    attached = program.attach("--for", "60s", "--steps", "12", output="attached")
    said = program.stop()
    steps = attached.steps()
    assert len(steps) >= 12
    # The counters of each step are those that the program reads itself.
    growth = [row["devices"][0]["allocated"] for row in steps]
    assert set(growth) <= set(said["allocated"])
    expected = [row["devices"][0]["allocated"] for row in recorded.steps()]
    assert {b - a for a, b in zip(growth, growth[1:])} == {expected[-1] - expected[-2]}
    per_step = {b["devices"][0]["allocations"] - a["devices"][0]["allocations"] for a, b in zip(steps, steps[1:])}
    assert len(per_step) == 1
    assert allocated_lines(attached, 8 * max(per_step)) == allocated_lines(recorded, 8 * max(per_step))
    leaks = [of.report()["findings"][0] for of in (attached, recorded)]
    for name in ("kind", "bytes_per_step", "site", "held_by"):
        assert leaks[0][name] == leaks[1][name], name
    assert (leaks[0]["kind"], leaks[0]["site"]["line"]) == ("leak", RETAINED_LINE)
    assert leaks[0]["holder"]["stored_at"] == leaks[1]["holder"]["stored_at"]


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("device", "options"),
    [
        pytest.param("cuda", (), id="cuda-now", marks=NIGHTLY),
        pytest.param("cuda", ("--for", "2s"), id="cuda-for"),
        pytest.param("cpu", (), id="cpu-now", marks=NIGHTLY),
        pytest.param("cpu", ("--for", "2s"), id="cpu-for", marks=NIGHTLY),
    ],
)
def test_nothing_is_left_in_the_program(start, device, options):
    program = start(TRAIN, device, "100000", gpu=device == "cuda")
    program.until("ready")
    recorded = program.attach(*options)
    assert "__main__.kept" in recorded.done.stdout
    said = program.stop()
    assert_nothing_is_left(said["before"], said["after"])
    assert said["batches"] == 0
    # It paused for the dump, and for nothing else.
    pause = float(recorded.done.stderr.split("paused for ")[1].split()[0])
    gaps = sorted(b - a for a, b in zip(said["times"], said["times"][1:]))
    assert gaps[-1] < pause + 2


IDLE = (
    BEGIN
    + """
    kept = torch.ones(1_000_000)
    before = state()
    say("ready", 1)
    until = time.monotonic() + 120
    WAIT
    say("before", before)
    say("after", state())
"""
)
STOPPED = "os.path.exists('stop') or time.monotonic() > until"


def idle(wait: str) -> str:
    """A program that waits in its main thread."""
    return IDLE.replace("WAIT", wait.lstrip()).replace("STOPPED", STOPPED)


def woken(wait: str, how: str = "os.kill(os.getpid(), signal.SIGUSR1)") -> str:
    """Waits until another thread ends that."""
    return f"""
    def watch():
        while not (STOPPED): time.sleep(0.05)
        {how}
    signal.signal(signal.SIGUSR1, lambda *_: 1 / 0)
    threading.Thread(target=watch).start()
    try: {wait}
    except ZeroDivisionError: pass
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)"""


WAITS = {
    "for a lock": "\n    event = threading.Event()" + woken("assert event.wait(100)", "event.set()"),
    "for the network": """
    reader, writer = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(reader, selectors.EVENT_READ)"""
    + woken("assert selector.select()", 'writer.send(b".")')
    + """
    selector.close(); reader.close(); writer.close()""",
    "for the clock": woken("time.sleep(100)"),
    "after work in C": """
    work = [functools.partial(sum, range(50_000_000)), functools.partial(time.sleep, 100)]"""
    + woken("collections.deque(map(functools.partial.__call__, work))"),
    "for a process": """
    subprocess.run(["sh", "-c", "for _ in $(seq 600); do [ -e stop ] && exit; sleep 0.05; done"], check=True)""",
    "for a thread": """
    def work():
        while not (STOPPED): torch.ones(1).sum(); time.sleep(0.001)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()""",
}
OPTIONS = ("--no-holders",)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "for the network" else NIGHTLY) for kind in WAITS])
def test_a_main_thread_that_waits_comes_at_once(start, kind):
    program = start(idle(WAITS[kind]))
    program.until("ready")
    began = time.monotonic()
    recorded = program.attach(*OPTIONS)
    assert time.monotonic() - began < 30
    assert "3.81 MiB" in recorded.done.stdout
    said = program.stop()
    assert_nothing_is_left({**said["before"], "threads": 0, "frames": 0}, {**said["after"], "threads": 0, "frames": 0})


BUSY_IN_C = """
    say("busy", 1)
    import ctypes
    ctypes.CDLL(None).usleep(8_000_000)
    say("free", 1)
    while not (STOPPED): time.sleep(0.01)"""


IN_OPERATOR = """
    scope = {"__name__": "torch._ops", "os": os, "time": time, "until": until}
    exec("def operator():\\n while not (STOPPED): time.sleep(0.001)", scope)
    scope["operator"]()"""


@pytest.mark.nightly
def test_nothing_is_changed_inside_an_operator(start):
    """PyTorch fails if the mode that it has just seen is gone when it comes back from Python."""
    program = start(idle(IN_OPERATOR))
    program.until("ready")
    refused = program.attach("--for", "1s", "--timeout", "2s", fails=True)
    assert "the main thread is busy" in refused.done.stderr
    said = program.stop()
    assert_nothing_is_left(said["before"], said["after"])


SHUT_DOWN = """
import ctypes, os, time
import torch
library = ctypes.CDLL(None)
library.__cxa_atexit(ctypes.cast(library.usleep, ctypes.c_void_p), ctypes.c_void_p(1_500_000), None)
print(os.getpid(), flush=True)
"""
"""A program that goes on for a while when Python has been shut down, as some do that wait for the GPU."""


COMPILE = (
    BEGIN
    + """
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).cuda()
    batch = torch.ones(2, 4, device="cuda")
    net(batch)
    torch._dynamo.config.suppress_errors = False

    def take_long():
        say("compiling", 1)
        end = time.time() + 4
        while time.time() < end:
            sum(range(1000))

    def backend(module, inputs):
        take_long()
        return module.forward

    class Traced(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            take_long()
            return self.net(x)

    call = torch.nn.Module.__call__
    say("ready", 1)
    wait_for("compile")
    compilers = {"dynamo": lambda: torch.compile(net, backend=backend), "fx": lambda: torch.fx.symbolic_trace(Traced())}
    compiled = compilers[sys.argv[1]]()
    compiled(batch)
    say("compiled", 1)
    wait_for("stop")
    compiled(batch)
    say("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])
    say("restored", torch.nn.Module.__call__ is call)
"""
)


@pytest.mark.parametrize(("compiler", "graphs"), [("dynamo", 1), ("fx", 0)])
def test_a_compiler_finds_pytorch_as_it_was_when_it_began(start, compiler, graphs):
    program = start(COMPILE, compiler, gpu=True)
    program.until("ready")
    attaching = program.start_recording("--for", "1s")
    (program.folder / "compile").touch()
    program.until("compiling")
    out, said = attaching.communicate(timeout=60)  # it ends after a second, and the compiler after four
    assert attaching.returncode == 0, out + said
    assert program.until("compiled")
    found = program.stop()
    assert found["restored"]
    assert found["graphs"] == graphs  # nothing is compiled again because the recording has ended


def test_a_program_that_ends_goes_on_to_end(tmp_path):
    program = subprocess.Popen([OTHER_PYTHON or sys.executable, "-c", SHUT_DOWN], stdout=subprocess.PIPE, text=True)
    pid = program.stdout.readline().strip()
    causes = set()
    while program.poll() is None:
        command = [OOMPH, "attach", pid, "--no-holders", "--timeout", "1s", "-o", tmp_path / f"recording{len(causes)}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        causes |= {line.strip() for line in done.stderr.splitlines() if "cause:" in line}
    assert program.returncode == 0
    assert "cause: its Python has been shut down: it is about to end" in causes


@pytest.mark.nightly
def test_a_main_thread_in_c_code_is_waited_for_only_as_long_as_asked(start):
    program = start(idle(BUSY_IN_C))
    program.until("busy")
    refused = program.attach(*OPTIONS, "--timeout", "2s", fails=True)
    assert "waiting for the main thread" in refused.done.stderr
    assert "busy in C code" in refused.done.stderr
    assert "hint:" in refused.done.stderr
    assert not (program.folder / "recording").exists()
    program.until("free")
    # What has given up does nothing when the main thread comes at last.
    time.sleep(0.5)
    said = program.stop()
    assert_nothing_is_left(said["before"], said["after"])


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=NIGHTLY)], ids=["killed", "Ctrl-C"])
def test_everything_is_undone_when_oomph_ends_early(start, number):
    program = start(TRAIN, "cuda", "100000", gpu=True)
    program.until("ready")
    attaching = program.start_recording("--for", "10m", "--no-holders")
    links = [os.readlink(path) for path in pathlib.Path(f"/proc/{attaching.pid}/fd").iterdir()]
    private = [pathlib.Path(link).parent for link in links if link.endswith("/lock")]
    (shared,) = [folder for folder in private if folder.name.startswith("oomph-")]
    assert shared.exists()
    attaching.send_signal(number)
    attaching.communicate()
    assert attaching.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    time.sleep(2)
    said = program.stop()
    assert_nothing_is_left(said["before"], said["after"])
    runs = pathlib.Path.home() / ".cache/oomph/run"
    assert not shared.exists()
    assert not [*runs.glob(f"*-{attaching.pid}-*/**/parts")]
    assert not list((program.folder / "recording").glob("rank*"))


BEGINS_WITH_CUDA = (
    BEGIN
    + """
    kept = torch.ones(10_000)
    before = state()
    say("ready", 1)
    while not os.path.exists("begin"): time.sleep(0.01)

    def allocated():
        # Gradients are summed in place, unless a mode is on.
        before = torch.cuda.memory_stats().get("requested_bytes.all.allocated", 0)
        doubled = torch.ones(1000, device="cuda", requires_grad=True) * 2
        (doubled.sin() + doubled.cos() + doubled.tan() + doubled.exp()).sum().backward()
        return torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before

    torch.cuda.init()
    say("attached", allocated())
    while not (STOPPED): time.sleep(0.01)
    say("alone", allocated())
    say("before", before)
    say("after", state())
"""
).replace("STOPPED", 'os.path.exists("stop")')


def test_a_program_that_begins_to_use_cuda_meanwhile_allocates_as_without(start):
    program = start(BEGINS_WITH_CUDA, gpu=True)
    program.until("ready")
    attaching = program.start_recording("--for", "10m", "--no-holders")
    (program.folder / "begin").touch()
    program.until("attached")
    _, said = attaching.communicate(timeout=60)
    assert attaching.returncode == 0, said
    assert "began to use CUDA" in said
    said = program.stop()
    assert said["attached"] == said["alone"]
    for name in ("modes", "queued", "resize", "functions"):
        assert said["after"][name] == said["before"][name], name


IN_QUEUED_CALL = (
    BEGIN
    + """
    torch.cuda._lazy_call(lambda: (say("waiting", 1), wait_for("begin")))
    torch.cuda.init()
    kept = torch.ones(1000, device="cuda")
    while not os.path.exists("stop"): time.sleep(0.01)
"""
)


def test_a_program_that_initializes_cuda_is_waited_for(start):
    program = start(IN_QUEUED_CALL, gpu=True)
    program.until("waiting")
    attaching = program.start_attaching("--for", "1s", "--no-holders")
    # PyTorch holds a lock meanwhile.
    time.sleep(2)
    assert attaching.poll() is None
    (program.folder / "begin").touch()
    _, said = attaching.communicate(timeout=60)
    assert attaching.returncode == 0, said
    program.stop()


FORKED = """
    child = os.fork()
    if not child:
        say("child", os.getpid())
        kept = [torch.ones(1_000_000) for _ in range(3)]
        while not (STOPPED): time.sleep(0.01)
        os._exit(0)
    os.waitpid(child, 0)"""


@pytest.mark.nightly
def test_a_forked_worker(start):
    program = start(idle(FORKED))
    program.pid = program.until("child")
    time.sleep(0.5)
    recorded = program.attach()
    assert "11.4 MiB" in recorded.done.stdout
    assert "__main__.kept" in recorded.done.stdout
    program.stop()


@pytest.mark.nightly
def test_the_program_handles_its_signals_while_it_is_attached_to(start):
    handling = """
    def handler(number, frame): raise TimeoutError("for the program")
    signal.signal(signal.SIGALRM, handler)
    objects = [[at] for at in range(300_000)]
    caught = 0
    say("busy", 1)
    while not (STOPPED):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            while not (STOPPED): time.sleep(0.001)
        except TimeoutError as error:
            caught += str(error) == "for the program"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    say("caught", caught)
    del objects"""
    program = start(idle(handling))
    program.until("busy")
    attaching = program.start_attaching()
    attaching.communicate(timeout=200)
    said = program.stop()
    assert said["caught"] > 1


def refusal(pid: int, *options: str) -> str:
    done = subprocess.run([OOMPH, "attach", str(pid), *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: " in done.stderr
    assert "cause: " in done.stderr
    return done.stderr


def test_reasons_not_to_attach(tmp_path):
    assert "no process with this ID" in refusal(2**22 + 1)
    sleeping = subprocess.Popen(["sleep", "60"])
    python = subprocess.Popen([OTHER_PYTHON or sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert "not a Python process with torch" in refusal(sleeping.pid)
        sleeping.send_signal(signal.SIGSTOP)
        while "T (stopped)" not in pathlib.Path(f"/proc/{sleeping.pid}/status").read_text():
            time.sleep(0.01)
        assert "it is stopped" in refusal(sleeping.pid)
        time.sleep(0.5)
        assert "has not imported torch" in refusal(python.pid)
        python.stdin.close()
        while "Z (zombie)" not in pathlib.Path(f"/proc/{python.pid}/status").read_text():
            time.sleep(0.01)
        assert "it has ended" in refusal(python.pid)
        threads = [int(name) for name in os.listdir("/proc/self/task")]
        assert f"a thread of process {os.getpid()}" in refusal(max(threads)) or len(threads) == 1
    finally:
        for process in (sleeping, python):
            process.kill()
            process.wait()
