"""Who keeps tensors alive, asked inside the program."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch._C import DisableTorchFunction

from oomph import _native
from oomph.answers import Holders
from oomph.heap import storages
from oomph.heap.walk import walk

_ALL: Any = object()


def holders(tensor: torch.Tensor = _ALL, *, top: int | None = None) -> Holders:
    """Who keeps a tensor's memory alive: every way to it. Without one, who holds how much in this process.

    `print()` shows it; `.held_by` are the ways, as text.

    >>> oomph.holders(batch)
    """
    wanted = None
    if tensor is not _ALL:
        if not issubclass(type(tensor), torch.Tensor):
            raise TypeError(f"expected a tensor, found {type(tensor).__name__}")
        # A class of tensors may answer with code of its own.
        with DisableTorchFunction():
            found = list(storages.of_tensor(tensor))
        if not found:
            raise ValueError("this tensor has no memory: it is on the meta device, or of a kind without a storage")
        storage = max(found, key=lambda each: each.bytes)
        wanted = storage.device, storage.device_index, storage.address
    # Code below may leave a frame in a cycle, with the frames around it: that must not hold the tensor.
    tensor = _ALL
    graph = json.dumps(_as_allocated(walk()))
    return Holders(lambda as_json: _native.holders(graph, wanted, as_json, top=top))


def holders_of(memory: list[tuple[str, int, int]]) -> list[str]:
    """The shortest way to each storage, by its device's type, index and address; empty if there is none."""
    graph = json.dumps(_as_allocated(walk())) if memory else ""
    found = []
    for wanted in memory:
        try:
            answer = Holders(lambda as_json, wanted=wanted: _native.holders(graph, wanted, as_json, top=None))  # type: ignore[misc]
            found.append(next(iter(answer.held_by), ""))
        except ValueError:  # nothing in Python holds it
            found.append("")
    return found


def _as_allocated(graph: dict[str, Any]) -> dict[str, Any]:
    """With what the allocator has given for each storage, as `torch.cuda.memory_allocated()` counts it."""
    if any(device == "cuda" for _, device, *_ in graph["storages"]):
        sizes = allocated_blocks()
        for storage in graph["storages"]:
            _, device, index, address, _ = storage
            if device == "cuda":
                storage[4] = sizes.get((index, address), storage[4])
    return graph


def allocated_blocks() -> dict[tuple[int, int], int]:
    """Sizes of the blocks that PyTorch's allocator has given to the program, by device and address."""
    return {
        (segment["device"], block["address"]): block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
