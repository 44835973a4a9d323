"""Whether cuDNN's heuristics list its Fourier and Winograd engines for a convolution, on this machine's GPU.

    python crates/emulator/measure/listed.py collect FOLDER --of half --seconds 60     on the card
    python crates/emulator/measure/listed.py fit FOLDER OUTPUT --of half               anywhere, with scikit-learn

`cudnn.benchmark=True` allocates the largest workspace of all engines that are listed, which is often one of these
(`src/cudnn/listed.rs`). `collect` asks for the lists of random convolutions of images: `narrow` ones in fp32 with filters of up
to 11, those with such filters in `half` precision, or `wide` ones, whose filters are larger, as in gradients of gradients. `fit`
writes a decision tree for each engine, in the format of `first_choice.py`: the answer is 0 if the engine is not listed, 1 if it
is, and, except for `narrow` ones, 2 if it is listed first.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import random
import time
from collections.abc import Iterator

from cudnn import FALLBACK, FLOAT, HALF, PASSES, Cudnn
from first_choice import CHANNELS, IMAGES, SIDES, USUAL_CHANNELS, USUAL_IMAGES, USUAL_SIDES, Shape, main, written
from first_choice import FEATURES as SIZES
from first_choice import features as sizes

FILTERS = [1] * 7 + [3] * 8 + [2, 4, 5, 5, 7, 7, 11]
WIDE_FILTERS = [12, 13, 14, 15, 16, 16, 17, 20, 21, 24, 25, 28, 31, 32, 32, 48, 56, 63, 64, 64, 96, 112, 128, 128, 224, 256]
MAX_VALUES = 2**30

ENGINES = {3: "forward", 50: "input", 17: "filter", 18: "filter"}
"""The pass of each engine."""
FEATURES = [*SIZES, "stride", "last", "weights"]
KINDS = {"narrow": [FLOAT], "half": [HALF], "wide": [FLOAT, FLOAT, HALF]}
MORE_FEATURES = {"narrow": [], "half": [], "wide": ["half"]}


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
        values = images * max(inputs, outputs) * side * side, inputs * outputs * size * size
        if max(values) <= MAX_VALUES and side + 2 * padding >= size and (of != "wide" or size > FILTERS[-1]):
            yield (
                Shape(images, inputs, outputs, (side, side), size, padding, stride),
                choose([False, False, True]),
                choose(KINDS[of]),
            )


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
            file.write(json.dumps([*shape, int(is_last), int(data_type == HALF), found]) + "\n")


FIRST = 1000
"""Added to the index of an engine that is listed first."""


def features(
    images: int, inputs: int, outputs: int, sides: list[int], size: int, padding: int, stride: int, is_last: int, is_half: int
) -> list[int]:
    return [*sizes(images, inputs, outputs, sides[0], size, padding, stride), stride, is_last, inputs * size * size, is_half]


def applies(engine: int, sides: list[int], size: int, padding: int, stride: int) -> bool:
    """Whether `src/cudnn/fourier.rs` and `winograd.rs` have the engine for such a convolution."""
    if engine == 50:
        return size > 1
    return stride == 1 and (size in (3, 5) if engine == 17 else sides[0] + 2 * padding <= 256)


def answer(of: str, engine: int, found: list[int]) -> int:
    is_first = FIRST + engine in found
    return 2 if is_first and of != "narrow" else int(is_first or engine in found)


def fit(folder: pathlib.Path, output: pathlib.Path, *, of: str) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    new = functools.partial(DecisionTreeClassifier, min_samples_leaf=3, ccp_alpha=2e-5, criterion="entropy", random_state=0)
    lines = []
    names = [*FEATURES, *MORE_FEATURES[of]]
    for engine, step in ENGINES.items():
        asked = [row for row in rows if applies(engine, *row[3:7])]
        values = [features(*row[:-1])[: len(names)] for row in asked]
        answers = [answer(of, engine, row[-1][step]) for row in asked]
        if not any(answers):
            print(f"engine {engine}: never listed for {len(asked)} convolutions")
            continue
        others = range(0, len(asked), 5)
        known = [number for number in range(len(asked)) if number % 5]
        tried = new().fit([values[of] for of in known], [answers[of] for of in known])
        right = sum(map(int.__eq__, map(int, tried.predict([values[of] for of in others])), (answers[of] for of in others)))
        listed = sum(answers[of] > 0 for of in others)
        print(f"engine {engine}: of {len(others)} convolutions left out, {listed} listed, {right} right")
        tree = new().fit(values, answers)
        lines += [f"engine_{engine}", *written(tree.tree_, tree.classes_, names)]
    output.write_text("\n".join(lines) + "\n")


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--of", choices=KINDS, default="narrow", help="which convolutions")


if __name__ == "__main__":
    main(__doc__, collect_part, fit, add_option)
