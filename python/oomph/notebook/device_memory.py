"""What PyTorch's allocator has, on all GPUs of the process; where no GPU is used, the tensors on the CPU."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..sizes import format_size


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of all devices together."""

    device: str
    """`GPU` or `CPU`."""
    allocated: int
    reserved: int
    """What the allocator has from the driver; 0 on the CPU."""
    non_pytorch: int
    """What other code, the CUDA context and other processes take of the same GPUs."""

    @property
    def cached(self) -> int:
        return max(self.reserved - self.allocated, 0)


def uses_gpu() -> bool:
    """Whether this process has a CUDA context: it is not asked for one."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def now(graph: dict[str, Any]) -> DeviceMemory:
    """`graph`: a walk of the heap as it is now, which is all that is known about the CPU."""
    if not uses_gpu():
        return DeviceMemory("CPU", sum(storage_sizes(graph).values()), 0, 0)
    import torch

    devices = range(torch.cuda.device_count())
    stats = [torch.cuda.memory_stats(device) for device in devices]
    allocated = sum(stat.get("allocated_bytes.all.current", 0) for stat in stats)
    reserved = sum(stat.get("reserved_bytes.all.current", 0) for stat in stats)
    in_use = 0
    with suppress(RuntimeError):
        for device, stat in zip(devices, stats, strict=True):
            if stat.get("reserved_bytes.all.current", 0):
                free, total = torch.cuda.mem_get_info(device)
                in_use += total - free
    return DeviceMemory("GPU", allocated, reserved, max(in_use - reserved, 0))


def storage_sizes(graph: dict[str, Any]) -> dict[int, int]:
    """Bytes of each storage of a walk by its place: on the GPU as allocated, so that they add up to the allocator's count."""
    if not uses_gpu():
        return {place: size for place, device, _, _, size in graph["storages"] if device == "cpu"}
    from ..holders import allocated_blocks

    blocks = allocated_blocks()
    # Two storages can have one address: the memory counts once. What another library has allocated does not count.
    places = {(index, address): place for place, device, index, address, _ in graph["storages"] if device == "cuda"}
    return {place: blocks[address] for address, place in places.items() if address in blocks}


def in_words(memory: DeviceMemory) -> str:
    parts = [f"{format_size(memory.allocated)} allocated"]
    if memory.device == "GPU":
        parts += [f"{format_size(memory.cached)} cached by PyTorch", f"{format_size(memory.non_pytorch)} non-PyTorch"]
    return " · ".join(parts)
