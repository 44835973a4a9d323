"""Which device to record."""

from __future__ import annotations

import os

import torch

from .cuda_history import CudaHistory
from .history import History

_WSL_DEVICE = "/dev/dxg"


def history(device: str, max_events: int) -> History:
    if device == "cuda" or (device == "auto" and has_gpu()):
        return CudaHistory(max_events)
    from .cpu_history import CpuHistory

    return CpuHistory(max_events)


def has_gpu() -> bool:
    """Whether the program can have a GPU. Not by asking CUDA: a process that has initialised it cannot be forked."""
    if torch.cuda.is_initialized():
        return True
    if torch.version.hip is not None:
        return os.path.exists("/dev/kfd")
    if torch.version.cuda is None:
        return False
    # Where no process is forked, CUDA can be asked.
    if not hasattr(os, "fork"):
        return torch.cuda.is_available()
    # Nor NVML, which starts a thread: a program that forks first would be warned about it.
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = devices is not None and devices.strip() in ("", "-1")
    return not is_hidden and (_has_nvidia_device() or os.path.exists(_WSL_DEVICE))


def _has_nvidia_device() -> bool:
    return any(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
