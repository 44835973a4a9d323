"""Compares the emulator with this machine's GPU: engines and workspaces for the convolutions of public models.

    python crates/emulator/measure/models.py list CONVOLUTIONS                 anywhere, with torchvision, timm and more
    python crates/emulator/measure/models.py ask CONVOLUTIONS FOLDER           on the card, and on the emulated GPU
    python crates/emulator/measure/models.py compare FOLDER FOLDER             on the card first

`list` writes the convolutions of one image. `ask` takes random ones, with a random number of images, type and layout, and writes
what PyTorch's first choice would be, or with `--all` all that it tries with `cudnn.benchmark=True`. The same convolutions are
asked in every place.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from cudnn import BFLOAT16, FLOAT, HALF, PASSES, Convolution, Cudnn

IMAGES = [1, 2, 4, 8, 10, 12, 16, 16, 20, 24, 32, 32, 48, 50, 64, 64, 96, 100, 128, 128, 200, 256, 256, 512, 1000]
KINDS = [(FLOAT, False)] * 4 + [(HALF, False), (BFLOAT16, False), (FLOAT, True), (HALF, True), (BFLOAT16, True)]
MAX_VALUES = 2**30
SIDES = {"torchvision": (224, 256, 160), "segmentation": (256, 320, 512)}


class Layer(NamedTuple):
    """A convolution with its type and layout."""

    data_type: int
    channels_last: bool
    convolution: Convolution

    @classmethod
    def random(cls, convolutions: list[Convolution], choose: Callable[[Any], Any]) -> Layer:
        """One of these convolutions of one image, of a random number of images."""
        images, of_one = choose(IMAGES), choose(convolutions)
        convolution = of_one._replace(x=(images, *of_one.x[1:]), y=(images, *of_one.y[1:]))
        return cls(*choose(KINDS), convolution)

    def values(self) -> int:
        """Values of its input or its output, whichever has more."""
        return max(math.prod(self.convolution.x), math.prod(self.convolution.y))


def questions(convolutions: list[Convolution], seed: int) -> Iterator[tuple[Layer, str]]:
    """Layers, and a pass for each."""
    choose = random.Random(seed).choice
    while True:
        layer, step = Layer.random(convolutions, choose), choose([*PASSES])
        if layer.values() <= MAX_VALUES:
            yield layer, step


def ask_part(path: pathlib.Path, of: list[Convolution], seed: int, options: argparse.Namespace) -> None:
    cudnn, began = Cudnn(), time.monotonic()
    with path.open("w") as file:
        for (data_type, channels_last, convolution), step in itertools.islice(questions(of, seed), options.limit):
            if time.monotonic() - began > options.seconds:
                return
            found: list[tuple[int, int]] = []
            with contextlib.suppress(RuntimeError):  # cuDNN does not have it
                plans = cudnn.plans(convolution, step, data_type=data_type, channels_last=channels_last)
                found = [*(plans if options.all else itertools.islice(plans, 1))]
            file.write(json.dumps([data_type, int(channels_last), step, convolution, found], separators=(",", ":")) + "\n")


def ask(source: pathlib.Path, folder: pathlib.Path, options: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    of = [Convolution(*row) for row in json.loads(source.read_text())]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        # A part has the same questions everywhere, whatever the number of cores.
        parts = [
            pool.apply_async(ask_part, (folder / f"part{part:03}.jsonl", of, part, options))
            for part in range(options.first_part, options.first_part + options.parts)
        ]
        for part in parts:
            part.get()


def answers(folder: pathlib.Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.open()):
            yield f"{path.stem}:{number}", json.loads(line)


def compare(card: pathlib.Path, emulated: pathlib.Path, *, is_all: bool, shown: int) -> None:
    theirs = dict(answers(emulated))
    groups: dict[tuple[Any, ...], list[Any]] = collections.defaultdict(list)
    totals: dict[tuple[Any, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, (data_type, last, step, convolution, found) in answers(card):
        if name not in theirs:
            continue
        other = theirs[name][-1]
        if is_all:
            real, guess = (max((workspace for _, workspace in plans), default=-1) for plans in (found, other))
            is_right, engines = real == guess, ([e for e, w in found if w == real][:1], [e for e, w in other if w == guess][:1])
        else:
            (engine, real), (guessed, guess) = (plans[0] if plans else (-1, -1) for plans in (found, other))
            is_right, engines = real == guess, (engine, guessed)
        convolution = Convolution(*convolution)
        kind = data_type, last, step
        total = totals[kind]
        total["asked"] += 1
        total["right"] += is_right
        total["near"] += abs(real - guess) <= (1 << 20)
        total["engine"] += engines[0] == engines[1]
        if not is_right:
            groups[(*kind, *map(str, engines))].append((abs(real - guess), real, guess, convolution))
    for kind, total in sorted(totals.items()):
        asked = total["asked"]
        shares = ", ".join(f"{name} {total[name] / asked:.1%}" for name in ("right", "near", "engine"))
        print(*kind, f"{asked} asked:", shares)
    for group, misses in sorted(groups.items(), key=lambda item: -sum(miss[0] > 1 << 20 for miss in item[1]))[:shown]:
        print(*group, f"{len(misses)} wrong, {sum(miss[0] > 1 << 20 for miss in misses)} by more than 1 MiB")
        for _, real, guess, convolution in random.Random(0).sample(misses, min(3, len(misses))):
            print("    ", real, guess, *(str(list(part)).replace(" ", "") for part in convolution))


def list_convolutions(output: pathlib.Path) -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[Convolution, None] = {}

    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.convolution.default:
                x, w, _, stride, padding, dilation, is_transposed, _, groups = args
                # PyTorch has its own kernels for depthwise convolutions.
                if is_transposed or not groups == x.shape[1] > 1:
                    add(x.shape, w.shape, result.shape, padding, stride, dilation, is_transposed)
            return result

    def add(x: Any, w: Any, y: Any, padding: Any, stride: Any, dilation: Any, is_transposed: bool) -> None:
        of_each = [list(value) * (len(x) - 2 if len(value) == 1 else 1) for value in (padding, stride, dilation)]
        sizes = [list(size) for size in ((y, w, x) if is_transposed else (x, w, y))]
        if len(x) == 3:
            # PyTorch passes sequences as images of height 1.
            for size in sizes:
                size.insert(2, 1)
            for values, of_height in zip(of_each, (0, 1, 1), strict=True):
                values.insert(0, of_height)
        sizes[0][0] = sizes[2][0] = 1
        found[Convolution(*map(tuple, (*sizes, *of_each)))] = None

    for name, make in models():
        for shape in make.shapes:
            try:
                with torch.device("meta"), torch.no_grad():
                    model, images = make.model(), torch.empty(shape)
                    with Listing():
                        model.eval()(images)
            except Exception as error:
                print(f"{name}: {type(error).__name__}")
                break
        print(name, len(found), flush=True)
    output.write_text(json.dumps([*found]))


class Maker(NamedTuple):
    model: Any
    shapes: list[tuple[int, ...]]


def models() -> Iterator[tuple[str, Maker]]:
    import segmentation_models_pytorch
    import timm
    import torchvision

    yield from written_by_hand()
    segmenting = torchvision.models.list_models(torchvision.models.segmentation)
    for name in torchvision.models.list_models():
        if "quantized" in name or "rcnn" in name or "retina" in name or "ssd" in name or "fcos" in name or "raft" in name:
            continue
        no_weights = {"weights": None} | ({"weights_backbone": None} if name in segmenting else {})
        make = partial(torchvision.models.get_model, name, **no_weights)
        is_video = name in torchvision.models.list_models(torchvision.models.video)
        sides = SIDES["torchvision"] + ((32, 64, 512) if "vit" not in name and "swin" not in name else ())
        yield name, Maker(make, [(1, 3, 16, 112, 112)] if is_video else [(1, 3, side, side) for side in sides])
    for name in timm.list_models()[::2]:
        config = timm.get_pretrained_cfg(name)
        size = tuple(config.input_size) if config else (3, 224, 224)
        yield name, Maker(partial(timm.create_model, name, pretrained=False), [(1, *size)])
    for name in ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "Linknet", "MAnet", "PAN", "Segformer"):
        for encoder in ("resnet34", "resnet50", "efficientnet-b3", "mobilenet_v2", "vgg16_bn", "mit_b1"):
            make_one = partial(getattr(segmentation_models_pytorch, name), encoder_name=encoder, encoder_weights=None, classes=4)
            yield f"{name} {encoder}", Maker(make_one, [(1, 3, side, side) for side in SIDES["segmentation"]])


def written_by_hand() -> Iterator[tuple[str, Maker]]:
    """Networks as they are in examples: for digits, GANs, transfer of style, sequences and volumes."""
    from torch import nn

    def stack(layers: list[Any]) -> Any:
        return lambda: nn.Sequential(*(layer() for layer in layers))

    flat, up, line, volume = nn.Conv2d, nn.ConvTranspose2d, nn.Conv1d, nn.Conv3d
    for wide in (16, 32, 48, 64, 96, 128, 256):
        for colors in (1, 3):
            classifier = [
                partial(flat, colors, wide, 3),
                partial(flat, wide, 2 * wide, 3),
                partial(flat, 2 * wide, 10, 5),
            ]
            yield f"classifier {wide}", Maker(stack(classifier), [(1, colors, side, side) for side in (28, 32, 64)])
            generator = [partial(up, 100, 8 * wide, 4, 1, 0)]
            generator += [partial(up, (1 << n) * wide, (1 << n - 1) * wide, 4, 2, 1) for n in (3, 2, 1)]
            yield (
                f"generator {wide}",
                Maker(stack([*generator, partial(up, wide, colors, 4, 2, 1)]), [(1, 100, side, side) for side in (1, 2, 4)]),
            )
            discriminator = [partial(flat, (1 << n) * wide, (2 << n) * wide, 4, 2, 1) for n in range(3)]
            discriminator = [partial(flat, colors, wide, 4, 2, 1), *discriminator, partial(flat, 8 * wide, 1, 4, 1, 0)]
            yield f"discriminator {wide}", Maker(stack(discriminator), [(1, colors, side, side) for side in (64, 128, 256)])
        style_transfer = [partial(flat, 3, wide, 9, 1, 4), partial(flat, wide, 2 * wide, 3, 2, 1)]
        style_transfer += [partial(flat, 2 * wide, 4 * wide, 3, 2, 1), partial(flat, 4 * wide, 4 * wide, 3, 1, 1)]
        style_transfer += [partial(up, 4 * wide, 2 * wide, 3, 2, 1, output_padding=1)]
        style_transfer += [partial(up, 2 * wide, wide, 3, 2, 1, output_padding=1), partial(flat, wide, 3, 7, 1, 3)]
        yield f"style_transfer {wide}", Maker(stack(style_transfer), [(1, 3, side, side) for side in (128, 200, 256, 512)])
        super_resolution = [
            partial(flat, 1, wide, 9, 1, 4),
            partial(flat, wide, wide, 5, 1, 2),
            partial(flat, wide, 32, 1),
        ]
        super_resolution += [partial(flat, 32, 9, 3, 1, 1)]
        yield f"super_resolution {wide}", Maker(stack(super_resolution), [(1, 1, side, side) for side in (33, 85, 100)])
        speech = [partial(line, wide, wide, 3, padding=1 << n, dilation=1 << n) for n in range(5)]
        speech = [partial(line, 40, wide, 5, padding=2), *speech, partial(line, wide, 2 * wide, 3, 2, 1)]
        yield f"speech {wide}", Maker(stack(speech), [(1, 40, length) for length in (100, 500, 1000, 16000)])
        volumes = [partial(volume, 1, wide, 3, padding=1), partial(volume, wide, 2 * wide, 3, 2, 1)]
        volumes += [partial(volume, 2 * wide, 2 * wide, 3, padding=1), partial(nn.ConvTranspose3d, 2 * wide, wide, 2, 2)]
        yield f"volumes {wide}", Maker(stack(volumes), [(1, 1, side, side, side) for side in (16, 32, 64)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    listing = commands.add_parser("list")
    listing.add_argument("output", type=pathlib.Path)
    asking = commands.add_parser("ask")
    asking.add_argument("convolutions", type=pathlib.Path)
    asking.add_argument("folder", type=pathlib.Path)
    asking.add_argument("--parts", type=int, default=16)
    asking.add_argument("--first-part", type=int, default=0)
    asking.add_argument("--limit", type=int, default=10_000, help="questions in each part")
    asking.add_argument("--seconds", type=float, default=math.inf, help="for each part")
    comparing = commands.add_parser("compare")
    comparing.add_argument("card", type=pathlib.Path)
    comparing.add_argument("emulated", type=pathlib.Path)
    comparing.add_argument("--shown", type=int, default=40, help="groups of differences")
    for command in (asking, comparing):
        command.add_argument("--all", action="store_true", help="all engines that are tried with cudnn.benchmark=True")
    arguments = parser.parse_args()
    if arguments.command == "list":
        list_convolutions(arguments.output)
    elif arguments.command == "ask":
        ask(arguments.convolutions, arguments.folder, arguments)
    else:
        compare(arguments.card, arguments.emulated, is_all=arguments.all, shown=arguments.shown)


if __name__ == "__main__":
    main()
