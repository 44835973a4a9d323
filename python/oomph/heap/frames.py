"""Functions that run, and their local variables, without keeping these alive.

Asking for `f_locals` makes a copy that stays with the frame until Python 3.12, and gives what a cell holds in the place of the
cell. So they are read where they lie; the place is found and tried on a frame of our own.
"""

from __future__ import annotations

import sys
from functools import cache
from types import CodeType, FrameType
from typing import Any

from ..interpreter.frames import outwards
from .memory import WORD, object_at, offset_of, word

_OPTIMIZED = 1
"""Flag of code whose variables have places in the frame: that of functions."""
_FRAME_OF_INTERPRETER = 3 * WORD
"""Where a frame's object has the address of the frame, since Python 3.11."""
_TAGS = 3
"""Bits of an address that Python 3.14 has a use for."""


def variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values; the cell of a variable that other functions share. Of a module or the body of a class none: its
    variables are in a dictionary of their own."""
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        return []
    offset = _offset_of_variables()
    if offset is None:
        return list(frame.f_locals.items())
    begin = word(id(frame) + _FRAME_OF_INTERPRETER) + offset
    addresses = [(name, word(begin + WORD * at) & ~_TAGS) for at, name in enumerate(_names(code))]
    return [(name, object_at(address)) for name, address in addresses if address]


def on_stack(frame: FrameType) -> list[int]:
    """Identities of values without a name, such as what a `for` goes through. Some may be gone: how far the stack reaches now
    is not known."""
    offset = _offset_of_variables()
    if offset is None:
        return []
    begin = word(id(frame) + _FRAME_OF_INTERPRETER) + offset + WORD * len(_names(frame.f_code))
    return [word(begin + WORD * at) & ~_TAGS for at in range(frame.f_code.co_stacksize)]


def _names(code: CodeType) -> list[str]:
    # An argument that is shared has its cell in its own place.
    return list(dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)))


def running() -> list[tuple[int, FrameType]]:
    """Of every thread, but not those of the walk."""
    found = []
    for thread, innermost in sys._current_frames().items():
        for frame in outwards(innermost):
            if dict.get(frame.f_globals, "__package__") != __package__:
                found.append((thread, frame))
    # One of them is that of this function: a frame that refers to itself would stay.
    innermost = frame = None  # type: ignore[assignment]
    return found


def handled(found: Any) -> BaseException | None:
    """The exception itself, where Python gives more (before 3.12)."""
    value = found[1] if type(found) is tuple else found
    return value if issubclass(type(value), BaseException) else None


def catches(frame: FrameType, exception: Any) -> bool:
    """A traceback begins where the exception was caught."""
    trace = BaseException.__dict__["__traceback__"].__get__(exception)
    return trace is not None and trace.tb_frame is frame


@cache
def _offset_of_variables() -> int | None:
    is_known = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 15)
    if not is_known or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    return _probe(object(), object())


def _probe(first: object, second: object) -> int | None:
    frame = word(id(sys._getframe()) + _FRAME_OF_INTERPRETER)
    offset = offset_of({frame: id(first)}, 16 * WORD)
    return offset if offset is not None and word(frame + offset + WORD) == id(second) else None
