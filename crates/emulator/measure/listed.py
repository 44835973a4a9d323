"""Whether cuDNN's heuristics list its Fourier and Winograd engines for a convolution, on this machine's GPU.

    python crates/emulator/measure/listed.py collect FOLDER --seconds 60     on the card
    python crates/emulator/measure/listed.py fit FOLDER OUTPUT               anywhere, with scikit-learn

`cudnn.benchmark=True` allocates the largest workspace of all engines that are listed, which is often one of these
(`src/cudnn/listed.rs`). `collect` asks for the lists of random convolutions of images in fp32. `fit` writes a decision tree for
each engine, in the format of `first_choice.py`: the answer is 1 if the engine is listed, and 0 if not.
"""

from __future__ import annotations

import functools
import json
import pathlib
import random
import time
from collections.abc import Iterator

from cudnn import FALLBACK, PASSES, Cudnn
from first_choice import CHANNELS, IMAGES, SIDES, USUAL_CHANNELS, USUAL_IMAGES, USUAL_SIDES, Shape, main, written
from first_choice import FEATURES as SIZES
from first_choice import features as sizes

FILTERS = [1] * 7 + [3] * 8 + [2, 4, 5, 5, 7, 7, 11]
MAX_VALUES = 2**30

ENGINES = {3: "forward", 50: "input", 17: "filter", 18: "filter"}
"""The pass of each engine."""
FEATURES = [*SIZES, "stride", "last", "weights"]


def shapes(seed: int) -> Iterator[tuple[Shape, bool]]:
    """Convolutions, half of them of usual sizes, and whether their channels come last."""
    chance = random.Random(seed)
    choose = chance.choice
    while True:
        is_usual = choose([False, True])
        channels = USUAL_CHANNELS if is_usual else CHANNELS
        side, images = choose(USUAL_SIDES if is_usual else SIDES), choose(USUAL_IMAGES if is_usual else IMAGES)
        size, stride, inputs = choose(FILTERS), choose([1, 1, 1, 2]), choose(channels)
        outputs, padding = choose([inputs, choose(channels), choose(channels)]), choose([size // 2, size // 2, size // 2, 0, 1])
        if images * max(inputs, outputs) * side * side <= MAX_VALUES and side + 2 * padding >= size:
            yield Shape(images, inputs, outputs, (side, side), size, padding, stride), choose([False, False, True])


def collect_part(path: pathlib.Path, seed: int, seconds: float) -> None:
    cudnn = Cudnn()
    began = time.monotonic()
    with path.open("w") as file:
        for shape, is_last in shapes(seed):
            if time.monotonic() - began > seconds:
                return
            convolution = shape.convolution()
            # PyTorch tries those of both lists.
            listed = {step: {*cudnn.engines(convolution, step, channels_last=is_last)} for step in PASSES}
            for step, engines in listed.items():
                engines |= {*cudnn.engines(convolution, step, channels_last=is_last, mode=FALLBACK)}
            found = {step: [engine for engine in ENGINES if engine in engines] for step, engines in listed.items()}
            file.write(json.dumps([*shape, int(is_last), found]) + "\n")


def features(
    images: int, inputs: int, outputs: int, sides: list[int], size: int, padding: int, stride: int, is_last: int
) -> list[int]:
    return [*sizes(images, inputs, outputs, sides[0], size, padding, stride), stride, is_last, inputs * size * size]


def applies(engine: int, sides: list[int], size: int, padding: int, stride: int) -> bool:
    """Whether `src/cudnn/fourier.rs` and `winograd.rs` have the engine for such a convolution."""
    if engine == 50:
        return size > 1
    return stride == 1 and (size in (3, 5) if engine == 17 else sides[0] + 2 * padding <= 256)


def fit(folder: pathlib.Path, output: pathlib.Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    new = functools.partial(DecisionTreeClassifier, min_samples_leaf=3, ccp_alpha=2e-5, criterion="entropy", random_state=0)
    lines = []
    for engine, step in ENGINES.items():
        asked = [row for row in rows if applies(engine, *row[3:7])]
        values = [features(*row[:-1]) for row in asked]
        answers = [int(engine in row[-1][step]) for row in asked]
        others = range(0, len(asked), 5)
        known = [number for number in range(len(asked)) if number % 5]
        tried = new().fit([values[of] for of in known], [answers[of] for of in known])
        right = sum(map(int.__eq__, map(int, tried.predict([values[of] for of in others])), (answers[of] for of in others)))
        listed = sum(answers[of] for of in others)
        print(f"engine {engine}: of {len(others)} convolutions left out, {listed} listed, {right} right")
        tree = new().fit(values, answers)
        lines += [f"engine_{engine}", *written(tree.tree_, tree.classes_, FEATURES)]
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(__doc__, collect_part, fit)
