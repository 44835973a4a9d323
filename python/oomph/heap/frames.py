"""Local variables of a frame, without keeping them alive."""

from __future__ import annotations

import ctypes
import sys
from types import FrameType
from typing import Any

_OPTIMIZED = 1
"""Flag of code whose variables have places in the frame: that of functions."""


def variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values. Of a module or the body of a class none: its variables are in a dictionary of their own."""
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        return []
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if sys.version_info >= (3, 12):
        return _one_by_one(frame)
    # Asking makes a copy that stays with the frame, and would hold what the function lets go later.
    copy: Any = frame.f_locals
    found = list(copy.items())
    # That of `locals()` is the same one: if the program has it, it is the program's.
    if sys.getrefcount(copy) <= 3:
        copy.clear()
    return found


def _one_by_one(frame: FrameType) -> list[tuple[str, Any]]:
    get = ctypes.pythonapi.PyFrame_GetVar
    get.argtypes, get.restype = [ctypes.py_object, ctypes.py_object], ctypes.py_object
    code = frame.f_code
    found = []
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        try:
            found.append((name, get(frame, name)))
        except NameError:  # not bound now
            continue
    return found


def stack(frame: FrameType | None) -> list[FrameType]:
    """From the innermost frame outwards."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found
