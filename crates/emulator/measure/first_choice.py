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
import contextlib
import ctypes
import functools
import glob
import json
import multiprocessing
import os
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SIDES = [*range(1, 11), *range(12, 17), *range(18, 33, 2), 36, 40, 48, 50, 56, 60, 64, 72, 80, 96]
SIDES += [100, 104, 112, 120, 128, 144, 160, 192, 224, 240, 256]
CHANNELS = [1, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 58, 64, 72, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224]
CHANNELS += [240, 256, 288, 320, 384, 448, 512, 640, 768, 1024]
IMAGES = [1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 24, 25, 32, 48, 50, 64, 80, 96, 100, 128, 192, 200, 256]
IMAGES += [384, 400, 500, 512, 1000, 1024]
FILTERS = [3, 3, 3, 3, 4, 5, 5, 7]
MAX_VALUES = 2**29

PASSES = {"forward": (10, 700), "input": (12, 706), "filter": (11, 712)}
"""Descriptor and first attribute of each pass in `cudnn_graph.h`."""
ENGINES = {"forward": {3, 6}, "input": {50, 7}, "filter": {17, 18}}
FEATURES = ["images", "inputs", "outputs", "side", "filter", "padding", "positions", "pixels", "planes", "products"]

FLOAT = 0
"""`CUDNN_DATA_FLOAT`"""
INSTANT = 0
FALLBACK = 2
"""`cudnnBackendHeurMode_t`"""

CollectPart = Callable[[pathlib.Path, int, float], None]
"""Writes what it finds into a file, with a seed, for some seconds."""


