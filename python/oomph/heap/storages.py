"""The memory of tensors: which storage a tensor has, where it lies and how large it is.

PyTorch gives a storage an object of its own as soon as Python asks for it, and keeps that as long as the storage. So the
storage is read where it lies; the places are found on storages of known size, and tried on others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch


class Storage(NamedTuple):
    identity: int
    device: str
    index: int
    address: int
    bytes: int


def of_tensor(tensor: torch.Tensor) -> Iterator[Storage]:
    """None for one without memory of its own, several for a sparse one."""
    try:
        for part in _parts(tensor):
            if part.device.type != "meta" and torch._C._has_storage(part):  # type: ignore[attr-defined]
                yield _read(torch._C._storage_id(part), part.device, part)  # type: ignore[attr-defined]
    except Exception:
        return  # a kind of tensor that has none in this sense


def of_storage(storage: Any) -> Iterator[Storage]:
    """Of `torch.UntypedStorage`."""
    try:
        if storage.device.type != "meta":
            yield Storage(storage._cdata, storage.device.type, storage.device.index or 0, storage.data_ptr(), storage.nbytes())
    except Exception:
        return


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def _read(identity: int, device: torch.device, tensor: torch.Tensor) -> Storage:
    places = _places()
    if places is None:
        whole = tensor.untyped_storage()
        address, size = whole.data_ptr(), whole.nbytes()
    else:
        address, size = (ctypes.c_int64.from_address(identity + place).value for place in places)
    return Storage(identity, device.type, device.index or 0, address, size)


@cache
def _places() -> tuple[int, int] | None:
    """Offsets of the address and of the size, where every one of some storages has its own."""
    storages = [torch.UntypedStorage(size) for size in (1031, 65537, 4099)]

    def offset(values: list[int]) -> int | None:
        for place in range(8, 120, 8):
            if [ctypes.c_int64.from_address(each._cdata + place).value for each in storages] == values:
                return place
        return None

    address, size = offset([each.data_ptr() for each in storages]), offset([each.nbytes() for each in storages])
    return None if address is None or size is None else (address, size)
