"""A recorded program behaves as it does without the recorder: output, exceptions, signals, forks, and what it can see of itself."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from conftest import FORKING_PYTHON, MODEL, OOMPH

CPU_MODEL = MODEL.replace('"cuda"', '"cpu"')
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""With more of them torch itself hangs in a forked process."""


def bare(predict, program: str, python: str) -> subprocess.CompletedProcess[str]:
    predict.write(program)
    environment = {**os.environ, **ONE_THREAD, "NO_COLOR": "1"}
    command = [python, "train.py"]
    return subprocess.run(command, cwd=predict.folder, env=environment, capture_output=True, text=True, timeout=300)


def without_ours(said: str) -> str:
    return "".join(line for line in said.splitlines(keepends=True) if not re.match(r"oomph: |recorded in |no usable GPU", line))


@pytest.fixture
def same(run, predict):
    """Runs a program on the CPU, bare and recorded, and compares everything that it leaves.

    `fresh` starts new interpreters, where the program looks at what it runs in.
    """

    def same(program: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
        before = bare(predict, program, sys.executable if fresh else FORKING_PYTHON.cpu)
        recorded = run(program, "--cpu", gpu=False, fresh=fresh, env=ONE_THREAD).done
        assert recorded.stdout.startswith(before.stdout), recorded.stdout
        assert without_ours(recorded.stderr) == before.stderr
        assert recorded.returncode == before.returncode
        return before

    return same


def test_a_traceback_is_the_same_to_the_letter(same):
    done = same(
        CPU_MODEL
        + """
    import traceback
    train(2)

    class Picky(nn.Module):
        def forward(self, x):
            raise ValueError("not this one")

    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Picky()
        def forward(self, x):
            return self.inner(x)

    hooked = Hooked()
    hooked.register_forward_hook(lambda *_: None)
    for fails in (lambda: hooked(torch.ones(1)), lambda: torch.ones(2, requires_grad=True).backward()):
        try:
            fails()
        except Exception:
            traceback.print_exc()
    nn.Sequential(hooked)(torch.ones(5))
""",
        fresh=True,
    )
    assert done.stderr.count("Traceback") == 3 and done.returncode == 1


def test_a_program_sees_the_same_of_itself(same):
    done = same(
        CPU_MODEL
        + """
    import gc, inspect, signal, sys, threading
    train(3)
    print([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)])
    wakeup = signal.set_wakeup_fd(-1)
    print(wakeup, [thread.name for thread in threading.enumerate()], threading.active_count())
    print(sys.excepthook is sys.__excepthook__, gc.isenabled(), sys.getswitchinterval())
    for function in (nn.Module.__call__, nn.Module._call_impl, torch.optim.Optimizer.__init__, torch.autograd.graph._engine_run_backward,
                     torch.cuda.memory._record_memory_history):
        print(function.__module__, function.__qualname__, inspect.signature(function), inspect.getsourcefile(function).split("torch")[-1])
    print("torch._inductor" in sys.modules, sys.argv, sys.flags)
""",
        fresh=True,
    )
    assert "['MainThread'] 1" in done.stdout


def test_settings_of_a_process_are_those_without_us(same):
    same(
        """
    import sys
    print(sys.argv, sys.path, len(sys.path_hooks), sorted(vars(sys.modules["__main__"])), __spec__, type(__loader__))
    import warnings
    print(warnings.filters)
    import asyncio, faulthandler, gc, locale, logging, multiprocessing, os, random, resource, signal, subprocess, threading
"""
        + CPU_MODEL
        + """
    random.seed(3)
    torch.manual_seed(3)
    train(5)
    print(warnings.filters, sys.path, [type(finder).__name__ for finder in sys.meta_path], logging.root.handlers)
    print(gc.get_threshold(), gc.callbacks, gc.get_freeze_count(), gc.get_debug(), gc.garbage)
    masks = []
    thread = threading.Thread(target=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    thread.start()
    thread.join()
    print(masks, signal.pthread_sigmask(signal.SIG_BLOCK, []), [signal.getsignal(number) for number in signal.valid_signals()])
    print(threading.excepthook is threading.__excepthook__, sys.unraisablehook is sys.__unraisablehook__, sys.gettrace(),
          sys.getprofile(), threading.gettrace(), threading.getprofile(), sys.get_asyncgen_hooks(), thread.name)
    print(sys.getrecursionlimit(), sys.stdout.encoding, sys.stderr.encoding, locale.setlocale(locale.LC_ALL), faulthandler.is_enabled())
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    print(cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32, cuda.matmul.allow_tf32, cuda.flash_sdp_enabled())
    print(torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), torch.get_default_device(),
          torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(), torch.multiprocessing.get_sharing_strategy())
    print(random.random(), torch.rand(3), torch.get_rng_state().sum(), os.umask(0o22), os.nice(0), os.sched_getaffinity(0))
    print([resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")])
    print(multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name, multiprocessing.Process().name)
    print(type(asyncio.get_event_loop_policy()), os.getcwd(), sys.executable, os.getpgid(0) == os.getpid())
    descriptors = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    print(subprocess.run([sys.executable, "-I", "-c", descriptors], close_fds=False, capture_output=True, text=True).stdout)
    model = nn.Linear(2, 2)
    print(vars(model).keys(), vars(model.weight), model.weight._backward_hooks, model(torch.ones(2)).sum().grad_fn.metadata)
""",
        fresh=True,
    )


def test_a_program_with_few_descriptors_is_recorded(predict):
    predict.write(CPU_MODEL + "    train(2)\n    print('trained')\n")
    command = f"ulimit -n 10; exec {OOMPH} run --cpu --python {sys.executable} -o recording train.py"
    done = subprocess.run(["sh", "-c", command], cwd=predict.folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("trained\n"), done.stderr
    assert without_ours(done.stderr) == ""
    assert (predict.folder / "recording/rank0.pickle").exists()


def test_patches_of_the_program_are_called(same):
    done = same(
        CPU_MODEL
        + """
    calls = {"_call_impl": 0, "__call__": 0}

    def patch(name):
        original = getattr(nn.Module, name)
        def patched(self, *args, **kwargs):
            calls[name] += 1
            return original(self, *args, **kwargs)
        setattr(nn.Module, name, patched)

    patch("_call_impl")
    train(1)
    patch("__call__")
    train(1)
    print(calls)
"""
    )
    assert done.stdout == "{'_call_impl': 20, '__call__': 10}\n"


def test_patches_made_before_cuda_are_called(run):
    recorded = run(
        MODEL.replace(
            "DEVICE = ",
            """
    calls = []
    original = nn.Module._call_impl
    def patched(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return original(self, *args, **kwargs)
    nn.Module._call_impl = patched
    DEVICE = """,
        )
        + """
    train(1)
    print(len(calls), calls[0])
"""
    )
    assert recorded.done.stdout.startswith("10 Net\n"), recorded.done.stderr


INTERRUPTED = """
import signal, torch
from oomph.recording.names import Names
from oomph.recording.module_tracker import ModuleTracker

tracker = ModuleTracker(Names(), lambda text: None, str, lambda *_: None, lambda: None)
tracker.install()
model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)])
x = torch.ones(1, 2)
raised = caught = 0
is_armed = False

def handler(number, frame):
    global is_armed, raised
    if is_armed:
        is_armed = False
        raised += 1
        raise TimeoutError("time is up")

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while caught < 500:
    try:
        is_armed = True
        while is_armed:
            model(x)
    except TimeoutError:
        caught += 1
    if raised != caught:
        break
print(raised - caught, tracker.is_on, tracker.here.followed)
"""


def test_an_exception_of_a_signal_handler_reaches_the_program_wherever_it_comes(tmp_path):
    done = subprocess.run([FORKING_PYTHON.cpu, "-c", INTERRUPTED], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout == "0 True None\n", done.stderr


WORKERS = """
    import sys, torch
    from torch.utils.data import DataLoader, Dataset

    class Normalize(torch.nn.Module):
        def forward(self, x):
            return (x - 0.5) / 0.5

    class Images(Dataset):
        def __init__(self):
            self.transform = torch.nn.Sequential(Normalize(), Normalize())
        def __len__(self):
            return 64
        def __getitem__(self, at):
            return self.transform(torch.full((3, 8, 8), float(at)))

    if __name__ == "__main__":
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(Images(), batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1]):
            model(batch.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print("trained")
"""


@pytest.mark.parametrize("method", ["fork", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("spawn", "forkserver"))])
def test_modules_in_workers_of_a_data_loader_are_left_alone(run, method):
    recorded = run(WORKERS, arguments=(method,), env=ONE_THREAD)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert recorded.done.stdout.startswith("trained\n")
    assert [path.name for path in recorded.folder.glob("rank*.json")] == ["rank0.json"]
    assert len(recorded.steps()) == 8


SETTINGS = """
    import gc, json, os, signal, sys, time

    def settings():
        return [gc.isenabled(), round(sys.getswitchinterval(), 4), signal.getsignal(signal.SIGTERM)]

    def settings_of_a_child():
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, json.dumps(settings()).encode())
            os._exit(0)
        os.wait()
        found = json.loads(os.read(read, 100))
        os.close(read)
        os.close(write)
        return found
"""


def test_a_child_forked_during_a_dump_has_the_programs_settings(run):
    recorded = run(
        CPU_MODEL
        + SETTINGS
        + """
    train(2)
    kept = [torch.ones(1) for _ in range(5_000)]  # for a snapshot that takes its time
    sys.setswitchinterval(0.004)

    def wait_for_a_dump():
        began, asked = time.monotonic(), 0
        while gc.isenabled():
            since = time.monotonic() - began
            assert since < 60
            if since >= 5 * asked:  # again, if it was over before it was seen
                os.kill(os.getpid(), signal.SIGUSR1)
                asked += 1
            time.sleep(0.001)

    seen = []
    for _ in range(3):
        wait_for_a_dump()
        seen.append(settings_of_a_child())
        while not gc.isenabled():
            time.sleep(0.001)
    print("SEEN", json.dumps(seen))
""",
        "--cpu",
        gpu=False,
        env=ONE_THREAD,
    )
    assert recorded.said("SEEN") == 3 * [[True, 0.004, 0]], recorded.done.stderr


def test_a_child_forked_while_the_heap_is_walked_has_the_programs_settings(tmp_path):
    """No other thread runs during a walk, unless it takes long: the fork is in its place here."""
    program = (
        SETTINGS
        + """
    from oomph.interpreter.pause import undisturbed

    sys.setswitchinterval(0.004)
    with undisturbed(1.0), undisturbed():
        print(json.dumps([settings(), settings_of_a_child()]))
    print(json.dumps(settings()))
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    during, after = map(json.loads, done.stdout.splitlines())
    assert during == [[False, 1.0, 0], [True, 0.004, 0]], done.stderr
    assert after == [True, 0.004, 0]


PROFILED = """
import cProfile, torch
from oomph import record
kept = [torch.ones(1000) for _ in range(100)]
with record("recording") as recording:
    profile = cProfile.Profile()
    profile.enable()
    recording.dump()
    profile.disable()
print(sum(entry.callcount for entry in profile.getstats()))
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no way to ask for it")
def test_a_profiler_of_the_program_does_not_see_how_a_dump_is_written(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROFILED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300


def test_a_forked_child_ends_on_sigterm_and_calls_nothing_of_ours(run):
    recorded = run(
        MODEL
        + """
    import json, os, signal, time
    train(2)
    pid = os.fork()
    if pid == 0:
        nn.Linear(4, 4)(torch.ones(4))
        with torch.profiler.record_function("mine"):
            torch.ones(4)
        time.sleep(60)
        os._exit(0)
    time.sleep(1)
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    print("ENDED", json.dumps({"signal": os.WTERMSIG(status), "at_once": time.monotonic() - began < 1}))
    train(2)
""",
        env=ONE_THREAD,
    )
    assert recorded.said("ENDED") == {"signal": signal.SIGTERM, "at_once": True}, recorded.done.stderr
    assert (recorded.json()["ended"], len(recorded.steps())) == ("finished", 4)
    assert "CUDA error" not in recorded.done.stderr, recorded.done.stderr


def _ended(predict, program: str, *options: str) -> tuple[float, float, int, str]:
    """Seconds from SIGTERM to the end of a program, and to its last sign of life; its exit code, and what it said."""
    predict.write(program)
    command = [OOMPH, "run", *options, "--python", sys.executable, "-o", "recording", "train.py"]
    environment = {**os.environ, **ONE_THREAD}
    with subprocess.Popen(
        command, cwd=predict.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stdout.readline().split()[1])
        began = time.time()
        os.kill(pid, signal.SIGTERM)
        while pathlib.Path(f"/proc/{pid}").exists() and (pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2]) != "Z":
            time.sleep(0.02)
        ended = time.time()
        _, said = process.communicate(timeout=120)
    alive = predict.folder / "alive"
    return ended - began, alive.stat().st_mtime - began, process.returncode, said


ALIVE = """
    import os, time
    train(30)
    open("alive", "w").close()
    print("PID", os.getpid(), flush=True)
    while True:
        open("alive", "w").close()
        train(1)
        time.sleep(0.01)
"""


def test_a_program_that_gets_sigterm_does_not_go_on_and_ends_in_time(predict):
    seconds, alive, code, said = _ended(predict, MODEL + ALIVE, "--emulate", "h200")
    assert code == 143, said
    assert seconds < 20, "two seconds for the recording, and a busy machine"
    assert alive < max(1, seconds / 2), "the program itself stops at once"
    assert json.loads((predict.folder / "recording/rank0.json").read_text())["ended"] == "killed"


def test_a_dump_that_fails_does_not_keep_a_program_from_ending(predict):
    program = (
        CPU_MODEL
        + """
    import shutil
    train(1)
    shutil.rmtree("recording")
    open("recording", "w").close()
"""
        + ALIVE
    )
    seconds, _, code, said = _ended(predict, program, "--cpu")
    assert code == 143, said
    assert seconds < 4


def test_a_failed_kernel_is_what_the_program_sees():
    """After one, every call into CUDA fails: also those that only say where the program is."""
    from oomph.recording.module_tracker import ModuleTracker
    from oomph.recording.names import Names

    is_broken = False

    def mark(text: str) -> None:
        if is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered")

    class Kernel(torch.nn.Module):
        def forward(self, x):
            nonlocal is_broken
            is_broken = True
            raise IndexError("the program's own")

    tracker = ModuleTracker(Names(), mark, str, lambda *_: None, lambda: None)
    tracker.install()
    try:
        with pytest.raises(IndexError, match="own") as failed:
            torch.nn.Sequential(Kernel())(torch.ones(1))
        assert failed.value.__context__ is None
        torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
        torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1).step()
    finally:
        tracker.remove()


def test_a_program_that_records_itself_gets_its_snapshot(run):
    recorded = run("""
    import torch
    from torch.cuda.memory import _record_memory_history as record
    record(max_entries=1000, stacks="python")
    kept = torch.zeros(1 << 20, device="cuda")
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    print([(event["action"], event["size"]) for event in events], bool(events[-1]["frames"]))
    record(enabled=None)
    more = torch.zeros(1 << 20, device="cuda")
""")
    assert "('alloc', 4194304)] True" in recorded.done.stdout, recorded.done.stderr
    assert len(recorded.allocations()) == 2


def test_a_history_of_the_programs_own_outlives_ours(monkeypatch):
    from oomph.recording.cuda_history import CudaHistory

    calls = []

    def pytorchs(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None, clear_history=False):
        calls.append((enabled, context, stacks, max_entries))

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", pytorchs)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda function: function())
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    history = CudaHistory(100)
    monkeypatch.setattr(history, "mark", lambda text: None)
    history.start(lambda: None, lambda: None)
    during = torch.cuda.memory._record_memory_history
    assert calls.pop() == ("all", "alloc", "python", 100)
    during(max_entries=10)
    assert calls.pop() == ("all", "all", "all", 100), "what the program wants, and no less than what we want"
    history.record_stacks(wanted=False)
    assert not calls, "the program wants its stacks"
    history.stop()
    assert calls.pop() == ("all", "all", "all", 10), "the program's own goes on"
    assert torch.cuda.memory._record_memory_history is pytorchs
    during(None)
    assert calls.pop()[0] is None, "whoever has kept our function has PyTorch's in effect"


def test_steps_that_repeat_are_recorded_without_stacks_and_shown_with_them(run):
    program = (
        MODEL
        + """
    train(30)
    train(1, batch=256)
    train(5)
"""
    )
    recorded = run(program)
    assert recorded.done.returncode == 0, recorded.done.stderr
    steps = recorded.steps()
    assert sum(not step.get("stacks", True) for step in steps) > 15
    assert all(step.get("stacks", True) for step in steps[:4])
    without = [
        event
        for event in recorded.allocations()
        if not event.get("frames") and not event["user_metadata"].startswith("backward ")
    ]
    assert len(without) > 500
    report = recorded.report("--at", "peak", "--by", "site", "--top", "50")
    assert report["steps"]["count"] == 36
    # The larger batch was met in the middle of such steps, and recorded closely.
    assert not steps[30].get("stacks", True)
    known = [group for group in report["live"]["groups"] if group.get("site")]
    assert sum(group["bytes"] for group in known) > 0.95 * report["live"]["bytes"]


def test_counters_that_are_read_once_for_several_steps_are_those_of_each(run):
    """In a steady loop. Where steps turn out to differ, only when they ended is known of the last few."""
    program = (
        MODEL
        + """
    from torch.optim.optimizer import register_optimizer_step_post_hook
    counts = []
    register_optimizer_step_post_hook(
        lambda *_: counts.append(torch.cuda.memory_stats()["allocation.all.allocated"]))
    train(40)
    for step in range(40):
        if step in (11, 22, 34):
            torch.zeros(1000, device="cuda")
        train(1)
    print("COUNTS", counts)
"""
    )
    recorded = run(program)
    assert recorded.done.returncode == 0, recorded.done.stderr
    steps = recorded.steps()
    counts = recorded.said("COUNTS")
    assert [step["step"] for step in steps] == list(range(1, 81)) and len(counts) == 80
    read = {step["step"]: step["devices"][0] for step in steps if step["devices"]}
    assert {number: row["allocations"] for number, row in read.items()} == {number: counts[number - 1] for number in read}
    lost = sorted(set(range(1, 81)) - read.keys())
    assert 0 < len(lost) <= 3 * 7 and lost[0] > 44
    whole = [row for row in read.values() if "all_requested" in row]
    assert len(whole) < 40, "they are read once for several steps"
    assert recorded.report()["steps"]["count"] == 80


def test_memory_that_grows_is_recorded_with_every_stack(run):
    recorded = run(
        MODEL
        + """
    kept = []
    for _ in range(30):
        train(1)
        kept.append(torch.zeros(1000, device="cuda"))
"""
    )
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert all(step.get("stacks", True) for step in recorded.steps())


def test_searches_through_all_objects_stop_when_each_step_makes_an_optimizer(run):
    """As in style transfer, adversarial examples and meta-learning: what is optimized is in no module."""
    done = run(
        """
    import gc, torch

    searches, search = 0, gc.get_referrers

    def counted(*objects):
        global searches
        searches += 1
        return search(*objects)

    gc.get_referrers = counted
    model = torch.nn.Linear(64, 64).cuda()
    for step in range(100):
        images = [torch.zeros(8, 64, device="cuda", requires_grad=True) for _ in range(4)]
        optimizer = torch.optim.SGD(images, lr=0.1)
        sum(model(image).sum() for image in images).backward()
        optimizer.step()
    gc.get_referrers = search
    print("searches:", searches)
    """
    ).done
    searches = int(re.search(r"searches: (\d+)", done.stdout)[1])
    # The first optimizers may each cost a search.
    assert 0 < searches <= 40, done.stdout


@pytest.mark.nightly
def test_a_signal_that_is_handled_below_python_stays_so(same):
    done = same(
        """
    import faulthandler, os, signal
    faulthandler.register(signal.SIGUSR1, all_threads=False)
"""
        + CPU_MODEL
        + """
    train(2)
    os.kill(os.getpid(), signal.SIGUSR1)
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(0)
    print(os.wait()[1])
""",
        fresh=True,
    )
    assert done.stdout == "0\n" and done.stderr.count("Stack (most recent call first)") == 2


def test_a_program_that_waits_for_a_signal_gets_it(same):
    done = same(
        CPU_MODEL
        + """
    import os, signal, threading
    train(2)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR2)).start()
    print(signal.sigwait({signal.SIGUSR2}))
"""
    )
    assert done.stdout == "12\n"


@pytest.mark.parametrize("name", [pytest.param("SIGUSR1", marks=pytest.mark.nightly), "SIGTERM"])
def test_a_program_that_registers_a_fault_handler_later_has_it_in_its_children_too(same, name):
    done = same(
        CPU_MODEL
        + f"""
    import faulthandler, os, signal
    train(2)
    print(faulthandler.is_enabled(), faulthandler.unregister(signal.{name}))
    faulthandler.register(signal.{name}, all_threads=False)
    faulthandler.enable()
    os.kill(os.getpid(), signal.{name})
    for _ in range(2):
        if os.fork() == 0:
            os.kill(os.getpid(), signal.{name})
            print(faulthandler.is_enabled(), faulthandler.unregister(signal.{name}), flush=True)
            os._exit(0)
        print(os.wait()[1], flush=True)
    os.kill(os.getpid(), signal.{name})
""",
        fresh=True,
    )
    assert done.stdout == "False False\nTrue True\n0\nTrue True\n0\n"
    assert done.stderr.count("Stack (most recent call first)") == 4


STORM = """
import os, signal, sys, time
from oomph.recording.signals import Signals

asked = []
signals = Signals(lambda reason, seconds: asked.append(reason))
signals.install()
me = os.getpid()
sender = os.fork()
if sender == 0:
    try:
        while True:
            os.kill(me, signal.SIGUSR1)
    except ProcessLookupError:
        os._exit(0)

def numbers(*given):
    yield from (number for number in given)

def deep(depth):
    return deep(depth - 1) if depth else sum(numbers(1, 2, 3))

until = time.monotonic() + 3
while time.monotonic() < until:
    deep(20)
os.kill(sender, signal.SIGKILL)
os.wait()
print(set(asked))
"""


def test_signals_at_any_moment_do_not_crash_the_program(tmp_path):
    done = subprocess.run([FORKING_PYTHON.cpu, "-c", STORM], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stdout) == (0, "{'signal'}\n"), done.stderr


CLOSING = """
    import json, os, signal, time
    train(3)
    os.closerange(3, 65536)
    files = [open(f"file{number}", "wb") for number in range(1000)]
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.2)
    train(2)
    for file in files:
        file.write(b"mine")
        file.flush()
    pid = os.fork()
    if pid == 0:
        for file in files:
            file.write(b"too")
            file.flush()
        os.closerange(3, 65536)
        os._exit(0)
    print("CHILD", os.waitpid(pid, 0)[1], flush=True)
"""


def test_descriptors_that_the_program_gets_after_closing_all_are_its_own(run, predict):
    recorded = run(
        MODEL
        + CLOSING
        + """
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
""",
        env=ONE_THREAD,
    )
    assert recorded.done.returncode == 143, recorded.done.stderr
    assert recorded.said("CHILD") == 0
    assert {path.read_bytes() for path in predict.folder.glob("file*")} == {b"minetoo"}


def test_a_dump_in_the_middle_of_which_all_descriptors_are_closed_writes_nothing_into_other_files(tmp_path):
    from oomph.interpreter.descriptors import OwnFile

    ours = OwnFile(str(tmp_path / "ours"), os.O_TRUNC)
    ours.write(b"ours")
    number = ours._number
    os.close(number)
    with open(tmp_path / "theirs", "wb") as theirs:
        os.dup2(theirs.fileno(), number)
        with pytest.raises(OSError, match="the program has closed"):
            ours.write(b"ours")
        ours.close()
        os.write(number, b"theirs")
        os.close(number)
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


SAYING = """
import os
from oomph.recording.messages import say

os.close(2)
data = open("data", "wb")
assert data.fileno() == 2
say("lost")
data.write(b"mine")
data.close()
log = open("log", "ab")
say("kept")
"""


def test_messages_do_not_get_into_a_file_that_has_the_number_of_standard_error(tmp_path):
    done = subprocess.run([FORKING_PYTHON.cpu, "-c", SAYING], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").read_text() == "mine"
    assert (tmp_path / "log").read_text() == "oomph: kept\n"


@pytest.mark.nightly
def test_files_of_the_program_have_the_numbers_that_they_have_without_us(same):
    same(
        CPU_MODEL
        + """
    import os
    print(os.open("/dev/null", os.O_RDONLY), sorted(map(int, os.listdir("/proc/self/fd")))[:4])
    train(3)
    print(os.open("/dev/null", os.O_RDONLY))
""",
        fresh=True,
    )
