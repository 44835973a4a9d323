"""What is to be known about a process besides its history."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch


def meta(kind: str, began_us: int) -> dict[str, Any]:
    """What is the same for all ranks: versions, settings, devices."""
    devices: list[dict[str, Any]] = []
    if kind == "cuda":
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            fraction = _fraction(index)
            limit = None if fraction >= 1.0 else int(fraction * properties.total_memory)
            devices.append({"index": index, "name": properties.name, "total": properties.total_memory, "limit": limit})
    variables = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    settings = next((os.environ[name] for name in variables if name in os.environ), "")
    return {
        "version": 1,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "command": [word.encode("utf-8", "replace").decode() for word in sys.orig_argv],
        "started_us": began_us,
        "world_size": int(os.environ.get("WORLD_SIZE") or "1"),
        "settings": settings,
        "devices": devices,
    }


def _fraction(device: int) -> float:
    """The share of the device that the process may have; unknown before torch 2.6."""
    ask = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return 1.0 if ask is None else float(ask(device))


def pinned() -> dict[str, int]:
    """Pinned host memory, where PyTorch counts it (2.7 and later)."""
    stats: dict[str, Any] = getattr(torch._C, "_cuda_hostMemoryStats", dict)()
    pinned = stats.get("allocated_bytes") or stats.get("reserved_bytes")
    if isinstance(pinned, dict):
        pinned = pinned.get("current", pinned.get("all", {}).get("current"))
    return {"pinned": int(pinned)} if pinned is not None else {}
