"""Device memory of the emulator, seen from Python: which bytes hold values, and tensors on the CPU over the same bytes.

The emulator's device addresses are host addresses. So a *twin*, a CPU tensor over the bytes of a CUDA tensor, costs
nothing but its header, and what is written to it is what the program reads later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch

UNKNOWN, KNOWN, MADE_UP = 0, 1, 2

# Strided tensors with more contiguous pieces than this are not followed piece by piece.
_MAX_PIECES = 4096

# After this many new storages, those that are gone are looked for.
_SWEEP_INTERVAL = 4096


def span(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.itemsize


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same bytes, with the same shape and strides."""
    size = span(tensor)
    if size == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    at = tensor.data_ptr()
    if at == 0:
        raise ValueError("a tensor without memory: a wrapper subclass")
    data = (ctypes.c_char * size).from_address(at)
    return torch.frombuffer(data, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _pieces(tensor: torch.Tensor) -> tuple[list[int], int] | None:
    """The contiguous pieces of a strided tensor: their addresses and their size; None if there are too many."""
    shape, stride, run = list(tensor.shape), list(tensor.stride()), tensor.itemsize
    while shape and (shape[-1] == 1 or stride[-1] * tensor.itemsize == run):
        run *= shape.pop()
        stride.pop()
    count = 1
    for size in shape:
        count *= size
    if count > _MAX_PIECES:
        return None
    places = [tensor.data_ptr()]
    for size, step in zip(shape, stride):
        places = [place + index * step * tensor.itemsize for place in places for index in range(size)]
    return places, run


def _array(values: Iterable[int]) -> Any:
    values = list(values)
    return (ctypes.c_uint64 * len(values))(*values)


class DeviceMemory:
    """What is known of device memory.

    The library's notes belong to addresses, and PyTorch gives addresses to new tensors without telling anybody. So notes
    count only for the storage that they were made for, which we remember weakly: of new memory nothing is known.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        # Called with the interpreter's lock held: these functions are shorter than giving it up and taking it again.
        functions = ctypes.PyDLL(library._name, handle=library._handle)
        number, numbers = ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(functions, f"oomph_emulator_{name}")
            found.restype, found.argtypes = result, arguments
            return found

        self._note = function("note", None, number, number, ctypes.c_int32)
        self._note_all = function("note_all", None, numbers, numbers, ctypes.c_size_t, ctypes.c_int32)
        self._value = function("value", ctypes.c_int32, number, number)
        self._value_all = function("value_all", ctypes.c_int32, numbers, numbers, ctypes.c_size_t)
        self._zero = function("zero", None, number, number)
        self._retain = function("retain", None, numbers, numbers, ctypes.c_size_t)
        self.answer = function("answer", None, number)
        self.vouch = function("vouch", None, ctypes.c_bool)
        self.unanswered = function("unanswered", number)
        self._storages: dict[int, tuple[int, int]] = {}
        """Storages that notes are made for, by address: a weak reference and the size.

        The weak reference is PyTorch's own number for it, freed by `end`. An object that frees it in `__del__` would
        swallow the Ctrl-C that arrives there.
        """
        self._sweep_at = _SWEEP_INTERVAL
        self._zeros: dict[int, int] = {}
        """Zeros of floating point since the last backward pass: addresses and sizes."""
        self.vouch(False)

    def value(self, tensor: torch.Tensor) -> int:
        """Whether all elements of a tensor are known, or hold at least made-up values."""
        size = span(tensor)
        if size == 0:
            return KNOWN
        if not self.is_noted(tensor):
            # What the library has noted here is about a storage that was freed.
            self._note(tensor.data_ptr(), size, UNKNOWN)
            return UNKNOWN
        value: int = self._value(tensor.data_ptr(), size)
        if value != UNKNOWN or size == tensor.nbytes:
            return value
        pieces = _pieces(tensor)
        if pieces is None:
            return UNKNOWN
        places, run = pieces
        value = self._value_all(_array(places), _array([run] * len(places)), len(places))
        return value

    def is_noted(self, tensor: torch.Tensor) -> bool:
        """Whether notes are made for this tensor's storage."""
        storage = tensor.untyped_storage()
        noted = self._storages.get(storage.data_ptr())
        # The weak reference keeps this number from being given to another storage.
        return noted is not None and noted[0] == storage._cdata

    def keep(self, tensor: torch.Tensor, value: int) -> None:
        """Notes that the elements of a tensor have just been written."""
        size = span(tensor)
        if size == 0:
            return
        self.begin(tensor)
        if size == tensor.nbytes:
            self._note(tensor.data_ptr(), size, value)
            return
        # What is between the elements belongs to another tensor.
        pieces = _pieces(tensor)
        if pieces is None:
            self.forget(tensor)
        else:
            places, run = pieces
            self._note_all(_array(places), _array([run] * len(places)), len(places), value)

    def zero(self, tensor: torch.Tensor) -> None:
        """Makes a tensor of any size known zeros; one with gaps is unknown instead."""
        size = span(tensor)
        if size != tensor.nbytes:
            self.forget(tensor)
        elif size:
            self.begin(tensor)
            self._zero(tensor.data_ptr(), size)
            if tensor.is_floating_point():
                self._zeros[tensor.data_ptr()] = size

    def forget(self, tensor: torch.Tensor) -> None:
        """Notes that a kernel would have written here."""
        if self.is_noted(tensor):
            self._note(tensor.data_ptr(), span(tensor), UNKNOWN)

    def begin(self, tensor: torch.Tensor, *, with_library: bool = False) -> None:
        """From now on notes are made for this tensor's storage; what the library has noted until now may count."""
        if not self.is_noted(tensor):
            storage = tensor.untyped_storage()
            at, size = storage.data_ptr(), storage.nbytes()
            if not with_library:
                self._note(at, size, UNKNOWN)
            self.end(at)
            reference: Any = storage._weak_ref()  # an address; torch declares a storage
            self._storages[at] = (reference, size)
            if len(self._storages) > self._sweep_at:
                self._sweep()

    def end(self, address: int) -> None:
        """The storage that was here has other memory now."""
        noted = self._storages.pop(address, None)
        if noted is not None:
            torch.UntypedStorage._free_weak_ref(noted[0])

    def moved(self, tensor: torch.Tensor, kept: int) -> None:
        """The first `kept` bytes of this tensor's storage were copied here from its former memory."""
        storage = tensor.untyped_storage()
        if storage.nbytes() > kept:
            self._note(storage.data_ptr() + kept, storage.nbytes() - kept, UNKNOWN)
        self.begin(tensor, with_library=True)

    def settle(self) -> None:
        """After a backward pass, which wrote memory unseen.

        What it added to in place are gradients. If anything was known of them, they were zeros; so zeros of floating
        point do not outlive a backward pass.
        """
        if self._zeros:
            zeros, self._zeros = self._zeros, {}
            self._note_all(_array(zeros), _array(zeros.values()), len(zeros), UNKNOWN)
        self._sweep()

    def _sweep(self) -> None:
        """Drops the notes on storages that are gone."""
        is_gone = torch.UntypedStorage._expired
        for address in [at for at, (storage, _) in self._storages.items() if is_gone(storage)]:
            self.end(address)
        self._sweep_at = len(self._storages) + _SWEEP_INTERVAL
        sizes = _array(size for _, size in self._storages.values())
        self._retain(_array(self._storages), sizes, len(self._storages))
