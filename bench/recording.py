"""What recording costs on a real GPU: step time and the time of a dump, next to PyTorch's own recorder.

    python bench/recording.py [--rounds N] [--only NAME]

One process per program alternates between the ways to record, so a machine that changes its pace changes it for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from oomph import record

Step = Callable[[], None]

WAYS = {
    "bare": "without a recorder",
    "events": "PyTorch's history without stacks",
    "pytorch": "PyTorch's history with Python stacks, as its guide starts it",
    "auto": "`oomph run`",
    "full": "`oomph run --detail full`",
}
STEADY = 8
"""Steps before a measurement: three equal ones make a steady loop."""


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


def resnet(batch: int, size: int) -> Step:
    import torchvision

    return training(torchvision.models.resnet50(), torch.randn(batch, 3, size, size), torch.optim.SGD)


PROGRAMS: dict[str, Callable[[], Step]] = {
    "transformer, 8 layers of width 256, batch 4 x 64, AdamW": lambda: transformer(8),
    "transformer, 12 layers of width 256, batch 4 x 64, AdamW": lambda: transformer(12),
    "ResNet-50, batch 2 at 64, SGD": lambda: resnet(2, 64),
    "ResNet-50, batch 64 at 224, SGD": lambda: resnet(64, 224),
}


@contextlib.contextmanager
def recorded(way: str, folder: str) -> Iterator[None]:
    if way == "bare":
        yield
    elif way in ("events", "pytorch"):
        context = "all" if way == "pytorch" else None
        torch.cuda.memory._record_memory_history(enabled="all", context=context, stacks="python", max_entries=1_000_000)
        yield
        torch.cuda.memory._record_memory_history(enabled=None)
    else:
        with record(folder, detail=way, holders=False):
            yield


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


def overhead(name: str, ways: list[str], rounds: int, steps: int, folder: str) -> None:
    """A row per way. A round has each way once, in random order. The median step and the processor time are compared within a
    round, and the fastest tenth of all steps with that of bare ones: what other processes of the machine do only ever makes a
    step slower."""
    step = PROGRAMS[name]()
    timed(step, 20)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    step()
    allocations = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    medians: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    all_steps: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in random.sample(ways, len(ways)):
            with recorded(way, folder):
                timed(step, STEADY)
                times, used = timed(step, steps)
            medians[way].append(statistics.median(times))
            processor[way].append(used)
            all_steps[way] += times
            gc.collect()
    fastest = {way: statistics.quantiles(times, n=10)[0] for way, times in all_steps.items()}
    for way, values in medians.items():
        if way == "bare":
            of, against = f"{name}, {allocations} allocations", ["", "", ""]
        else:
            of_fastest = f"{100 * (fastest[way] / fastest['bare'] - 1):+.1f}%"
            of, against = "", [more(values, medians["bare"]), more(processor[way], processor["bare"]), of_fastest]
        figures = zip((statistics.median(values), statistics.median(processor[way]), fastest[way]), against, strict=True)
        print(f"| {of} | {WAYS[way]} | {' | '.join(f'{value:.2f} | {than}' for value, than in figures)} |", flush=True)


def more(values: list[float], bare: list[float]) -> str:
    """How much more than bare, round by round: the median, its 95% confidence interval, and the quartiles."""
    ratios = sorted(100 * (of / without - 1) for of, without in zip(values, bare, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    # The number of values below the median of all possible rounds is binomial.
    margin = round(0.98 * len(ratios) ** 0.5)
    first, last = ratios[max(0, len(ratios) // 2 - margin)], ratios[min(len(ratios) - 1, len(ratios) // 2 + margin)]
    return f"{middle:+.1f}% [{first:+.1f}, {last:+.1f}] ({low:+.1f} to {high:+.1f})"


def dumps(folder: str, steps: int) -> None:
    """Dumps of the same history by both, in turn."""
    step = PROGRAMS["transformer, 12 layers of width 256, batch 4 x 64, AdamW"]()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with record(folder, detail="full") as recording:
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
    sizes = [os.path.getsize(os.path.join(folder, name)) for name in ("theirs.pickle", "rank0.pickle", "rank0.labels")]
    print(f"\n{events} events: _dump_snapshot {min(theirs):.2f} s ({sizes[0]} bytes), oomph {min(ours):.2f} s ", end="")
    print(f"({sizes[1]} bytes and {sizes[2]} of labels)")
    print(f"host memory: {(kept - before) * 1024 / events:.0f} bytes per event while recording, ", end="")
    print(f"{(peak - kept) * 1024 / events:.0f} more while a dump is written")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--dump-steps", type=int, default=150, help="0: no dumps")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    print(f"{arguments.rounds} rounds of {arguments.steps} steps.\n")
    print(
        "| program | way | ms per step | against bare [95% interval] (quartiles) | ms of processor time | against bare | ", end=""
    )
    print("fastest tenth | against bare |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:
            if arguments.only in name:
                overhead(
                    name, ["bare", *(way for way in arguments.ways if way != "bare")], arguments.rounds, arguments.steps, folder
                )
        if arguments.dump_steps:
            dumps(folder, arguments.dump_steps)


if __name__ == "__main__":
    main()
