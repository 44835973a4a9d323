"""Follows the program line by line in a few of its frames, for as long as it takes.

Before Python 3.13, reading a frame's `f_locals` leaves a copy of its variables with the frame (before 3.11, tracing does, too).
That would keep tensors alive until somebody reads it again, so the copy is emptied.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from ..interpreter.frames import outwards

HAS_COPIES = sys.version_info < (3, 13)
ONLY_HOLDERS = 3
"""References to a copy that nobody else has: the frame's, ours, and the argument's."""


class LineTrace:
    """`report` receives our own errors."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._followed: set[FrameType] = set()

    @staticmethod
    def is_possible() -> bool:
        """Whether nobody traces the program: neither a debugger, nor we."""
        return sys.gettrace() is None

    def follow(self, frame: FrameType, after_event: Callable[[FrameType, str], bool]) -> None:
        """Calls `after_event` for each event in a frame until it is false."""

        def trace(traced: FrameType, event: str, argument: Any) -> Any:
            try:
                if traced in self._followed and after_event(traced, event):
                    return trace
            except Exception as error:
                self._report(str(error))
            self._end(traced)
            return None

        _TRACING.add(trace.__code__)
        self._followed.add(frame)
        frame.f_trace = trace
        frame.f_trace_lines = True
        sys.settrace(_no_calls)

    def stop(self) -> None:
        for frame in [*self._followed]:
            self._end(frame)

    def _end(self, frame: FrameType) -> None:
        self._followed.discard(frame)
        frame.f_trace = None
        if not self._followed and sys.gettrace() is _no_calls:
            sys.settrace(None)
        if HAS_COPIES:
            _with_copies.append(frame)
            _empty_copies_soon()


def empty_copy(frame: FrameType) -> None:
    """Lets go of the values in the copy of a function's variables. Not to be called while the frame is traced."""
    if not HAS_COPIES or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    copy = frame.f_locals
    # What `locals()` returned to the program stays.
    if sys.getrefcount(copy) <= ONLY_HOLDERS:
        copy.clear()


_TRACING: set[CodeType] = set()
"""The code of our trace functions."""
_with_copies: list[FrameType] = []


def _empty_copies(_: int | None) -> int:
    # Python reads the copy once more when the trace function has returned.
    if any(frame.f_code in _TRACING for frame in outwards(sys._getframe(1))):
        _empty_copies_soon()
    else:
        while _with_copies:
            empty_copy(_with_copies.pop())
    return 0


_PENDING_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_empty_copies)


def _empty_copies_soon() -> None:
    """Has the main thread do so between two of its next instructions."""
    if ctypes.pythonapi.Py_AddPendingCall(_PENDING_CALL, None) != 0:
        _with_copies.clear()


def _no_calls(*_: Any) -> None:
    """Traces none of the functions that are called."""
