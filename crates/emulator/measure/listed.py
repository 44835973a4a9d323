"""Whether cuDNN's heuristics list its Fourier and Winograd engines for a convolution, on this machine's GPU.

    python crates/emulator/measure/listed.py collect FOLDER --of half --seconds 60     on the card
    python crates/emulator/measure/listed.py fit FOLDER OUTPUT --of half               anywhere, with scikit-learn

`cudnn.benchmark=True` allocates the largest workspace of all engines that are listed, which is often one of these
(`src/cudnn/listed.rs`). `collect` asks for the lists of random convolutions of images: those in fp32 with `narrow` filters of up
to 11, those in `half` precision, those with groups, and `wide` ones, whose filters are larger, as in gradients of gradients.
`fit` writes a decision tree for each engine, in the format of `first_choice.py`: the answer is 0 if the engine is not listed, 1
if it is, and, except for `narrow` ones, 2 if it is listed first.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from cudnn import BFLOAT16, FALLBACK, FLOAT, HALF, PASSES, Cudnn
from first_choice import CHANNELS, IMAGES, SIDES, USUAL_CHANNELS, USUAL_IMAGES, USUAL_SIDES, Shape, main, written
from first_choice import FEATURES as SIZES
from first_choice import features as sizes

FILTERS = [1] * 7 + [3] * 8 + [2, 4, 5, 5, 7, 7, 11]
WIDE_FILTERS = [12, 13, 14, 15, 16, 16, 17, 20, 21, 24, 25, 28, 31, 32, 32, 48, 56, 63, 64, 64, 96, 112, 128, 128, 224, 256]
GROUPS = [2, 2, 3, 4, 4, 6, 8, 8, 16, 16, 24, 32, 32, 64]
GROUP_WIDTHS = [1, 4, 8, 8, 16, 16, 24, 32, 32, 48, 64, 64]
MAX_VALUES = 2**30

ENGINES = {3: "forward", 6: "forward", 50: "input", 7: "input", 17: "filter", 18: "filter"}
"""The pass of each engine."""
WINOGRAD = 6, 7, 17
KINDS = {"narrow": [FLOAT], "half": [HALF, HALF, BFLOAT16], "grouped": [FLOAT, HALF, BFLOAT16], "wide": [FLOAT, FLOAT, HALF]}
ALIGNED = 8
"""Values that a kernel reads at once, at most."""
FEATURES = [*SIZES, "stride", "last", "weights"]
MORE_FEATURES = ["groups", "half", "bfloat16", "input_alignment", "output_alignment", "image_alignment", "result_alignment"]
FIRST = 1000
"""Added to the index of an engine that is listed first."""


class Row(NamedTuple):
    shape: Shape
    is_last: int
    data_type: int
    found: dict[str, list[int]]


def shapes(of: str, seed: int) -> Iterator[tuple[Shape, bool, int]]:
    """Convolutions, half of them of usual sizes, whether their channels come last, and their type."""
    chance = random.Random(seed)
    choose = chance.choice
    while True:
        is_usual = choose([False, True])
        channels = USUAL_CHANNELS if is_usual else CHANNELS
        side, images = choose(USUAL_SIDES if is_usual else SIDES), choose(USUAL_IMAGES if is_usual else IMAGES)
        stride, inputs = choose([1, 1, 1, 2]), choose(channels)
        if of == "wide":
            # The gradient of a filter by the gradient of its output is a convolution with the output as the filter.
            size, padding = choose([*WIDE_FILTERS, *[side] * 10]), choose([0, 0, 1, 1, 2, 3, side // 2])
        else:
            size = choose(FILTERS)
            padding = choose([size // 2, size // 2, size // 2, 0, 1])
        outputs = choose([inputs, choose(channels), choose(channels)])
        groups = 1 if of != "grouped" else choose([choose(GROUPS), inputs // choose(GROUP_WIDTHS)])
        if of == "grouped" and (groups < 2 or inputs % groups or outputs % groups):
            continue
        values = images * max(inputs, outputs) * side * side, inputs * outputs * size * size
        if max(values) <= MAX_VALUES and side + 2 * padding >= size and (of != "wide" or size > FILTERS[-1]):
            shape = Shape(images, inputs, outputs, (side, side), size, padding, stride, groups)
            yield shape, choose([False, False, True]), choose(KINDS[of])


def collect_part(path: pathlib.Path, seed: int, seconds: float, *, of: str) -> None:
    cudnn = Cudnn()
    began = time.monotonic()
    with path.open("w") as file:
        for shape, is_last, data_type in shapes(of, seed):
            if time.monotonic() - began > seconds:
                return
            ask = functools.partial(cudnn.engines, shape.convolution(), data_type=data_type, channels_last=is_last)
            found = {}
            for step in PASSES:
                # PyTorch tries those of both lists.
                listed = [*ask(step), *ask(step, mode=FALLBACK)]
                found[step] = [engine for engine in ENGINES if engine in listed[1:]]
                if listed and listed[0] in ENGINES:
                    found[step].insert(0, FIRST + listed[0])
            file.write(json.dumps([shape, int(is_last), data_type, found]) + "\n")


def features(row: Row) -> list[int]:
    """Those of one group."""
    images, all_inputs, all_outputs, (side, _), size, padding, stride, groups = row.shape
    inputs, outputs, result = all_inputs // groups, all_outputs // groups, (side + 2 * padding - size) // stride + 1
    alignments = [alignment(inputs), alignment(outputs), alignment(side * side), alignment(result * result)]
    of_one = sizes(images, inputs, outputs, side, size, padding, stride)
    types = [int(row.data_type == of) for of in (HALF, BFLOAT16)]
    return [*of_one, stride, row.is_last, inputs * size * size, groups, *types, *alignments]


def alignment(values: int) -> int:
    """The largest power of two that divides a number of values, up to `ALIGNED`."""
    return min(values & -values, ALIGNED)


def applies(engine: int, row: Row) -> bool:
    """Whether `src/cudnn/fourier.rs` and `winograd.rs` have the engine for such a convolution."""
    _, _, _, (side, _), size, padding, stride, groups = row.shape
    if engine in WINOGRAD:
        is_half = row.data_type != FLOAT
        return stride == 1 and size in (3, 5) and (engine == 17 or (is_half and groups > 1 and not row.is_last))
    if row.data_type == BFLOAT16 or (row.data_type == HALF and engine == 18):
        return False
    return size > 1 if engine == 50 else stride == 1 and side + 2 * padding <= 256


def answer(of: str, engine: int, found: list[int]) -> int:
    is_first = FIRST + engine in found
    return 2 if is_first and of != "narrow" else int(is_first or engine in found)


def fit(folder: pathlib.Path, output: pathlib.Path, *, of: str) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = list(read(folder))
    alpha = 2e-5 if of == "narrow" else 5e-5
    new = functools.partial(DecisionTreeClassifier, min_samples_leaf=3, ccp_alpha=alpha, criterion="entropy", random_state=0)
    lines = []
    names = FEATURES if of == "narrow" else [*FEATURES, *MORE_FEATURES]
    for engine, step in ENGINES.items():
        asked = [row for row in rows if applies(engine, row)]
        values = [features(row)[: len(names)] for row in asked]
        answers = [answer(of, engine, row.found[step]) for row in asked]
        if not any(answers):
            print(f"engine {engine}: never listed for {len(asked)} convolutions")
            lines += [f"engine_{engine}", "0"]
            continue
        others = range(0, len(asked), 5)
        known = [number for number in range(len(asked)) if number % 5]
        tried = new().fit([values[of] for of in known], [answers[of] for of in known])
        pairs = [*zip(map(int, tried.predict([values[of] for of in others])), (answers[of] for of in others))]
        listed, right = sum(real > 0 for _, real in pairs), sum(guess == real for guess, real in pairs)
        found, wrong = sum(guess > 0 < real for guess, real in pairs), sum(guess > 0 == real for guess, real in pairs)
        print(f"engine {engine}: of {len(pairs)} left out, {right} right;", end=" ")
        print(f"{found} of {listed} listed ones found, {wrong} others taken for one")
        tree = new().fit(values, answers)
        lines += [f"engine_{engine}", *written(tree.tree_, tree.classes_, names)]
    output.write_text("\n".join(lines) + "\n")


def read(folder: pathlib.Path) -> Iterator[Row]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.open():
            with_lists: list[Any] = json.loads(line)
            yield Row(Shape(*with_lists[0]), *with_lists[1:])


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--of", choices=KINDS, default="narrow", help="which convolutions")


if __name__ == "__main__":
    main(__doc__, collect_part, fit, add_option)
