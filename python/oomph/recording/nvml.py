"""What the driver knows of a GPU and PyTorch does not: all memory in use, and by which processes."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


_UNKNOWN = 2**64 - 1
"""What NVML says where it may not look: in some containers, under WSL."""
_MAX_PROCESSES = 256


class Nvml:
    """Answers `None` where there is no NVML or it fails: nothing depends on it."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handles: dict[int, ctypes.c_void_p] = {}
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0:
                self._library = library
        except (OSError, AttributeError):
            return

    def used(self, device: int) -> int | None:
        """Bytes in use on the whole device, by everybody."""
        memory = _Memory()
        handle = self._handle(device)
        if handle is None or self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        return int(memory.used)

    def processes(self, device: int) -> list[dict[str, Any]]:
        """The processes that compute on the device, as far as they can be seen from here."""
        handle = self._handle(device)
        if handle is None:
            return []
        processes = (_Process * _MAX_PROCESSES)()
        count = ctypes.c_uint(_MAX_PROCESSES)
        try:
            failed = self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
        except AttributeError:
            return []
        if failed:
            return []
        return [
            {"pid": process.pid, "bytes": process.used, "name": _name(process.pid)}
            for process in processes[: count.value]
            if process.used != _UNKNOWN
        ]

    def _handle(self, device: int) -> ctypes.c_void_p | None:
        if self._library is None:
            return None
        if device not in self._handles:
            try:
                # PyTorch numbers the devices that CUDA_VISIBLE_DEVICES leaves; NVML numbers all of them.
                uuid = str(torch.cuda.get_device_properties(device).uuid)
                uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
                handle = ctypes.c_void_p()
                if self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
                    return None
                self._handles[device] = handle
            except (AttributeError, RuntimeError):
                return None
        return self._handles[device]


def _name(pid: int) -> str:
    if pid == os.getpid():
        return "this process"
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
