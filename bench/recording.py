"""What recording costs on a real GPU: step time and the time of a dump, next to PyTorch's own recorder.

    python bench/recording.py [--milliseconds MS] [--rounds N] [--only NAME] [--growing]

Each way to record has processes of its own, which take turns at a few steps each: a machine that changes its pace changes it for
all of them, and nothing is changed in a process that is measured. Within one process the ways could not be compared: Python
needs some hundred steps to get fast again after a function of `torch.nn.Module` has been replaced.

A process is measured once its history is full, as that of a long job. Until then PyTorch asks the system for the history's memory, so
an event takes three times as long (`--growing`); with a million events that is over after some hundred steps.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from oomph import record

EVENTS_PER_ALLOCATION = 3
"""Events of an allocation and its release."""
HISTORY = 1_000_000
"""Events that the history keeps."""

Step = Callable[[], None]

WAYS = {
    "bare": "without a recorder",
    "events": "PyTorch's history without stacks",
    "pytorch": "PyTorch's history with Python stacks, as its guide starts it",
    "auto": "`oomph run`",
    "full": "`oomph run --detail full`",
}
STEADY = 200
"""Steps of a process before it is measured: by then the loop is steady, and Python has specialized its code."""
SKIPPED = 4
"""Steps of a turn that are not counted: another process has had the caches before."""
CORES = 2
"""Of a process that is measured: Python and autograd."""
DEVIATIONS = 2.1
"""Standard errors on each side of an interval of 95%, for some twenty processes."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.after(x))


def training(model: nn.Module, batch: torch.Tensor, optimizer: Callable[..., torch.optim.Optimizer]) -> Step:
    model, batch = model.cuda(), batch.cuda()
    of = optimizer(model.parameters(), lr=1e-4)

    def step() -> None:
        model(batch).square().mean().backward()
        of.step()
        of.zero_grad()

    return step


def transformer(layers: int) -> Step:
    blocks = nn.Sequential(*(Block(256) for _ in range(layers)))
    return training(blocks, torch.randn(4, 64, 256), torch.optim.AdamW)


def resnet(layers: int, batch: int = 2, size: int = 64) -> Step:
    import torchvision

    return training(getattr(torchvision.models, f"resnet{layers}")(), torch.randn(batch, 3, size, size), torch.optim.SGD)


PROGRAMS: dict[str, tuple[Callable[[int], Step], tuple[int, ...]]] = {
    "transformer of width 256, batch 4 x 64, AdamW": (transformer, (8, 10, 12, 14, 16, 18, 20)),
    "ResNet, batch 2 at 64, SGD": (resnet, (50, 101, 152)),
    "ResNet, batch 64 at 224, SGD": (lambda layers: resnet(layers, 64, 224), (50,)),
}
"""The steps of each program by the number of its layers, and the numbers to choose from."""


def begin(way: str) -> None:
    """Starts PyTorch's history in its own ways; in ours, `oomph run` has started it."""
    if way in ("events", "pytorch"):
        context = "all" if way == "pytorch" else None
        torch.cuda.memory._record_memory_history(enabled="all", context=context, stacks="python", max_entries=HISTORY)


