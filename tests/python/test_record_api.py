"""`oomph.record()` inside a program, and what it leaves behind. On the CPU, in this process or one of its own."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

import oomph
from conftest import FORKING_PYTHON


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        net(torch.randn(8, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def record(path: pathlib.Path, **options) -> oomph.Recording:
    """Without who holds what: that takes most of the time of a dump in a process with so many modules."""
    return oomph.record(path, holders=False, **options)


def python(*arguments: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [FORKING_PYTHON.cpu, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def steps_of(folder: pathlib.Path) -> int:
    return len((folder / "rank0.steps.jsonl").read_text().splitlines())


BODY = """
import torch, oomph
net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
with oomph.record("a") as rec:
    for _ in range(4):
        net(torch.randn(8, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
assert rec.path == "a"
device = oomph.load("a").report().json["inputs"][0]["devices"][0]
assert device["steps"]["source"] == "recorded", device["steps"]
size = sum(p.nbytes for p in net.parameters())
assert [device["categories"][name] for name in ("parameter", "gradient", "optimizer")] == [size] * 3, device["categories"]
print("fine")
"""


def test_a_with_records_its_body(tmp_path):
    # In a process of its own: parameters that other tests have left count as well.
    done = python("-c", BODY, cwd=tmp_path)
    assert done.stdout == "fine\n", done.stderr
    assert steps_of(tmp_path / "a") == 4


def test_the_programs_own_steps_count_alone(tmp_path):
    net, optimizer = model()
    with record(tmp_path / "own", own_steps=True) as rec:
        for _ in range(3):
            train(net, optimizer, 2)
            rec.step()
    assert steps_of(tmp_path / "own") == 3


def test_holders_are_written_unless_switched_off(tmp_path):
    net, optimizer = model()
    with oomph.record(tmp_path / "a") as rec:
        kept = torch.ones(1009)
        train(net, optimizer, 2)
        rec.dump()
        asked = json.loads((tmp_path / "a" / "rank0.heap").read_text())
    assert asked["dumped"] == "asked"
    assert json.loads((tmp_path / "a" / "rank0.heap").read_text())["dumped"] == "exit"
    assert 4 * 1009 in {row[4] for row in asked["storages"]}
    (tmp_path / "a" / "rank0.growing.heap").write_text("of an earlier run")
    with oomph.record(tmp_path / "a", holders=False):
        train(net, optimizer, 2)
    assert not list((tmp_path / "a").glob("*heap"))
    del kept


def test_a_decorator_records_each_call(tmp_path):
    net, optimizer = model()

    @record(tmp_path / "d")
    def fit(steps: int) -> str:
        """Fits."""
        train(net, optimizer, steps)
        return "done"

    assert (fit(2), steps_of(tmp_path / "d")) == ("done", 2)
    assert (fit(5), steps_of(tmp_path / "d")) == ("done", 5)
    assert (fit.__name__, fit.__doc__) == ("fit", "Fits.")


def test_an_exception_is_the_programs_own_and_is_noted(tmp_path):
    net, optimizer = model()
    with pytest.raises(KeyError, match="mine"), record(tmp_path / "e"):
        train(net, optimizer, 2)
        raise KeyError("mine")
    summary = json.loads((tmp_path / "e/rank0.json").read_text())
    assert (summary["ended"], summary["exception"]) == ("failed", "KeyError: 'mine'")


AS_BEFORE = """
import gc, os, signal, sys, threading, time
import torch
import oomph

def state():
    optimizers = sys.modules["torch.optim.optimizer"]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return [
        torch.nn.Module.__call__,
        torch.nn.Module._call_impl,
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        torch.optim.Optimizer.__init__,
        torch.cuda.memory._record_memory_history,
        torch.cuda.memory._set_memory_metadata,
        torch._C._accelerator_setAllocatorSettings,
        sys.excepthook,
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
        torch._C._len_torch_dispatch_stack(),
        signal.getsignal(signal.SIGUSR1),
        signal.getsignal(signal.SIGTERM),
        wakeup,
        threading.active_count(),
        len(sys._current_frames()),
        len(os.listdir("/proc/self/fd")),
    ]

def train():
    net(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

net = torch.nn.Linear(32, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
train()
before = state()
for _ in range(3):
    with oomph.record("here"):
        train()
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)
    # Threads of ours end, and close their descriptors, a moment later.
    end = time.monotonic() + 20
    while state() != before and time.monotonic() < end:
        time.sleep(0.1)
    assert state() == before, [pair for pair in zip(before, state()) if pair[0] != pair[1]]
from oomph.recording.recorder import Recorder
gc.collect()
assert not [thing for thing in gc.get_objects() if type(thing) is Recorder], "a recorder stays"
print("fine")
"""


def test_everything_is_as_before_when_it_ends(tmp_path):
    done = python("-c", AS_BEFORE, cwd=tmp_path)
    assert done.stdout == "fine\n", done.stderr


def test_one_recording_at_a_time(tmp_path, capsys):
    net, optimizer = model()
    with record(tmp_path / "outer"):
        with record(tmp_path / "inner") as inner:
            inner.step()
        train(net, optimizer, 3)
    assert not (tmp_path / "inner").exists()
    assert "already recording" in capsys.readouterr().err
    assert steps_of(tmp_path / "outer") == 1, "the program has said itself what a step is"


def test_an_optimizer_that_is_only_there_does_not_hide_inference(tmp_path):
    net, optimizer = model()
    with record(tmp_path / "i"):
        for _ in range(4):
            net(torch.randn(8, 32))
    assert steps_of(tmp_path / "i") == 4
    with record(tmp_path / "t"):
        train(net, optimizer, 3)
    assert steps_of(tmp_path / "t") == 3, "the first forward pass is part of the first step"


def test_our_errors_do_not_reach_the_program(tmp_path, capsys, monkeypatch):
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(Silent), record(tmp_path / "s"):
        raise Silent
    with pytest.raises(SystemExit), record(tmp_path / "x"):
        torch.zeros(10)
        sys.exit(0)
    assert json.loads((tmp_path / "x/rank0.json").read_text())["ended"] == "finished"
    monkeypatch.setattr("oomph.recording.start.history", lambda *_: 1 / 0)
    with record(tmp_path / "n") as rec:
        rec.step()
    assert "nothing is recorded: ZeroDivisionError" in capsys.readouterr().err


def test_generators_and_coroutines_cannot_be_decorated(tmp_path):
    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="cannot be decorated"):
        record(tmp_path)(coroutine)


def test_wrong_arguments_are_said_at_once():
    with pytest.raises(ValueError, match="cuda, cpu"):
        oomph.record(device="tpu")
    with pytest.raises(ValueError, match="positive"):
        oomph.record(max_events=0)


def test_memory_that_grows_raises_the_alarm_once(tmp_path, capsys):
    net, optimizer = model()
    kept = []
    with record(tmp_path / "g"):
        for _ in range(30):
            train(net, optimizer, 1)
            kept.append(torch.zeros(1 << 18))
    said = capsys.readouterr().err
    assert said.count("memory has grown 1.00 MiB per step") == 1


def test_a_folder_that_cannot_be_written_is_no_harm(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    net, optimizer = model()
    with record(tmp_path / "file" / "below"):
        train(net, optimizer, 2)
    assert "part of the recording is missing" in capsys.readouterr().err


COMPATIBLE = """
import copy, io, pickle, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.nn as nn
import torch._dynamo as dynamo
from torch.func import functional_call, grad, vmap
from oomph.recording.names import Names
from oomph.recording.module_tracker import ModuleTracker

said = [""]
tracker = ModuleTracker(Names(), lambda text: said.__setitem__(0, text), lambda: said[0], lambda *a: None, lambda: None)
tracker.install()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.rest(self.first(x))) + x.sum()

x = torch.randn(3, 4)

# Compiled whole, with hooks, and in part.
for hooked in (False, True):
    dynamo.reset()
    net = Net()
    if hooked:
        net.first.register_forward_hook(lambda module, given, result: None)
        net.rest.register_forward_pre_hook(lambda module, given: None)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(x.requires_grad_()).sum().backward()
    assert dynamo.explain(net)(x).graph_break_count == 0
dynamo.reset()
net = Net()
net.rest = torch.compile(net.rest, backend="aot_eager", fullgraph=True)
net(x).sum().backward()

torch.fx.symbolic_trace(Net())(x)
torch.jit.trace(Net().eval(), x)(x)
torch.jit.script(Net())(x)
torch.export.export(Net().eval(), (x,)).module()(x)

net = copy.deepcopy(Net())
net(x).sum().backward()
torch.save(net, io.BytesIO())
pickle.loads(pickle.dumps(net))(x)

net = Net().eval()
parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
grad(lambda p: functional_call(net, (p, buffers), (x,)).sum())(parameters)
vmap(grad(lambda p, x: functional_call(net, (p, buffers), (x[None],)).sum()), in_dims=(None, 0))(parameters, x)

# Hooks of the program's own, changes in place, a second derivative.
seen = []
net = Net()
net.first.register_full_backward_hook(lambda module, given, result: seen.append(module))
y = net(x)
y.register_hook(lambda gradient: gradient * 2)
y.retain_grad()
y += 1
y.sum().backward()
assert seen
z = x.detach().clone().requires_grad_()
(gradient,) = torch.autograd.grad(Net()(z).sum(), z, create_graph=True)
gradient.pow(2).sum().backward()

# A module that returns its parameter must not gather hooks on it.
class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self):
        return self.weight

weight = Weight()
for _ in range(3):
    weight().sum().backward()
assert not weight.weight._backward_hooks

class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("mine")

try:
    nn.Sequential(nn.Linear(4, 4), Fails())(x)
except ValueError:
    assert said == [""] and tracker.here.followed is None
else:
    raise AssertionError("the exception is lost")
print("fine")
"""


def test_what_the_program_does_with_its_modules_still_works(tmp_path):
    # A file: TorchScript reads the source.
    (tmp_path / "program.py").write_text(COMPATIBLE)
    done = python("program.py", cwd=tmp_path)
    assert done.stdout.endswith("fine\n"), done.stderr[-3000:]


def test_recording_inside_of_oomph_run_is_one_recording(predict):
    predict.write(
        """
        import oomph, torch
        with oomph.record("elsewhere") as rec:
            for _ in range(4):
                torch.zeros(1000, device="cuda")
                rec.step()
        """
    )
    done = predict.run("run", "--emulate", "h200", "--python", FORKING_PYTHON.emulated, "-o", "here", "train.py")
    assert done.returncode == 0, done.stderr
    assert steps_of(predict.folder / "here") == 4
    assert not (predict.folder / "elsewhere").exists()
