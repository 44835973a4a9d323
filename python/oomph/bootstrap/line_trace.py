"""Follows the program line by line in a few of its frames, for as long as it takes.

Before Python 3.13, reading a frame's `f_locals` leaves a copy of its variables with the frame, and tracing may fill it again.
That would keep tensors alive, so the copy is cleared.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

from ..interpreter.errors import keep
from ..interpreter.frames import outwards
from ..recording.messages import words

HAS_COPIES = sys.version_info < (3, 13)
MAX_REFERENCES = 4
"""References to a copy for which the program has not asked: the frame's, that of the trace, and two where they are counted."""

AfterEvent: TypeAlias = "Callable[[FrameType, str], bool]"
"""Gets a frame and an event; false to get no more."""


class LineTrace:
    """`report` receives our own errors."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._followed: dict[FrameType, list[AfterEvent]] = {}

    @staticmethod
    def is_possible() -> bool:
        """Whether nobody else traces the program. Copies can be cleared in the main thread only."""
        is_main = threading.current_thread() is threading.main_thread()
        return sys.gettrace() in (None, _no_calls) and (is_main or not HAS_COPIES)

    def follow(self, frame: FrameType, after_event: AfterEvent) -> None:
        if frame in self._followed:
            self._followed[frame].append(after_event)
            return
        copy = frame.f_locals if HAS_COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED else None

        def _oomph_trace(traced: FrameType, event: str, argument: Any) -> Any:
            goes_on = self._pass_on(traced, event)
            if copy is not None:
                _clear_soon(copy)
            return _oomph_trace if goes_on else None

        self._followed[frame] = [after_event]
        frame.f_trace = _oomph_trace
        frame.f_trace_lines = True
        sys.settrace(_no_calls)
        if copy is not None:
            _clear_soon(copy)

    def _pass_on(self, frame: FrameType, event: str) -> bool:
        receivers = self._followed.get(frame, [])
        for after_event in [*receivers]:
            goes_on = False
            try:
                goes_on = after_event(frame, event)
            except Exception as error:
                keep(error)
                self._report(words(error))
            if not goes_on:
                receivers.remove(after_event)
        if receivers:
            return True
        self._followed.pop(frame, None)
        frame.f_trace = None
        if not self._followed and sys.gettrace() is _no_calls:
            sys.settrace(None)
        return False


_copies: list[dict[str, Any]] = []
"""Copies of variables to clear."""


def _clear_copies(_: int | None) -> int:
    # Python reads a copy once more when the trace function has returned.
    if any(frame.f_code.co_name == "_oomph_trace" for frame in outwards(sys._getframe(1))):
        _schedule()
        return 0
    while _copies:
        copy = _copies.pop()
        # What `locals()` returned to the program stays.
        if sys.getrefcount(copy) <= MAX_REFERENCES:
            copy.clear()
    return 0


_PENDING_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_clear_copies)


def _clear_soon(copy: dict[str, Any]) -> None:
    if not any(copy is known for known in _copies):
        _copies.append(copy)
        _schedule()


def _schedule() -> None:
    """Has the main thread clear the copies between two of its next instructions."""
    if ctypes.pythonapi.Py_AddPendingCall(_PENDING_CALL, None) != 0:
        _copies.clear()


def clear_copy(frame: FrameType) -> None:
    """Clears the copy of a function's variables that was left by reading them."""
    if HAS_COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        _clear_soon(frame.f_locals)


def _no_calls(*_: Any) -> None:
    """Traces none of the functions that are called."""