class Shape(NamedTuple):
    """A convolution. `sides` are those of images, or of volumes; filter, padding and stride are the same in all directions."""

    images: int
    inputs: int
    outputs: int
    sides: tuple[int, ...]
    filter: int
    padding: int
    stride: int = 1

    def results(self) -> list[int]:
        return [(side + 2 * self.padding - self.filter) // self.stride + 1 for side in self.sides]


class Cudnn:
    """The backend interface, as far as it lists engines."""

    def __init__(self) -> None:
        import torch

        torch.empty(1, device="cuda")
        found = glob.glob(os.path.join(os.path.dirname(torch.__path__[0]), "nvidia/cudnn/lib/libcudnn.so.9"))
        self.library = ctypes.CDLL(found[0] if found else "libcudnn.so.9")
        self.handle = ctypes.c_void_p()
        self._check(self.library.cudnnCreate(ctypes.byref(self.handle)))

    def first_engine(self, shape: Shape, step: str) -> int:
        """Index of the engine that the heuristics list first."""
        return self.first_choice(shape, step, with_workspace=False)[0]

    def first_choice(
        self, shape: Shape, step: str, *, data_type: int = FLOAT, channels_last: bool = False, with_workspace: bool = True
    ) -> tuple[int, int]:
        """The same, with the bytes of its workspace."""
        with contextlib.ExitStack() as stack:
            new = functools.partial(self._descriptor, stack)
            configuration = self._get(self._heuristics(stack, shape, step, data_type, channels_last), 202, new(3))
            engine = self._number(self._get(configuration, 300, new(2)), 1301)
            if not with_workspace:
                return engine, 0
            plan = new(5)
            self._set(plan, 400, 0, [self.handle], ctypes.c_void_p)
            self._set(plan, 401, 15, [configuration], ctypes.c_void_p)
            return engine, self._number(self._finalized(plan), 402)

    def engines(
        self, shape: Shape, step: str, *, data_type: int = FLOAT, channels_last: bool = False, mode: int = INSTANT
    ) -> list[int]:
        """Engines that the heuristics list, one for each of their configurations."""
        with contextlib.ExitStack() as stack:
            new = functools.partial(self._descriptor, stack)
            heuristics = self._heuristics(stack, shape, step, data_type, channels_last, mode)
            room = self._count(heuristics, 202)
            array = (ctypes.c_void_p * room)(*(new(3).value for _ in range(room)))
            count, wanted = ctypes.c_int64(), ctypes.c_int64(room)
            self._check(self.library.cudnnBackendGetAttribute(heuristics, 202, 15, wanted, ctypes.byref(count), array))
            found = [ctypes.c_void_p(array[place]) for place in range(min(room, count.value))]
            engine = new(2)
            return [self._number(self._get(configuration, 300, engine), 1301) for configuration in found]

    def _heuristics(
        self, stack: contextlib.ExitStack, shape: Shape, step: str, data_type: int, channels_last: bool, mode: int = INSTANT
    ) -> ctypes.c_void_p:
        images, inputs, outputs, sides, size, padding, stride = shape
        descriptor, attribute = PASSES[step]
        new = functools.partial(self._descriptor, stack)
        tensors = []
        for name, sizes in (
            ("w", [outputs, inputs, *[size] * len(sides)]),
            ("x", [images, inputs, *sides]),
            ("y", [images, outputs, *shape.results()]),
        ):
            tensor = new(17)
            self._set(tensor, 900, 3, [16], ctypes.c_int64)
            self._set(tensor, 901, 1, [data_type], ctypes.c_int)
            self._set(tensor, 902, 3, sizes, ctypes.c_int64)
            others = range(2, len(sizes))
            strides = contiguous(sizes, [0, *others, 1] if channels_last else [0, 1, *others])
            self._set(tensor, 903, 3, strides, ctypes.c_int64)
            self._set(tensor, 906, 3, [ord(name)], ctypes.c_int64)
            tensors.append(self._finalized(tensor))
        window = new(1)
        self._set(window, 100, 1, [FLOAT], ctypes.c_int)
        self._set(window, 101, 7, [1], ctypes.c_int)
        self._set(window, 106, 3, [len(sides)], ctypes.c_int64)
        for name, value in ((102, 1), (103, stride), (104, padding), (105, padding)):
            self._set(window, name, 3, [value] * len(sides), ctypes.c_int64)
        operation = new(descriptor)
        self._set(operation, attribute, 4, [1.0], ctypes.c_float)
        self._set(operation, attribute + 1, 4, [0.0], ctypes.c_float)
        for offset, part in enumerate([self._finalized(window), *tensors]):
            self._set(operation, attribute + 2 + offset, 15, [part], ctypes.c_void_p)
        graph = new(15)
        self._set(graph, 800, 0, [self.handle], ctypes.c_void_p)
        self._set(graph, 801, 15, [self._finalized(operation)], ctypes.c_void_p)
        heuristics = new(4)
        self._set(heuristics, 200, 8, [mode], ctypes.c_int)
        self._set(heuristics, 201, 15, [self._finalized(graph)], ctypes.c_void_p)
        return self._finalized(heuristics)

    def _descriptor(self, stack: contextlib.ExitStack, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._check(self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
        stack.callback(self.library.cudnnBackendDestroyDescriptor, descriptor)
        return descriptor

    def _set(self, descriptor: ctypes.c_void_p, name: int, kind: int, values: list[Any], of: Any) -> None:
        array = (of * len(values))(*values)
        self._check(self.library.cudnnBackendSetAttribute(descriptor, name, kind, ctypes.c_int64(len(values)), array))

    def _finalized(self, descriptor: ctypes.c_void_p) -> ctypes.c_void_p:
        self._check(self.library.cudnnBackendFinalize(descriptor))
        return descriptor

    def _get(self, descriptor: ctypes.c_void_p, name: int, to: ctypes.c_void_p) -> ctypes.c_void_p:
        array, count = (ctypes.c_void_p * 1)(to), ctypes.c_int64()
        one = ctypes.c_int64(1)
        self._check(self.library.cudnnBackendGetAttribute(descriptor, name, 15, one, ctypes.byref(count), array))
        return ctypes.c_void_p(array[0])

    def _count(self, descriptor: ctypes.c_void_p, name: int) -> int:
        """How many descriptors an attribute has."""
        count, none = ctypes.c_int64(), ctypes.c_int64(0)
        self._check(self.library.cudnnBackendGetAttribute(descriptor, name, 15, none, ctypes.byref(count), None))
        return count.value

    def _number(self, descriptor: ctypes.c_void_p, name: int) -> int:
        number, count, one = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64(1)
        answer = self.library.cudnnBackendGetAttribute(descriptor, name, 3, one, ctypes.byref(count), ctypes.byref(number))
        self._check(answer)
        return number.value

    def _check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"cuDNN returned {status}")


def contiguous(sizes: list[int], order: list[int]) -> list[int]:
    """Strides of a tensor whose dimensions are in this order in memory."""
    strides, stride = [0] * len(sizes), 1
    for dimension in reversed(order):
        strides[dimension] = stride
        stride *= sizes[dimension]
    return strides


def shapes(seed: int) -> Iterator[Shape]:
    choose = random.Random(seed).choice
    while True:
        size, side, images = choose(FILTERS), choose(SIDES), choose(IMAGES)
        inputs, outputs, padding = choose(CHANNELS), choose(CHANNELS), choose([size // 2, size // 2, size // 2, 0, 1, 2])
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
            engines = [cudnn.first_engine(shape, step) for step in PASSES]
            file.write(json.dumps([images, inputs, outputs, side, size, padding, *engines]) + "\n")


def collect(folder: pathlib.Path, seconds: float, collect_part: CollectPart) -> None:
    """Collects a part in each of as many processes as there are cores."""
    folder.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    parts = [(folder / f"part{part}.jsonl", part, seconds) for part in range(os.cpu_count() or 1)]
    processes = [spawn.Process(target=collect_part, args=part) for part in parts]
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
    others = range(0, len(rows), 5)
    known = [number for number in range(len(rows)) if number not in others]
    new = functools.partial(DecisionTreeClassifier, min_samples_leaf=2, ccp_alpha=2e-5, criterion="entropy", random_state=0)
    lines = []
    for index, step in enumerate(PASSES):
        engines = [row[6 + index] if row[6 + index] in ENGINES[step] else 0 for row in rows]
        tried = new().fit([values[of] for of in known], [engines[of] for of in known])
        guesses = map(int, tried.predict([values[of] for of in others]))
        pairs = [(guess, engines[of]) for guess, of in zip(guesses, others, strict=True)]
        right = sum(guess == engine != 0 for guess, engine in pairs)
        missed = sum(guess == 0 != engine for guess, engine in pairs)
        wrong = sum(guess not in (0, engine) for guess, engine in pairs)
        print(f"{step}: of {len(pairs)} convolutions left out, {right} right, {missed} missed, {wrong} wrong")
        tree = new().fit(values, engines)
        lines += [step, *written(tree.tree_, tree.classes_, FEATURES)]
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


def main(description: str | None, collect_part: CollectPart, fit: Callable[[pathlib.Path, pathlib.Path], None]) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=pathlib.Path)
    collecting.add_argument("--seconds", type=float, default=60)
    fitting = commands.add_parser("fit")
    fitting.add_argument("folder", type=pathlib.Path)
    fitting.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "collect":
        collect(arguments.folder, arguments.seconds, collect_part)
    else:
        fit(arguments.folder, arguments.output)


if __name__ == "__main__":
    main(__doc__, collect_part, fit)
