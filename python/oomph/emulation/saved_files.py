"""What a program has saved, without the values: enough to load it again as zeros.

Tensors pickle themselves as views of storages, and a pickler can leave something else in the place of each storage.
That is how `torch.save` works, and it is so here, except that nothing of the storage is kept but its size, type and
place. So everything that `torch.save` can write comes back: views that share a storage, parameters, optimizer states,
whole modules. Loading goes the way of `torch.load`, which makes a storage in host memory first and then has it moved.
"""

from __future__ import annotations

import io
import mmap
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.serialization import _get_restore_location, location_tag

_SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
MIN_MAPPED_BYTES = 1 << 20
"""Zeros of at least this size come from anonymous memory maps."""


class Description(NamedTuple):
    """A storage: what a pickle has in its place."""

    key: int
    size: int
    dtype: torch.dtype
    location: str


@dataclass(frozen=True)
class Saved:
    """What `torch.save` was given."""

    pickled: bytes

    @staticmethod
    def of(obj: Any) -> Saved:
        buffer = io.BytesIO()
        # The protocol of `torch.save`: tensors pickle themselves differently under others.
        _Pickler(buffer, protocol=2).dump(obj)
        return Saved(buffer.getvalue())

    def load(self, map_location: Any) -> Any:
        return _Unpickler(io.BytesIO(self.pickled), map_location).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        # Kept while we pickle: another storage must not get the place of one that is gone.
        self.storages: dict[int, torch.UntypedStorage] = {}

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        if isinstance(obj, torch.storage.TypedStorage):
            dtype, storage = obj.dtype, obj._untyped_storage
        elif isinstance(obj, torch.UntypedStorage):
            dtype, storage = torch.uint8, obj
        else:
            return None
        self.storages[storage._cdata] = storage
        return tuple(Description(storage._cdata, storage.nbytes(), dtype, location_tag(storage)))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, map_location: Any) -> None:
        super().__init__(file)
        self.restore = _get_restore_location(map_location)
        self.storages: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, pid: Any) -> torch.storage.TypedStorage:
        description = Description(*pid)
        storage = self.storages.get(description.key)
        if storage is None:
            zeros = _zeros(description.size).untyped_storage()
            storage = self.storages[description.key] = self.restore(zeros, description.location)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=description.dtype, _internal=True)


@dataclass(frozen=True)
class SavedTensors:
    """What `safetensors` was given: names and tensors, without devices."""

    tensors: dict[str, tuple[torch.Size, torch.dtype]]

    @staticmethod
    def of(tensors: dict[str, torch.Tensor]) -> SavedTensors:
        return SavedTensors({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})

    def load(self, device: Any) -> dict[str, torch.Tensor]:
        return {name: self.tensor(name, device) for name in self.tensors}

    def tensor(self, name: str, device: Any) -> torch.Tensor:
        shape, dtype = self.tensors[name]
        return _zeros(_size(shape, dtype)).view(dtype).view(shape).to(device)


class OpenedTensors:
    """What `safetensors.safe_open` gives for a file that was not written."""

    def __init__(self, saved: SavedTensors, device: Any) -> None:
        self._saved = saved
        self._device = device

    def __enter__(self) -> OpenedTensors:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def keys(self) -> list[str]:
        return sorted(self._saved.tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._saved.tensor(name, self._device)

    def get_slice(self, name: str) -> OpenedSlice:
        return OpenedSlice(self._saved, name, self._device)


class OpenedSlice:
    """A tensor of it that is read when it is indexed."""

    def __init__(self, saved: SavedTensors, name: str, device: Any) -> None:
        self._saved, self._name, self._device = saved, name, device

    def get_shape(self) -> list[int]:
        return list(self._saved.tensors[self._name][0])

    def get_dtype(self) -> str:
        return _SAFETENSORS_NAMES.get(self._saved.tensors[self._name][1], "F32")

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._saved.tensor(self._name, self._device)[index]


def _size(shape: torch.Size, dtype: torch.dtype) -> int:
    return shape.numel() * torch.empty((), dtype=dtype).element_size()


def _zeros(size: int) -> torch.Tensor:
    """Bytes in host memory; those from the system take memory only when they are changed."""
    if size < MIN_MAPPED_BYTES:
        return torch.zeros(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8)
