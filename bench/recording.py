"""What recording costs on a real GPU: step time and the time of a dump, beside PyTorch's own recorder.

    python bench/recording.py [--rounds N] [--steps N]

Training GPT-2 small (batch 4 × 256, AdamW, fp32) in one process; rounds of every way in turn, so that a machine that
changes its pace changes it for all.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from oomph import record

WAYS = ("off", "pytorch", "oomph")
APART = ("oomph without modules", "oomph without labels")


@contextlib.contextmanager
def recorded(way: str, folder: str) -> Iterator[None]:
    if way == "off":
        yield
    elif way == "pytorch":
        torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=1_000_000)
        yield
        torch.cuda.memory._record_memory_history(enabled=None)
    else:
        with record(folder, modules=way != "oomph without modules", labels=way != "oomph without labels"):
            yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--apart", action="store_true", help="also without modules and without labels")
    parser.add_argument("--dump-steps", type=int, default=150)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 50257, (4, 256), device="cuda")

    def step() -> None:
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(count: int) -> list[float]:
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            began = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return times

    timed(20)
    ways = (*WAYS, *APART) if arguments.apart else WAYS
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for way in ways:
                with recorded(way, folder):
                    timed(6)
                    times[way] += timed(arguments.steps)
        print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
        print("| way | ms per step: lower quartile | median | against off | against pytorch |\n|---|---|---|---|---|")
        # The host disturbs some steps; the lower quartile is of those that it left alone.
        of_way = {way: statistics.quantiles(times[way], n=4) for way in ways}
        for way, (low, middle, _) in of_way.items():
            ratios = [f"{100 * (low / of_way[to][0] - 1):+.1f}%" for to in ("off", "pytorch")]
            print(f"| {way} | {1000 * low:.2f} | {1000 * middle:.2f} | {ratios[0]} | {ratios[1]} |")
        dumps(step, folder, arguments.dump_steps)


def dumps(step: object, folder: str, steps: int) -> None:
    """Dumps of the same history by both, in turn."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with record(folder) as recording:
        for _ in range(steps):
            step()  # type: ignore[operator]
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
    print(f"host memory: {(kept - before) * 1024 / events:.0f} bytes an event while recording, ", end="")
    print(f"{(peak - kept) * 1024 / events:.0f} more while a dump is written")


if __name__ == "__main__":
    main()
