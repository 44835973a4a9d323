"""The ledger: memory of each device by owner, at some moments of the run.

A sample has what PyTorch counts, what the driver counts for this process and for others, and what libraries have taken from
the driver if their calls are traced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from .driver_trace import DriverTrace
from .nvml import Nvml

_MAX_SAMPLES = 64
"""Samples that are kept; of a long run, every second one, then every fourth, and so on."""

Rows = list[dict[str, int]]


class Ledger:
    """`counters` gives what PyTorch counts on each device; `nvml` the driver."""

    def __init__(self, counters: Callable[[], Rows], nvml: Callable[[], Nvml], trace: DriverTrace | None) -> None:
        self._counters = counters
        self._nvml = nvml
        self._trace = trace
        self.last: dict[str, Any] = {}
        """The sample that was taken last."""
        self._samples: list[dict[str, Any]] = []
        self._highest: dict[str, Any] | None = None
        self._every = 1
        self._seen = 0

    def sample(self, at: str, step: int, rows: Rows | None = None) -> None:
        """Takes a sample; `at` says what happens: `start`, `step`, or the reason of a dump."""
        taken: dict[str, Any] = {"at": at, "time_us": time.time_ns() // 1000, "step": step}
        taken |= self.read(self._counters() if rows is None else rows)
        self.last = taken
        self._seen += 1
        if self._highest is None or _used(taken) > _used(self._highest):
            self._highest = taken
        if at != "step" or self._seen % self._every == 0:
            self._samples.append(taken)
        if len(self._samples) > _MAX_SAMPLES:
            self._samples = [of for index, of in enumerate(self._samples) if index % 2 == 0]
            self._every *= 2

    def read(self, rows: Rows) -> dict[str, Any]:
        """What each owner has now; `rows` are PyTorch's counters."""
        taken: dict[str, Any] = {"devices": [self._device(row) for row in rows]}
        return taken if self._trace is None else {**taken, "driver": self._trace.read()}

    def as_json(self, pools: list[dict[str, Any]]) -> dict[str, Any]:
        """Content of the file; `pools` are the owners of private pools."""
        samples = list(self._samples)
        if self._highest is not None and self._highest not in samples:
            samples.append(self._highest)
        samples.sort(key=lambda of: int(of["time_us"]))
        return {"version": 1, "traced": self._trace is not None, "samples": samples, "pools": pools}

    def driver_counts(self) -> list[dict[str, Any]]:
        """What libraries have taken from the driver now; nothing if its calls are not counted."""
        entries: list[dict[str, Any]] = [] if self._trace is None else self._trace.read()["entries"]
        return entries

    def _device(self, row: dict[str, int]) -> dict[str, Any]:
        device = row["device"]
        found: dict[str, Any] = {name: row[name] for name in ("device", "allocations", "allocated", "reserved")}
        nvml = self._nvml()
        used = nvml.used(device)
        if used is not None:
            found["used"] = used
            found["processes"] = nvml.processes(device)
        nccl = _nccl(device)
        if nccl:
            found["nccl"] = nccl
        return found


def _used(sample: dict[str, Any]) -> int:
    return sum(device.get("used", device["reserved"]) for device in sample["devices"])


def _nccl(device: int) -> list[dict[str, Any]]:
    """Memory of each NCCL communicator, where PyTorch and NCCL count it (`Backend.memory_stats()`)."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return []
    found = []
    for group in list(distributed.distributed_c10d._world.pg_map):
        # Of a group that is not bound to a device, PyTorch would guess the device, and warn about it.
        if getattr(group, "bound_device_id", None) is None:
            continue
        try:
            backend: Any = group._get_backend(torch.device("cuda", device))
            stats = backend.memory_stats()
            found.append({"group": group.group_name, "bytes": int(stats["total"] if "total" in stats else sum(stats.values()))})
        except (AttributeError, RuntimeError, TypeError, ValueError):
            continue  # another backend, or a version that does not count
    return found
