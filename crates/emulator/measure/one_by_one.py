"""Which 1×1 convolutions cuDNN's heuristics give to cuBLASLt first, on this machine's GPU, and with which workspace.

    python crates/emulator/measure/models.py list FOLDER/convolutions.json       anywhere
    python crates/emulator/measure/one_by_one.py collect FOLDER --seconds 60     on the card
    python crates/emulator/measure/one_by_one.py fit FOLDER OUTPUT               anywhere, with scikit-learn

Without a device, cuDNN leaves this engine out of its lists (`src/cudnn/matrix_product.rs`). `collect` asks for the first
choices for convolutions with stride 1: those of public models in half of the cases, with a random number of images and often
with sides or channels changed, and random ones otherwise. `fit` writes decision trees for each pass, as first_choice.py does,
into the folder OUTPUT: one file for fp32, one for half precision, both with channels first, and one for all types with channels
last. Their answers are -1 for another engine, or what `answer` says about the workspace.
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
import random
import time
from typing import NamedTuple

from cudnn import BFLOAT16, FLOAT, HALF, PASSES, Cudnn
from first_choice import Shape, main, written

SIDES = [*range(1, 11), *range(12, 19), 20, 24, 28, 30, 32, 35, 40, 48, 56, 64, 80, 96, 112, 128]
CHANNELS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 58, 64, 72, 80, 96, 100, 112, 116, 120, 128, 144, 160, 176]
CHANNELS += [192, 208, 224, 240, 256, 288, 320, 384, 448, 480, 512, 576, 640, 672, 768, 832, 896, 960, 1024, 1152, 1280]
CHANNELS += [1536, 2048, 3072, 4096]
IMAGES = [1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 24, 32, 48, 50, 64, 80, 96, 100, 128, 192, 200, 256, 512, 1000]
MAX_VALUES = 2**29

KINDS = [(data_type, channels_last) for channels_last in (False, True) for data_type in (FLOAT, HALF, BFLOAT16)]
KINDS += [(FLOAT, False)] * 2

CUBLASLT = {"forward": 58, "input": 63, "filter": 62}
"""Index of the engine in each pass."""
SUM_BYTES = 4
DESCRIPTIONS = [0, 256, 272, 288, 304, 320, 336, 400, 416]
"""Bytes that a workspace may have besides sums."""
PARTS_UNIT = 1000
FEATURES = ["images", "inputs", "outputs", "positions", "alignment", "columns", "planes", "read", "written", "products"]
FEATURES += ["bfloat16", "float", "depth", "height", "width"]


LENGTHS = [1, 7, 12, 16, 24, 32, 48, 50, 64, 72, 96, 100, 128, 144, 192, 197, 256, 336, 400, 512, 720, 1000, 1024, 2048, 4096]
DEPTHS = [1, 2, 4, 5, 8, 10, 16, 20, 32]
SIDES_OF = [
    lambda choose: (side := choose(SIDES), side),
    lambda choose: (choose(SIDES), choose(SIDES)),
    lambda choose: (1, choose(LENGTHS)),
    lambda choose: (choose(DEPTHS), side := choose(SIDES), side),
]
"""Sides of square and other images, of sequences, and of volumes."""


class Row(NamedTuple):
    data_type: int
    channels_last: int
    images: int
    inputs: int
    outputs: int
    sides: list[int]
    forward: tuple[int, int]
    input: tuple[int, int]
    filter: tuple[int, int]


def collect_part(path: pathlib.Path, seed: int, seconds: float) -> None:
    cudnn, chance, began = Cudnn(), random.Random(seed), time.monotonic()
    choose = chance.choice
    of_models = read_models(path.with_name("convolutions.json"))
    with path.open("w") as file:
        while time.monotonic() - began < seconds:
            images = choose(IMAGES)
            if chance.random() < 0.5:
                inputs, outputs, sides = choose(CHANNELS), choose(CHANNELS), choose(SIDES_OF)(choose)
            else:
                inputs, outputs, sides = choose(of_models)
                if chance.random() < 0.5:
                    change = choose([0.25, 0.5, 0.75, 1.25, 1.5, 2])
                    sides = [max(1, round(side * change)) for side in sides]
                if chance.random() < 0.25:
                    change = choose([0.25, 0.5, 0.75, 1.25, 1.5, 2])
                    inputs, outputs = (max(8, round(channels * change / 8) * 8) for channels in (inputs, outputs))
            if images * max(inputs, outputs) * math.prod(sides) > MAX_VALUES:
                continue
            convolution = Shape(images, inputs, outputs, tuple(sides), 1, 0).convolution()
            data_type, channels_last = choose(KINDS)
            ask = functools.partial(cudnn.first_choice, convolution, data_type=data_type, channels_last=channels_last)
            row = [data_type, int(channels_last), images, inputs, outputs, sides, *map(ask, PASSES)]
            file.write(json.dumps(row) + "\n")


def read_models(path: pathlib.Path) -> list[tuple[int, int, list[int]]]:
    """Channels and sides of the 1×1 convolutions in a list."""
    found = []
    for x, w, *_ in json.loads(path.read_text()):
        if math.prod(w[2:]) == 1 and w[1] == x[1]:
            found.append((x[1], w[0], x[2:]))
    return found


def features(row: Row) -> list[int]:
    positions = math.prod(row.sides)
    columns, planes = row.images * positions, row.inputs * row.outputs
    sizes = [columns, planes, columns * row.inputs, columns * row.outputs, columns * planes]
    types = [int(row.data_type == BFLOAT16), int(row.data_type == FLOAT)]
    depth = row.sides[0] if len(row.sides) == 3 else 0
    return [row.images, row.inputs, row.outputs, positions, positions % 4, *sizes, *types, depth, *row.sides[-2:]]


def answer(step: str, row: Row) -> int:
    """-1 for another engine, or the parts that are summed in the workspace, times 1,000, and the other bytes of it."""
    engine, workspace = getattr(row, step)
    if engine != CUBLASLT[step]:
        return -1
    columns, planes = row.images * math.prod(row.sides), row.inputs * row.outputs
    if row.channels_last or row.images == 1:
        values = {"forward": columns * row.outputs, "input": columns * row.inputs, "filter": planes}[step]
        parts, others = divmod(workspace, values * SUM_BYTES)
        return parts * PARTS_UNIT + (others if others in DESCRIPTIONS else 272)
    # Each image has its own product, and the gradients of filters are summed.
    others = workspace - (row.images * planes * SUM_BYTES if step == "filter" else 0)
    return others if others in DESCRIPTIONS else 400


FILES = {
    "float.txt": (lambda row: row.data_type == FLOAT and not row.channels_last, 1.2e-5, 1.2e-5),
    "half.txt": (lambda row: row.data_type != FLOAT and not row.channels_last, 4e-5, 4e-5),
    "channels_last.txt": (lambda row: row.channels_last, 8e-5, 2e-4),
}
"""Which rows are in each file, and how far its trees are pruned: for results that are images, and for filters."""


def fit(folder: pathlib.Path, output: pathlib.Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    rows = [Row(*json.loads(line)) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    for name, (is_included, of_images, of_filters) in FILES.items():
        print(name)
        lines = fit_trees([row for row in rows if is_included(row)], of_images, of_filters)
        (output / name).write_text("\n".join(lines) + "\n")


def fit_trees(rows: list[Row], of_images: float, of_filters: float) -> list[str]:
    import numpy
    from sklearn.tree import DecisionTreeClassifier

    values = numpy.array([features(row) for row in rows])
    is_left_out = numpy.arange(len(rows)) % 5 == 0
    lines = []
    for step in PASSES:
        alpha = of_filters if step == "filter" else of_images
        new = functools.partial(DecisionTreeClassifier, min_samples_leaf=2, ccp_alpha=alpha, criterion="entropy", random_state=0)
        answers = numpy.array([answer(step, row) for row in rows])
        guesses = new().fit(values[~is_left_out], answers[~is_left_out]).predict(values[is_left_out])
        correct = answers[is_left_out]
        engines, right = sum((guesses < 0) == (correct < 0)), sum(guesses == correct)
        print(f"{step}: of {len(correct)} convolutions left out, {engines} have the right engine, {right} its workspace too")
        tree = new().fit(values, answers)
        lines += [step, *written(tree.tree_, tree.classes_, FEATURES)]
    return lines


if __name__ == "__main__":
    main(__doc__, collect_part, fit)
