"""What `cudnn.benchmark=True` allocates for a convolution, and which engine it keeps, on this machine's GPU.

    python crates/emulator/measure/models.py list CONVOLUTIONS                              anywhere
    python crates/emulator/measure/autotuned.py collect CONVOLUTIONS FOLDER --seconds 60    on the card, and on the emulated GPU
    python crates/emulator/measure/autotuned.py compare FOLDER FOLDER                       on the card first

`collect` runs convolutions of public models, with a random number of images, type and layout, twice in each pass: PyTorch tries
all engines in the first call and uses the fastest one from then on. It writes what each call allocates besides its result, and
the engines that cuDNN lists. `--given` are convolutions with all of that, in place of random ones.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import math
import multiprocessing
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from cudnn import BFLOAT16, FLOAT, HALF, Convolution, Cudnn
from models import Layer, answers

MAX_VALUES = 2**28
MAX_PRODUCTS = 3 * 10**11
"""Multiplications of a convolution: more take too long with the slowest of the engines."""


def layers(convolutions: list[Convolution], seed: int) -> Iterator[Layer]:
    choose = random.Random(seed).choice
    while True:
        layer = Layer.random(convolutions, choose)
        products = math.prod(layer.convolution.y) * math.prod(layer.convolution.w[1:])
        if layer.values() <= MAX_VALUES and products <= MAX_PRODUCTS:
            yield layer


def collect_part(path: pathlib.Path, of: Iterator[Layer], seconds: float) -> None:
    import torch

    torch.backends.cudnn.benchmark = True
    cudnn, began = Cudnn(), time.monotonic()
    with path.open("w") as file:
        for layer in of:
            if time.monotonic() - began > seconds:
                return
            for step, call in calls(layer).items():
                engines: list[tuple[int, int]] = []
                with contextlib.suppress(RuntimeError):  # cuDNN does not have it
                    engines = [
                        *cudnn.plans(layer.convolution, step, data_type=layer.data_type, channels_last=layer.channels_last)
                    ]
                try:
                    allocated = [beyond_result(call) for _ in range(2)]
                except RuntimeError as error:
                    print(type(error).__name__, layer, step, flush=True)
                    allocated = []
                row = [layer.data_type, int(layer.channels_last), step, layer.convolution, allocated, engines]
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()


def calls(layer: Layer) -> dict[str, Callable[[], Any]]:
    """A call of PyTorch for each pass."""
    import torch

    convolution = layer.convolution
    data_type = {FLOAT: torch.float32, HALF: torch.float16, BFLOAT16: torch.bfloat16}[layer.data_type]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats[len(convolution.x)] if layer.channels_last else torch.contiguous_format

    def new(sizes: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(tuple(sizes), dtype=data_type, device="cuda", memory_format=layout).normal_()

    x, w, y = map(new, (convolution.x, convolution.w, convolution.y))
    groups = convolution.x[1] // convolution.w[1]
    window = (convolution.stride, convolution.padding, convolution.dilation, False, [0] * len(convolution.padding), groups)
    operators = torch.ops.aten
    return {
        "forward": lambda: operators.convolution(x, w, None, *window),
        "input": lambda: operators.convolution_backward(y, x, w, None, *window, [True, False, False]),
        "filter": lambda: operators.convolution_backward(y, x, w, None, *window, [False, True, False]),
    }


def beyond_result(call: Callable[[], Any]) -> int:
    """Bytes that a call requests at most, besides its result."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    counters = torch.cuda.memory_stats()
    del result
    return int(counters["requested_bytes.all.peak"] - counters["requested_bytes.all.current"])


def collect(source: pathlib.Path, folder: pathlib.Path, options: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = json.loads(source.read_text())
    context = multiprocessing.get_context("spawn")
    processes = []
    for part in range(options.parts):
        path = folder / f"part{part:03}.jsonl"
        processes.append(context.Process(target=collect_one, args=(path, rows, part, options)))
        processes[-1].start()
    for process in processes:
        process.join()


def collect_one(path: pathlib.Path, rows: list[Any], part: int, options: argparse.Namespace) -> None:
    if options.given:
        given = [Layer(data_type, bool(last), Convolution(*convolution)) for data_type, last, convolution in rows]
        of: Iterator[Layer] = iter(given[part :: options.parts])
    else:
        of = layers([Convolution(*row) for row in rows], options.first_seed + part)
    collect_part(path, itertools.islice(of, options.limit), options.seconds)


def compare(card: pathlib.Path, emulated: pathlib.Path, *, shown: int) -> None:
    theirs = dict(answers(emulated))
    totals: dict[tuple[Any, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    misses = []
    for name, (data_type, last, step, convolution, allocated, engines) in answers(card):
        other = theirs.get(name)
        if other is None or not allocated or not other[4]:
            continue
        for which, real, guess in zip(("trial", "then"), allocated, other[4], strict=True):
            total = totals["fp32" if data_type == FLOAT else "half", bool(last), step]
            total["asked"] += which == "trial"
            total[which] += abs(real - guess) <= 1024
            total[f"{which} within 1 MiB"] += abs(real - guess) <= 1 << 20
            if abs(real - guess) > 1 << 20:
                misses.append((abs(real - guess), which, real, guess, data_type, last, step, convolution, engines, other[5]))
    for kind, total in sorted(totals.items()):
        print(*kind, dict(total))
    print(dict(sum(totals.values(), collections.Counter())))
    for miss in sorted(misses, key=lambda miss: -miss[0])[:shown]:
        print(*(str(part).replace(" ", "") for part in miss[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    collecting = commands.add_parser("collect")
    collecting.add_argument("convolutions", type=pathlib.Path)
    collecting.add_argument("folder", type=pathlib.Path)
    collecting.add_argument("--given", action="store_true", help="run exactly these")
    collecting.add_argument("--parts", type=int, default=1, help="processes, which disturb each other's times")
    collecting.add_argument("--first-seed", type=int, default=0)
    collecting.add_argument("--limit", type=int, default=100_000, help="convolutions of each part")
    collecting.add_argument("--seconds", type=float, default=math.inf)
    comparing = commands.add_parser("compare")
    comparing.add_argument("card", type=pathlib.Path)
    comparing.add_argument("emulated", type=pathlib.Path)
    comparing.add_argument("--shown", type=int, default=40)
    arguments = parser.parse_args()
    if arguments.command == "collect":
        collect(arguments.convolutions, arguments.folder, arguments)
    else:
        compare(arguments.card, arguments.emulated, shown=arguments.shown)


if __name__ == "__main__":
    main()
