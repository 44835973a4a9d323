"""How long the walk of a process takes (`python bench/heap.py [OBJECTS]`), and whether it leaves anything behind.

A process with a small model, the graph of a step, and as many lists as asked for (a million unless given).
"""

from __future__ import annotations

import gc
import sys
import time

import torch

from oomph.heap import reach, walk

_ROUNDS = 3


def main(count: int) -> None:
    model = torch.nn.TransformerEncoderLayer(64, 4)
    kept = [model(torch.ones(3, 5, 64)).sum() for _ in range(20)]
    objects = [[number] for number in range(count)]
    walk.walk()  # imports, and objects of the graph's nodes
    for name, half in (("native", reach.native()), ("python", None)):
        if name == "native" and half is None:
            print("native: not there")
            continue
        reach.native = lambda half=half: half
        gc.collect()
        before = len(gc.get_objects())
        times = []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            graph = walk.walk()
            times.append(time.perf_counter() - began)
            nodes, outside = len(graph["nodes"]), len(graph["outside"])
            del graph
        after = len(gc.get_objects())
        seconds = " ".join(f"{each:.2f}" for each in times)
        print(
            f"{name}: {before:,} objects, {after - before:+} afterwards; {seconds} s; {nodes:,} nodes, {outside} held from outside"
        )
    del kept, objects


main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
