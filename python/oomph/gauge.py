"""Measures the memory that a piece of code takes: on the GPUs, or of CPU tensors."""

from __future__ import annotations

import gc
from typing import Any, Protocol

import torch

from .allocations import Allocation, allocations
from .recording.cpu_history import CpuHistory
from .recording.history import MAX_EVENTS


class Gauge(Protocol):
    """All dictionaries are by device."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None:
        """Counts allocations from here on, as `start` does, without another look at what is alive."""

    def reset_peak(self) -> None: ...

    def name(self, device: int) -> str:
        """As a person would say it."""

    def allocated(self) -> dict[int, int]: ...

    def peak(self) -> dict[int, int]:
        """The most that was allocated at once since the start."""

    def allocations(self) -> dict[int, int]:
        """How many have been made since the start."""

    def snapshot(self) -> dict[str, Any]: ...


def gauge_for(device: str) -> Gauge | None:
    """For `cuda`, `cpu` or `auto`: a GPU if there is one. `None` if `cuda` is not there."""
    if device != "cpu" and torch.cuda.is_available():
        return CudaGauge(without_workspaces=True)
    return None if device == "cuda" else CpuGauge()


def blocks(gauge: Gauge) -> list[Allocation]:
    """The blocks that were allocated since the start."""
    return allocations(gauge.snapshot(), gauge.allocations())


class CpuGauge:
    def __init__(self) -> None:
        self._history = CpuHistory(MAX_EVENTS)
        self._before = 0

    def start(self) -> None:
        gc.collect()
        self._history.start()

    def stop(self) -> None:
        self._history.stop()

    def restart(self) -> None:
        self._history.forget()
        self._before = self._history.allocations()[0]
        self.reset_peak()

    def reset_peak(self) -> None:
        self._history.reset_peak()

    def name(self, device: int) -> str:
        return "the CPU"

    def allocated(self) -> dict[int, int]:
        return {0: self._history.counters()[0]["allocated"]}

    def peak(self) -> dict[int, int]:
        return {0: self._history.peak()}

    def allocations(self) -> dict[int, int]:
        return {0: self._history.allocations()[0] - self._before}

    def snapshot(self) -> dict[str, Any]:
        return self._history.snapshot()


class CudaGauge:
    """By the allocator's own counters. A history that is on already stays on, and its events stay.

    `without_workspaces`: cuBLAS's are taken away before each look, so that they do not count for the code that comes first.
    """

    def __init__(self, *, without_workspaces: bool) -> None:
        self._without_workspaces = without_workspaces
        self._is_ours = False
        self._before: dict[int, int] = {}

    def start(self) -> None:
        torch.cuda.init()
        gc.collect()
        self._forget_workspaces()
        if not torch._C._cuda_isHistoryEnabled():
            # Stacks at allocations only, as the recorder does and for its reason.
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MAX_EVENTS)
            self._is_ours = bool(torch._C._cuda_isHistoryEnabled())
        self.restart()

    def stop(self) -> None:
        if self._is_ours:
            self._is_ours = False
            torch.cuda.memory._record_memory_history(enabled=None)

    def restart(self) -> None:
        self.reset_peak()
        self._before = self._count()

    def reset_peak(self) -> None:
        for device in _devices():
            torch.cuda.reset_peak_memory_stats(device)

    def name(self, device: int) -> str:
        return f"GPU {device}"

    def allocated(self) -> dict[int, int]:
        # Blocks that wait for another stream are not in it: their tensors are gone.
        self._forget_workspaces()
        return {device: torch.cuda.memory_allocated(device) for device in _devices()}

    def peak(self) -> dict[int, int]:
        return {device: torch.cuda.max_memory_allocated(device) for device in _devices()}

    def allocations(self) -> dict[int, int]:
        return {device: count - self._before.get(device, 0) for device, count in self._count().items()}

    def snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        return snapshot

    def _forget_workspaces(self) -> None:
        """cuBLAS gets tens of MiB at the first product and keeps them: no leak of the code that happens to come first."""
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if self._without_workspaces and clear is not None:
            clear()

    def _count(self) -> dict[int, int]:
        stats = {device: torch.cuda.memory_stats(device) for device in _devices()}
        return {device: int(stat.get("allocation.all.allocated", 0)) for device, stat in stats.items()}


def _devices() -> range:
    return range(torch.cuda.device_count())
