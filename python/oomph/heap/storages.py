"""The memory of tensors: which storage a tensor has, where it lies and how large it is.

PyTorch gives a storage an object of its own as soon as Python asks for it, and keeps that as long as the storage. So the
storage is read where it lies; the places are found on storages of known size, and tried on others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from ..interpreter.errors import keep
from . import attributes, sparse
from .memory import WORD, byte, offset_of, word


class Storage(NamedTuple):
    identity: int
    device: str
    device_index: int
    address: int
    bytes: int


def of_tensor(tensor: torch.Tensor) -> Iterator[Storage]:
    """None for one without memory of its own, several for a sparse one."""
    try:
        for part in [tensor] if has_own_dispatch(type(tensor)) else sparse.parts(tensor) or [tensor]:
            if torch._C._has_storage(part):
                storage = _of_part(part, torch._C._storage_id(part))  # type: ignore[attr-defined]
                if storage is not None:
                    yield storage
    except Exception as error:
        keep(error)  # a kind of tensor that has none in this sense


def of_storage(storage: Any) -> Iterator[Storage]:
    """Of `torch.UntypedStorage`."""
    try:
        if storage.device.type != "meta":
            yield Storage(storage._cdata, storage.device.type, storage.device.index or 0, storage.data_ptr(), storage.nbytes())
    except Exception as error:
        keep(error)


def at(identity: int) -> Storage | None:
    """The storage that lies at this address, if it has memory. Only if `is_readable()`."""
    places = _places()
    assert places is not None
    device = _devices().get(byte(identity + places.device), "")
    index = byte(identity + places.device + 1)
    if device in ("", "meta"):
        return None
    return Storage(identity, device, 0 if index == _NO_INDEX else index, *places.memory(identity))


def is_readable() -> bool:
    return _places() is not None


def has_own_dispatch(kind: type) -> bool:
    """Whether a class of tensors answers for its shape, its device and its layout with code of its own."""
    return next(base for base in attributes.mro(kind) if "__torch_dispatch__" in attributes.namespace(base)) is not torch.Tensor


def _of_part(part: torch.Tensor, identity: int) -> Storage | None:
    if is_readable():
        return at(identity)
    if part.device.type == "meta":
        return None
    whole = part.untyped_storage()
    return Storage(identity, part.device.type, part.device.index or 0, whole.data_ptr(), whole.nbytes())


_NO_INDEX = 255


class _Places(NamedTuple):
    """Offsets in a storage."""

    address: int
    size: int
    device: int

    def memory(self, identity: int) -> tuple[int, int]:
        return word(identity + self.address), word(identity + self.size)


@cache
def _places() -> _Places | None:
    """Where every one of some storages has its own."""
    storages = [torch.UntypedStorage(size) for size in (1031, 65537, 4099)]
    unreal = torch.UntypedStorage(1033, device="meta")
    address = offset_of({each._cdata: each.data_ptr() for each in storages}, 15 * WORD)
    size = offset_of({each._cdata: each.nbytes() for each in storages}, 15 * WORD)
    if address is None or size is None:
        return None
    # The device stands behind the address and what frees it.
    device = address + 3 * WORD
    known = [(byte(each._cdata + device), byte(each._cdata + device + 1)) for each in (*storages, unreal)]
    names = [_devices().get(kind) for kind, _ in known]
    is_right = names == ["cpu", "cpu", "cpu", "meta"] and {index for _, index in known} == {_NO_INDEX}
    return _Places(address, size, device) if is_right else None


@cache
def _devices() -> dict[int, str]:
    kinds: Any = torch._C._autograd.DeviceType
    return {int(number): name.lower() for name, number in kinds.__members__.items()}
