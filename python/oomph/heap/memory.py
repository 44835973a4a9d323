"""Words of memory, read where the interpreter and PyTorch keep them. Whoever reads has tried the place on something known."""

from __future__ import annotations

import ctypes
from typing import Any

WORD = 8


def word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def byte(address: int) -> int:
    return ctypes.c_ubyte.from_address(address).value


def object_at(address: int) -> Any:
    """The Python object that lies there."""
    return ctypes.cast(address, ctypes.py_object).value


def offset_of(values: dict[int, int], limit: int, start: int = WORD) -> int | None:
    """Where, after each of these addresses, its value stands."""
    for offset in range(start, limit, WORD):
        if all(word(address + offset) == value for address, value in values.items()):
            return offset
    return None
