"""Which convolutions cuDNN's heuristics give to its Fourier and Winograd engines first, on this machine's GPU.

    python crates/emulator/measure/first_choice.py collect FOLDER --seconds 60     on the card
    python crates/emulator/measure/first_choice.py fit FOLDER OUTPUT               anywhere, with scikit-learn

Without a device, cuDNN leaves these engines out of its lists (`src/cudnn/first_choice.rs`). `collect` asks for the lists of
random convolutions in fp32 with stride 1 and channels first. `fit` writes a decision tree for each pass. Each line of the
output is a question, `FEATURE LIMIT`, followed by the answer for values up to the limit and the answer for others; or the
index of an engine; or 0 for none of these engines.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cudnn import PASSES, Convolution, Cudnn

SIDES = [*range(1, 11), *range(12, 17), *range(18, 33, 2), 36, 40, 48, 50, 56, 60, 64, 72, 80, 96]
SIDES += [100, 104, 112, 120, 128, 144, 160, 192, 224, 240, 256]
CHANNELS = [1, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 58, 64, 72, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224]
CHANNELS += [240, 256, 288, 320, 384, 448, 512, 640, 768, 1024]
IMAGES = [1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 24, 25, 32, 48, 50, 64, 80, 96, 100, 128, 192, 200, 256]
IMAGES += [384, 400, 500, 512, 1000, 1024]
USUAL_SIDES = [*range(1, 15), 16, 17, 20, 24, 26, 27, 28, 30, 32, 35, 40, 48, 52, 55, 56, 60, 64, 71, 72, 73, 75, 80, 96]
USUAL_SIDES += [104, 109, 112, 120, 128, 147, 149, 160, 192, 208, 224, 256]
USUAL_CHANNELS = [*range(8, 256, 8), *range(256, 1025, 32), 1152, 1280, 1536, 2048, 3, 4, 10, 12, 20, 30, 58, 60, 116]
USUAL_IMAGES = [1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512]
FILTERS = [3, 3, 3, 3, 4, 5, 5, 7, 8, 9, 9, 9, 10, 11, 11]
MAX_NARROW = 7
"""Filters up to this size have a tree of their own."""
MAX_VALUES = 2**29

ENGINES = {"forward": {3, 6}, "input": {50, 7}, "filter": {17, 18}}
FEATURES = ["images", "inputs", "outputs", "side", "filter", "padding", "positions", "pixels", "planes", "products"]

CollectPart = Callable[..., None]
"""Writes what it finds into a file, with a seed, for some seconds; what else it takes are the options of a script."""


class Shape(NamedTuple):
    """A convolution. `sides` are those of images, or of volumes; filter, padding and stride are the same in all directions."""

    images: int
    inputs: int
    outputs: int
    sides: tuple[int, ...]
    filter: int
    padding: int
    stride: int = 1
    groups: int = 1

    def convolution(self) -> Convolution:
        images, inputs, outputs, sides, filter, padding, stride, groups = self
        results = [(side + 2 * padding - filter) // stride + 1 for side in sides]
        of_filters = outputs, inputs // groups, *[filter] * len(sides)
        sizes = (images, inputs, *sides), of_filters, (images, outputs, *results)
        padding_in_each, stride_in_each = ((value,) * len(sides) for value in (padding, stride))
        return Convolution(*sizes, padding_in_each, stride_in_each, (1,) * len(sides))


def shapes(seed: int) -> Iterator[Shape]:
    choose = random.Random(seed).choice
    sides, channels, numbers = [*SIDES, *USUAL_SIDES], [*CHANNELS, *USUAL_CHANNELS], [*IMAGES, *USUAL_IMAGES, 1, 1, 2, 4]
    while True:
        size, side, images = choose(FILTERS), choose(sides), choose(numbers)
        inputs, outputs, padding = choose(channels), choose(channels), choose([size // 2, size // 2, size // 2, 0, 1, 2])
        if images * max(inputs, outputs) * side * side <= MAX_VALUES and side + 2 * padding >= size:
            yield Shape(images, inputs, outputs, (side, side), size, padding)


def collect_part(path: pathlib.Path, seed: int, seconds: float) -> None:
    cudnn = Cudnn()
    began = time.monotonic()
    with path.open("w") as file:
        for shape in shapes(seed):
            if time.monotonic() - began > seconds:
                return
            images, inputs, outputs, (side, _), size, padding, *_ = shape
            convolution = shape.convolution()
            engines = [cudnn.first_engine(convolution, step) for step in PASSES]
            file.write(json.dumps([images, inputs, outputs, side, size, padding, *engines]) + "\n")


def collect(folder: pathlib.Path, seconds: float, collect_part: CollectPart, options: dict[str, Any]) -> None:
    """Collects a part in each of as many processes as there are cores."""
    folder.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    parts = [(folder / f"part{part}.jsonl", part, seconds) for part in range(os.cpu_count() or 1)]
    processes = [spawn.Process(target=collect_part, args=part, kwargs=options) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def features(images: int, inputs: int, outputs: int, side: int, size: int, padding: int, stride: int = 1) -> list[int]:
    positions = images * ((side + 2 * padding - size) // stride + 1) ** 2
    planes = inputs * outputs
    sizes = [positions, images * side * side, planes, positions * planes * size * size]
    return [images, inputs, outputs, side, size, padding, *sizes]


def fit(folder: pathlib.Path, output: pathlib.Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    values = [features(*row[:6]) for row in rows]
    new = functools.partial(DecisionTreeClassifier, min_samples_leaf=2, ccp_alpha=2e-5, criterion="entropy", random_state=0)
    lines = []
    for index, step in enumerate(PASSES):
        engines = [row[6 + index] if row[6 + index] in ENGINES[step] else 0 for row in rows]
        lines += [step, f"filter {MAX_NARROW}"]
        for is_wide in (False, True):
            indices = [number for number, row in enumerate(rows) if (row[4] > MAX_NARROW) == is_wide]
            others, known = indices[::5], [number for place, number in enumerate(indices) if place % 5]
            tried = new().fit([values[number] for number in known], [engines[number] for number in known])
            guesses = map(int, tried.predict([values[number] for number in others]))
            pairs = [(guess, engines[number]) for guess, number in zip(guesses, others, strict=True)]
            right = sum(guess == engine != 0 for guess, engine in pairs)
            missed = sum(guess == 0 != engine for guess, engine in pairs)
            wrong = sum(guess not in (0, engine) for guess, engine in pairs)
            print(f"{step}: of {len(pairs)} convolutions left out, {right} right, {missed} missed, {wrong} wrong")
            tree = new().fit([values[number] for number in indices], [engines[number] for number in indices])
            lines += written(tree.tree_, tree.classes_, FEATURES)
    output.write_text("\n".join(lines) + "\n")


def written(tree: Any, classes: Any, names: list[str], node: int = 0) -> list[str]:
    """The lines of a tree."""
    left, right = tree.children_left[node], tree.children_right[node]
    if left == right:
        return [str(classes[tree.value[node][0].argmax()])]
    answers = written(tree, classes, names, left), written(tree, classes, names, right)
    if answers[0] == answers[1] and len(answers[0]) == 1:
        return answers[0]
    return [f"{names[tree.feature[node]]} {int(tree.threshold[node])}", *answers[0], *answers[1]]


def main(
    description: str | None,
    collect_part: CollectPart,
    fit: Callable[..., None],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=pathlib.Path)
    collecting.add_argument("--seconds", type=float, default=60)
    fitting = commands.add_parser("fit")
    fitting.add_argument("folder", type=pathlib.Path)
    fitting.add_argument("output", type=pathlib.Path)
    for command in (collecting, fitting):
        add_options(command)
    options = vars(parser.parse_args())
    if options.pop("command") == "collect":
        collect(options.pop("folder"), options.pop("seconds"), collect_part, options)
    else:
        fit(options.pop("folder"), options.pop("output"), **options)


if __name__ == "__main__":
    main(__doc__, collect_part, fit)
