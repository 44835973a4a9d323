"""Pinned memory by line: how much PyTorch's host allocator has taken from the system for the requests of each.

The allocator rounds a request up to a power of two and keeps the block for the next request of that size. PyTorch counts blocks,
not requests. We note each `tensor.pin_memory()` before it happens, and from the allocator's total at the next one whether it took
a new block. What is requested otherwise (`torch.empty(..., pin_memory=True)`) is known while its tensor lives; torch 2.14 and
later also record the line.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from ..interpreter.frames import callers, is_users_file
from ..interpreter.objects import instances
from ..interpreter.patching import Noted
from .data_loaders import Line, user_line
from .facts import allocator_settings

Request = tuple[Line | None, int]
"""The line, and the bytes of the block."""

_MAX_REQUESTS = 1024
_CLOSE_LOOKS = 64
"""Requests of one line and size after each of which the allocator's total is read; after that, every so many."""
_MIN_TENSOR_BYTES = 1 << 20
"""Smaller tensors are not looked for: each takes a call of the driver."""
_MAX_TENSORS = 4096
_LIMITS = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")

_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes whose tensors are looked at: others may run code of the program when they are asked for anything."""


class PinnedMemory:
    """`pinned_for` knows the lines of threads that pin batches in the background."""

    def __init__(self, pinned_for: Callable[[int], Line | None]) -> None:
        self._pinned_for = pinned_for
        self._requests: dict[Request, list[int]] = {}
        """Number of requests, their bytes together, new blocks."""
        self._unsettled: dict[Request, int] = {}
        """Requests since the allocator's total was read."""
        self._total = 0
        self._max_rounded = math.inf
        self._lock = threading.Lock()
        self._noted: Noted | None = None

    def install(self) -> None:
        """Also before CUDA is there: a program may pin memory first."""
        self._total = (reserved() or 0) if torch.cuda.is_initialized() else 0
        self._max_rounded = _max_rounded()
        self._noted = Noted(self._note, torch._C.TensorBase.pin_memory)
        torch.Tensor.pin_memory = self._noted  # type: ignore[method-assign]

    def remove(self) -> None:
        if self._noted is not None and vars(torch.Tensor).get("pin_memory") is self._noted:
            del torch.Tensor.pin_memory
        self._noted = None

    def as_json(self, host_segments: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Blocks by line, with the bytes that were asked for. `host_segments`: PyTorch's own list, where it has one."""
        held = reserved()
        if not held:
            return None
        with self._lock:
            self._settle()
            noted = [(line, size, total // count, blocks) for (line, size), (count, total, blocks) in self._requests.items()]
        sizes = {bytes for _, _, bytes, _ in noted}
        others = [(*row, 1) for row in _others(host_segments, self._rounded) if row[2] not in sizes]
        return {"reserved": held, "blocks": _merged([row for row in noted if row[3]] + others)}

    def _note(self, tensor: torch.Tensor) -> None:
        if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        bytes = tensor.numel() * tensor.element_size()
        if not bytes:
            return
        line = self._pinned_for(threading.get_ident()) or user_line(callers())
        key = (line, self._rounded(bytes))
        with self._lock:
            counts = self._requests.get(key)
            if counts is None:
                if len(self._requests) == _MAX_REQUESTS:
                    return
                counts = self._requests[key] = [0, 0, 0]
            # What comes before this request is none of its blocks.
            if (counts[0] < _CLOSE_LOOKS or counts[0] % _CLOSE_LOOKS == 0) and torch.cuda.is_initialized():
                self._settle()
            counts[0] += 1
            counts[1] += bytes
            self._unsettled[key] = self._unsettled.get(key, 0) + 1

    def _rounded(self, bytes: int) -> int:
        """The block that the host allocator takes for a request."""
        return bytes if bytes > self._max_rounded else 1 << (bytes - 1).bit_length()

    def _settle(self) -> None:
        total = reserved() or 0
        taken, self._total = total - self._total, total
        unsettled, self._unsettled = self._unsettled, {}
        for key, count in unsettled.items():
            blocks = max(0, min(count, taken // key[1]))
            self._requests[key][2] += blocks
            taken -= blocks * key[1]


def reserved() -> int | None:
    """Pinned bytes that PyTorch has taken from the system, where it counts them (2.7 and later)."""
    ask = getattr(torch._C, "_cuda_hostMemoryStats", None)
    found = {} if ask is None else ask().get("allocated_bytes", {})
    return found.get("current")


def _max_rounded() -> float:
    """Largest request that is rounded up: none is larger, unless the settings of torch 2.13 and later say so."""
    settings = [part.partition(":") for part in allocator_settings().split(",")]
    limits = [int(value) << 20 for name, _, value in settings if name.strip() in _LIMITS and value.strip().isdigit()]
    return min(limits, default=math.inf)


def _others(segments: list[dict[str, Any]], rounded: Callable[[int], int]) -> Iterator[tuple[Line | None, int, int]]:
    """Line, bytes of the block and of the tensor, for live pinned tensors."""
    stacks = {segment["address"]: segment["blocks"][0].get("frames", []) for segment in segments}
    for address, bytes in _live(stacks):
        frames = ((frame["filename"], frame["line"], frame["name"]) for frame in stacks.get(address, []))
        yield next((line for line in frames if is_users_file(line[0])), None), rounded(bytes), bytes


def _live(known: Collection[int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of storages that are pinned: those that PyTorch lists, or those that the driver knows."""
    seen: set[int] = set()
    for tensor in instances(torch.Tensor):
        if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            continue
        storage = tensor.untyped_storage()
        bytes, address = storage.nbytes(), storage.data_ptr()
        if bytes < _MIN_TENSOR_BYTES or address in seen or len(seen) == _MAX_TENSORS:
            continue
        seen.add(address)
        if address in known if known else tensor.is_pinned():
            yield address, bytes


def _merged(rows: Iterable[tuple[Line | None, int, int, int]]) -> list[dict[str, Any]]:
    """Rows of line, bytes of a block, bytes that were asked for, and number of blocks, with equal ones added up."""
    counts: Counter[tuple[Line | None, int, int]] = Counter()
    for line, size, bytes, count in rows:
        counts[line, size, bytes] += count
    named = ((line or ("", 0, ""), size, bytes, count) for (line, size, bytes), count in counts.most_common(_MAX_REQUESTS))
    return [
        {"file": file, "line": line, "function": function, "size": size, "requested": bytes, "count": count}
        for (file, line, function), size, bytes, count in named
    ]
