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
            card = {"index": index, "name": properties.name, "total": properties.total_memory}
            devices.append({**card, "limit": limit(index)})
    return {
        "version": 1,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "command": command(),
        "started_us": began_us,
        "world_size": world_size(),
        "settings": allocator_settings(),
        "devices": devices,
    }


def allocator_settings() -> str:
    variables = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    return next((os.environ[name] for name in variables if name in os.environ), "")


def command() -> list[str]:
    """The command line, as the system has started it."""
    return [word.encode("utf-8", "replace").decode() for word in sys.orig_argv]


def world_size() -> int:
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() else 1


def limit(device: int) -> int | None:
    """What the process may have of the device, if that is less than all; unknown before torch 2.6."""
    ask = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    fraction = 1.0 if ask is None else float(ask(device))
    return None if fraction >= 1.0 else int(fraction * torch.cuda.get_device_properties(device).total_memory)


def pinned() -> dict[str, int]:
    """Pinned host memory, where PyTorch counts it (2.7 and later)."""
    stats: dict[str, Any] = getattr(torch._C, "_cuda_hostMemoryStats", dict)()
    pinned = stats.get("allocated_bytes") or stats.get("reserved_bytes")
    if isinstance(pinned, dict):
        pinned = pinned.get("current", pinned.get("all", {}).get("current"))
    return {"pinned": int(pinned)} if pinned is not None else {}
