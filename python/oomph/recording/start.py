"""Which device to record."""

from __future__ import annotations

import os

import torch

from .cuda_history import CudaHistory
from .history import History


def history(device: str, max_events: int) -> History:
    if device == "cuda" or device == "auto" and has_gpu():
        return CudaHistory(max_events)
    from .cpu_history import CpuHistory

    return CpuHistory(max_events)


def has_gpu() -> bool:
    """Whether the program can have a GPU. Not by asking CUDA: a process that has initialised it cannot be forked."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    if torch.version.hip is not None:
        return os.path.exists("/dev/kfd")
    if torch.version.cuda is None:
        return False
    count = torch.cuda._device_count_nvml()
    return count > 0 if count >= 0 else os.path.exists("/dev/nvidiactl")
