"""The history of `backend:cudaMallocAsync` on an emulated GPU.

PyTorch keeps no history with this allocator, which allocates from the driver's memory pools. The emulator's pools keep one
(crates/emulator/src/pools.rs). It has no stacks: the driver does not know who calls it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from .history import LiveStack

_ADD_CHUNK = 0
_ALLOCATE = 2
_ACTIONS = {
    _ADD_CHUNK: ("segment_alloc",),
    1: ("segment_free",),
    _ALLOCATE: ("alloc",),
    3: ("free_requested", "free_completed"),
}
"""Events of a snapshot for each of the pools' own."""


class _Event(ctypes.Structure):
    _fields_ = [
        ("action", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("time_us", ctypes.c_uint64),
    ]


class _Counters(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("allocated", "peak", "reserved", "allocations", "all_requested", "device_allocs", "ooms")
    ]


def is_needed() -> bool:
    """Whether PyTorch's allocator in this process has no history of its own."""
    return torch.cuda.get_allocator_backend() == "cudaMallocAsync"


class PoolHistory:
    kind = "cuda"
    has_own_frames = False
    can_read_stacks_at_frees = False
    has_live_stacks = False

    def __init__(self, library: ctypes.CDLL, max_events: int) -> None:
        self.max_events = max_events
        self._library = library
        self._is_on = False
        for read in (library.oomph_emulator_pool_history, library.oomph_emulator_pool_state):
            read.restype = ctypes.c_uint64

    def start(self, begun: Callable[[], None], marked_by_program: Callable[[], None]) -> None:
        """Begins when the process initializes CUDA, at once if it has; programs cannot mark events."""

        def begin() -> None:
            self._is_on = True
            self._library.oomph_emulator_pool_record(ctypes.c_uint64(self.max_events))
            begun()

        torch.cuda._lazy_call(begin)

    def look(self) -> None:
        self._is_on = torch.cuda.is_initialized()

    def stop(self) -> None:
        if self._is_on:
            self._is_on = False
            self._library.oomph_emulator_pool_record(ctypes.c_uint64(0))

    def mark(self, text: str) -> None:
        """Nothing: events do not say where the program was."""

    def marked(self) -> str:
        return ""

    def fresh(self) -> PoolHistory:
        return PoolHistory(self._library, self.max_events)

    def abandon(self) -> None:
        self._is_on = False

    def snapshot(self) -> dict[str, Any]:
        events = self._read(self._library.oomph_emulator_pool_history)
        traces: list[list[dict[str, Any]]] = [[] for _ in range(torch.cuda.device_count())]
        for event in events:
            for action in _ACTIONS[event.action]:
                where = {"addr": event.address, "size": event.size, "stream": 0, "time_us": event.time_us}
                unknown = {"frames": [], "compile_context": "N/A", "user_metadata": ""}
                traces[event.device].append({"action": action, **where, **unknown})
        return {**self.live_snapshot(), "device_traces": traces}

    def live_snapshot(self) -> dict[str, Any]:
        segments: list[dict[str, Any]] = []
        for part in self._read(self._library.oomph_emulator_pool_state):
            if part.action == _ADD_CHUNK:
                segments.append(_segment(part))
            else:
                _add_block(segments[-1], part)
        for segment in segments:
            _fill(segment, segment["address"] + segment["total_size"])
        traces: list[Any] = [[] for _ in range(torch.cuda.device_count())]
        return {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}

    def _read(self, read: Any) -> list[_Event]:
        """What a function of the library lists."""
        room = int(read(None, ctypes.c_uint64(0)))
        events = (_Event * room)()
        # Other threads may have added some since.
        return list(events[: min(room, int(read(events, ctypes.c_uint64(room))))])

    def record_stacks(self, *, wanted: bool) -> bool:
        return True

    def allocations(self) -> dict[int, int]:
        return {row["device"]: row["allocations"] for row in self.counters()}

    def counters(self) -> list[dict[str, int]]:
        return [row for row in map(self._row, range(torch.cuda.device_count())) if row["allocations"] or row["ooms"]]

    def _row(self, device: int) -> dict[str, int]:
        found = _Counters()
        if self._is_on:
            self._library.oomph_emulator_pool_counters(device, ctypes.byref(found))
        row = {name: int(getattr(found, name)) for name, *_ in _Counters._fields_}
        return {
            "device": device,
            **row,
            "requested": row["allocated"],
            "active": row["allocated"],
            "inactive_split": 0,
            "retries": 0,
        }

    def settings(self) -> dict[str, Any] | None:
        return None

    def live_stacks(self) -> list[LiveStack] | None:
        return None


def _segment(chunk: _Event) -> dict[str, Any]:
    return {
        "device": chunk.device,
        "address": chunk.address,
        "total_size": chunk.size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [],
    }


def _add_block(segment: dict[str, Any], block: _Event) -> None:
    """Blocks come in the order of their addresses."""
    _fill(segment, block.address)
    segment["blocks"].append(_block(block.address, block.size, "active_allocated"))
    for size in ("allocated_size", "active_size", "requested_size"):
        segment[size] += block.size


def _fill(segment: dict[str, Any], end: int) -> None:
    """Adds what is free before an address as a block."""
    start = segment["address"] + sum(block["size"] for block in segment["blocks"])
    if start < end:
        segment["blocks"].append(_block(start, end - start, "inactive"))


def _block(address: int, size: int, state: str) -> dict[str, Any]:
    requested = 0 if state == "inactive" else size
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}