def timed(step: Step, count: int) -> tuple[list[float], float]:
    """Milliseconds of each step, and those of processor time of a step on average, over all threads."""
    times = []
    before = time.process_time()
    for _ in range(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return times, 1000 * (time.process_time() - before) / count


def allocations(step: Step) -> int:
    counts = []
    for _ in range(2):
        counts.append(torch.cuda.memory_stats()["allocation.all.allocated"])
        step()
    return counts[1] - counts[0]


def take_turns(name: str, layers: int, way: str, answers: int, *, is_growing: bool) -> None:
    """The process that is measured: takes as many steps as each line on its standard input says."""
    begin(way)
    with os.fdopen(answers, "w") as out:
        step = PROGRAMS[name][0](layers)
        timed(step, STEADY)
        made = allocations(step)
        if not is_growing:
            timed(step, max(0, HISTORY // (EVENTS_PER_ALLOCATION * made) + 1 - STEADY))
        stay_on_cores()
        print(json.dumps(made), file=out, flush=True)
        for line in sys.stdin:
            timed(step, SKIPPED)
            times, processor = timed(step, int(line))
            print(json.dumps({"times": times, "processor": processor}), file=out, flush=True)


def stay_on_cores() -> None:
    """All processes are measured on the same cores: these differ, too. They get ready on all of them."""
    cores = sorted(os.sched_getaffinity(0))[-CORES:]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


class Process:
    """A process that runs a program in one of the ways."""

    def __init__(self, way: str, name: str, layers: int, folder: str, *, is_growing: bool) -> None:
        self.way = way
        self.medians: list[float] = []
        self.processor: list[float] = []
        reading, writing = os.pipe()
        command = [__file__, "--turns", way, str(writing), "--only", name, "--layers", str(layers)]
        command += ["--growing"] if is_growing else []
        if way in ("auto", "full"):
            options = ["--python", sys.executable, "-o", tempfile.mkdtemp(dir=folder), "--detail", way]
            command = [shutil.which("oomph") or "oomph", "run", *options, *command]
        else:
            command = [sys.executable, *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[writing], text=True)
        os.close(writing)
        self.answers = os.fdopen(reading)

    def ready(self) -> int:
        """Waits until it is; returns the number of allocations in a step."""
        return int(self._answer())

    def turn(self, steps: int) -> None:
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        answer = self._answer()
        self.medians.append(statistics.median(answer["times"]))
        self.processor.append(answer["processor"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"error: the process of {WAYS[self.way]} has ended with exit code {self.process.wait()}")
        return json.loads(line)


def fitting(name: str, milliseconds: float, folder: str) -> int:
    """The number of layers whose bare step takes closest to this long."""
    sizes = PROGRAMS[name][1]
    if len(sizes) == 1:
        return sizes[0]
    found = {}
    for layers in sizes:
        process = Process("bare", name, layers, folder, is_growing=True)
        process.ready()
        process.turn(40)
        process.end()
        found[layers] = process.medians[0]
        if found[layers] > milliseconds:
            break
    return min(found, key=lambda layers: abs(found[layers] - milliseconds))


def overhead(name: str, layers: int, ways: list[str], arguments: argparse.Namespace, folder: str) -> None:
    """A row per way. In a round, each process takes its turn, in random order, and is compared with the mean of the bare ones in that
    round. Processes differ by several percent for no reason that can be seen, such as where they lie in memory, so each process is
    one sample, whatever the number of its rounds."""
    processes = {
        way: [Process(way, name, layers, folder, is_growing=arguments.growing) for _ in range(arguments.processes)]
        for way in ways
    }
    everyone = [process for some in processes.values() for process in some]
    made = {process.ready() for process in everyone}
    for _ in range(arguments.rounds):
        for process in random.sample(everyone, len(everyone)):
            process.turn(arguments.steps)
    for process in everyone:
        process.end()
    of = f"{name}, {layers} layers, {' or '.join(map(str, sorted(made)))} allocations"
    for way in ways:
        figures = []
        for values in ("medians", "processor"):
            mine, bare = ([getattr(process, values) for process in processes[each]] for each in (way, "bare"))
            figures.append(f"{statistics.median(itertools.chain(*mine)):.2f}")
            figures.append(spread(more(bare, bare)) if way == "bare" else difference(more(mine, bare), more(bare, bare)))
        print(f"| {of if way == 'bare' else ''} | {WAYS[way]} | {' | '.join(figures)} |", flush=True)


def more(processes: list[list[float]], bare: list[list[float]]) -> list[float]:
    """How much more than the bare ones on average each process takes, in the median of its rounds."""
    rounds = [statistics.mean(turns) for turns in zip(*bare, strict=True)]
    return [statistics.median(took / mean for took, mean in zip(turns, rounds, strict=True)) - 1 for turns in processes]


def difference(shares: list[float], bare: list[float]) -> str:
    """How much more than bare the processes take on average, with an interval that holds it in 95% of cases."""
    mean = statistics.mean(shares) - statistics.mean(bare)
    if len(shares) < 2:
        return f"{mean:+.1%}"
    error = math.sqrt(statistics.variance(shares) / len(shares) + statistics.variance(bare) / len(bare))
    return f"{mean:+.1%} [{mean - DEVIATIONS * error:+.1%}, {mean + DEVIATIONS * error:+.1%}]"


def spread(shares: list[float]) -> str:
    return f"{min(shares):+.1%} to {max(shares):+.1%}"


def dumps(folder: str, steps: int) -> None:
    """Dumps of the same history by both, in turn."""
    step = transformer(12)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours_at = tempfile.mkdtemp(dir=folder)
    with record(ours_at, detail="full") as recording:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ours, theirs = [], []
        for _ in range(3):
            began = time.perf_counter()
            torch.cuda.memory._dump_snapshot(os.path.join(folder, "theirs.pickle"))
            theirs.append(time.perf_counter() - began)
            began = time.perf_counter()
            recording.dump()
            ours.append(time.perf_counter() - began)
        events = sum(len(trace) for trace in torch.cuda.memory._snapshot()["device_traces"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = [(folder, "theirs.pickle"), (ours_at, "rank0.pickle"), (ours_at, "rank0.labels")]
    sizes = [os.path.getsize(os.path.join(*file)) for file in files]
    print(f"\n{events} events: _dump_snapshot {min(theirs):.2f} s ({sizes[0]} bytes), oomph {min(ours):.2f} s ", end="")
    print(f"({sizes[1]} bytes and {sizes[2]} of labels)")
    print(f"host memory: {(kept - before) * 1024 / events:.0f} bytes per event while recording, ", end="")
    print(f"{(peak - kept) * 1024 / events:.0f} more while a dump is written")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20, help="of each process in a round")
    parser.add_argument("--processes", type=int, default=10, help="of each way")
    parser.add_argument("--growing", action="store_true", help="measure while the history grows")
    parser.add_argument("--milliseconds", type=float, default=18, help="about how long a CPU-bound step should take")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--layers", type=int, help="this many instead, with --only")
    parser.add_argument("--dump-steps", type=int, default=150, help="0: no dumps")
    parser.add_argument("--turns", nargs=2, metavar=("WAY", "DESCRIPTOR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.turns:
        way, answers = arguments.turns
        return take_turns(arguments.only, arguments.layers, way, int(answers), is_growing=arguments.growing)
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    print(f"{arguments.rounds} rounds of {arguments.steps} steps, {arguments.processes} processes of each way.\n")
    print(f"The history {'grows' if arguments.growing else 'is full'}. Processes of each way are compared with the bare ones.\n")
    against = "against bare [95% interval]"
    print(f"| program | way | ms per step | {against} | ms of processor time | {against} |\n|{'---|' * 6}")
    ways = ["bare", *(way for way in arguments.ways if way != "bare")]
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:
            if arguments.only in name:
                layers = arguments.layers or fitting(name, arguments.milliseconds, folder)
                overhead(name, layers, ways, arguments, folder)
        if arguments.dump_steps:
            dumps(folder, arguments.dump_steps)


if __name__ == "__main__":
    main()
