"""Which 1×1 convolutions cuDNN's heuristics give to cuBLASLt first, on this machine's GPU, and with which workspace.

    python crates/emulator/measure/one_by_one.py collect FOLDER --seconds 60     on the card
    python crates/emulator/measure/one_by_one.py fit FOLDER OUTPUT               anywhere, with scikit-learn

Without a device, cuDNN leaves this engine out of its lists (`src/cudnn/matrix_product.rs`). `collect` asks for the first
choices for random convolutions in fp32 with stride 1 and channels first. `fit` writes a decision tree for each pass, as
first_choice.py does. Its answers are the bytes that the workspace has besides partial sums, or -1 for another engine.
"""

from __future__ import annotations

import functools
import json
import pathlib
import random
import time

from first_choice import PASSES, Cudnn, main, written

SIDES = [*range(1, 11), *range(12, 19), 20, 24, 28, 30, 32, 35, 40, 48, 56, 64, 80, 96, 112, 128]
CHANNELS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 58, 64, 72, 80, 96, 100, 112, 116, 120, 128, 144, 160, 176]
CHANNELS += [192, 208, 224, 240, 256, 288, 320, 384, 448, 480, 512, 576, 640, 672, 768, 832, 896, 960, 1024, 1152, 1280]
CHANNELS += [1536, 2048]
IMAGES = [1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 24, 32, 48, 50, 64, 80, 96, 100, 128, 192, 256, 512]
MAX_VALUES = 2**28

CUBLASLT = {"forward": 58, "input": 63, "filter": 62}
"""Index of the engine in each pass."""
DESCRIPTION_BYTES = 400
FEATURES = ["images", "inputs", "outputs", "positions", "alignment", "columns", "planes", "read", "written", "products"]


def collect_part(path: pathlib.Path, seed: int, seconds: float) -> None:
    cudnn, choose, began = Cudnn(), random.Random(seed).choice, time.monotonic()
    with path.open("w") as file:
        while time.monotonic() - began < seconds:
            images, inputs, outputs, side = choose(IMAGES), choose(CHANNELS), choose(CHANNELS), choose(SIDES)
            if images * max(inputs, outputs) * side * side > MAX_VALUES:
                continue
            shape = images, inputs, outputs, side, 1, 0
            found = [cudnn.first_choice(shape, step, with_workspace=True) for step in PASSES]
            file.write(json.dumps([images, inputs, outputs, side * side, *found]) + "\n")


def features(images: int, inputs: int, outputs: int, positions: int) -> list[int]:
    columns, planes = images * positions, inputs * outputs
    sizes = [columns, planes, columns * inputs, columns * outputs, columns * planes]
    return [images, inputs, outputs, positions, positions % 4, *sizes]


def answer(step: str, images: int, planes: int, engine: int, workspace: int) -> int:
    if engine != CUBLASLT[step]:
        return -1
    # Each image has its own product, and the products are summed; a single one is split in parts of its own.
    sums = images * planes * 4 if step == "filter" else 0
    return 0 if workspace == sums and (step != "filter" or images > 1) else DESCRIPTION_BYTES


def fit(folder: pathlib.Path, output: pathlib.Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open()]
    values = [features(*row[:4]) for row in rows]
    others = range(0, len(rows), 5)
    known = [number for number in range(len(rows)) if number not in others]
    new = functools.partial(DecisionTreeClassifier, min_samples_leaf=3, ccp_alpha=4e-5, criterion="entropy", random_state=0)
    lines = []
    for index, step in enumerate(PASSES):
        answers = [answer(step, row[0], row[1] * row[2], *row[4 + index]) for row in rows]
        tried = new().fit([values[of] for of in known], [answers[of] for of in known])
        guesses = map(int, tried.predict([values[of] for of in others]))
        pairs = [(guess, answers[of]) for guess, of in zip(guesses, others, strict=True)]
        right = sum(guess == correct for guess, correct in pairs)
        engines = sum((guess < 0) == (correct < 0) for guess, correct in pairs)
        print(f"{step}: of {len(pairs)} convolutions left out, {engines} have the right engine, {right} its workspace too")
        tree = new().fit(values, answers)
        lines += [step, *written(tree.tree_, tree.classes_, FEATURES)]
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(__doc__, collect_part, fit)
