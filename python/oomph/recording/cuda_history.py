"""PyTorch's own history of CUDA memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from . import symbols
from .history import LiveStack
from .talk import say, words

_COUNTERS = {
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "requested": "requested_bytes",
    "active": "active_bytes",
    "inactive_split": "inactive_split_bytes",
}

_LOOK_AGAIN = 64
"""Calls after which to look for devices that have come into use since."""


class CudaHistory:
    kind = "cuda"

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.is_on = False
        # Absent before torch 2.10: then events do not say where the program was.
        self.mark: Callable[[str], None] = getattr(torch._C, "_cuda_setMemoryMetadata", _not_there)
        self.marked: Callable[[], str] = getattr(torch._C, "_cuda_getMemoryMetadata", str)
        self.has_own_frames = False
        self._users_recorder: Callable[..., None] | None = None
        self._users_metadata: Callable[..., None] | None = None
        self._devices: list[int] = []
        self._calls = 0
        self._has_symbols = False
        # Before torch 2.10 there is no snapshot without a copy of the whole history.
        self.has_live_stacks = "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters

    def start(self, begun: Callable[[], None], marked_by_program: Callable[[], None]) -> None:
        """Begins when the process initialises CUDA; at once if it has."""
        self._replace_users_recorder(marked_by_program)
        torch.cuda._lazy_call(lambda: self._begin(begun))  # type: ignore[no-untyped-call]

    def _begin(self, begun: Callable[[], None]) -> None:
        if self._users_recorder is None:
            return  # stopped before the program came to CUDA
        try:
            # Not at frees: reading a stack there loses an exception that is on its way (checkpointing stops its
            # recomputation with one, and PyTorch then fails with a SystemError).
            self._users_recorder(enabled="all", context="alloc", stacks="python", max_entries=self.max_events)
            self.is_on = True
            begun()
        except Exception as error:
            say(f"nothing is recorded: {words(error)}")

    def stop(self) -> None:
        if self._users_recorder is None:
            return
        if self.is_on:
            self.is_on = False
            self.mark("")
            self._users_recorder(enabled=None)
        torch.cuda.memory._record_memory_history = self._users_recorder
        self._users_recorder = None
        if self._users_metadata is not None:
            torch.cuda.memory._set_memory_metadata = self._users_metadata

    def _replace_users_recorder(self, marked_by_program: Callable[[], None]) -> None:
        """A program that records itself must not end or restart our history; its own dumps work all the same."""
        self._users_recorder = torch.cuda.memory._record_memory_history

        def ignored(*_args: Any, **_kwargs: Any) -> None:
            # Recording is one of the ways to initialise CUDA.
            torch.cuda.init()  # type: ignore[no-untyped-call]

        torch.cuda.memory._record_memory_history = ignored
        if self.mark is _not_there:
            return
        users_metadata = self._users_metadata = torch.cuda.memory._set_memory_metadata

        def set_metadata(metadata: Any) -> None:
            # A program that marks its events itself has the better use for the field.
            marked_by_program()
            users_metadata(metadata)

        torch.cuda.memory._set_memory_metadata = set_metadata

    def step_ended(self) -> None:
        if not self._has_symbols:
            self._has_symbols = True
            symbols.load()

    def snapshot(self) -> dict[str, Any]:
        symbols.wait_for_imports()
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        return snapshot

    def allocations(self) -> dict[int, int]:
        stats = {device: torch._C._cuda_memoryStats(device) for device in self.devices()}
        return {device: _count(stat, "allocation", "allocated") for device, stat in stats.items()}

    def counters(self) -> list[dict[str, int]]:
        rows = []
        for device in self.devices():
            stats = torch._C._cuda_memoryStats(device)
            row = {"device": device, "allocations": _count(stats, "allocation", "allocated")}
            row.update({name: _count(stats, key, "current") for name, key in _COUNTERS.items()})
            row["peak"] = _count(stats, "allocated_bytes", "peak")
            row["all_requested"] = _count(stats, "requested_bytes", "allocated")
            row["retries"] = int(stats.get("num_alloc_retries", 0))
            row["ooms"] = int(stats.get("num_ooms", 0))
            row["device_allocs"] = int(stats.get("num_device_alloc", 0))
            rows.append(row)
        return rows

    def live_stacks(self) -> list[LiveStack] | None:
        if not self.is_on or not self.has_live_stacks:
            return None
        found: dict[tuple[int, ...], LiveStack] = {}
        for segment in torch.cuda.memory_snapshot(include_traces=False):  # type: ignore[no-untyped-call]
            for block in segment["blocks"]:
                if block["state"] != "active_allocated":
                    continue
                # Equal frames are the same object within one answer.
                frames = block.get("frames", [])
                key = (segment["device"], *map(id, frames))
                stack = found.setdefault(key, LiveStack(segment["device"], frames))
                stack.bytes += block["size"]
                stack.count += 1
        return list(found.values())

    def devices(self) -> list[int]:
        """Those that PyTorch holds memory on: a machine may have eight, and each question costs microseconds."""
        if not self.is_on:
            return []
        if self._calls % _LOOK_AGAIN == 0 or not self._devices:
            self._devices = [
                device
                for device in range(torch.cuda.device_count())
                if _is_used(torch._C._cuda_memoryStats(device))
            ]
        self._calls += 1
        return self._devices


def _is_used(stats: dict[str, Any]) -> bool:
    """Whether the program has asked for memory, and perhaps got none."""
    return bool(_count(stats, "allocation", "allocated") or stats.get("num_ooms"))


def _not_there(_text: str) -> None:
    """Where events cannot say where the program was."""


def _count(stats: dict[str, Any], key: str, field: str) -> int:
    """A counter of all pools together; the flat dictionary of `torch.cuda.memory_stats()` takes ten times as long."""
    value = stats.get(key, {}).get("all", {}).get(field, 0)
    return int(value)
