"""Settings of the interpreter that our work changes for a moment: the collector, how often threads take turns, and whether a
profiler of the program sees what a thread does."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .system import after_fork

_lock = threading.Lock()
_users = 0
"""Pieces of our work under way, in whichever thread."""
_collects = False
_interval = 0.0
"""What the program had before the first of them."""


@contextmanager
def undisturbed(switch_interval: float | None = None) -> Iterator[None]:
    """Keeps the collector off, and other threads from taking their turn for `switch_interval` seconds if given."""
    global _users, _collects, _interval
    with _lock:
        if _users == 0:
            _collects, _interval = gc.isenabled(), sys.getswitchinterval()
        _users += 1
        gc.disable()
        if switch_interval is not None:
            sys.setswitchinterval(switch_interval)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if switch_interval is not None:
                sys.setswitchinterval(_interval)
            if _users == 0 and _collects:
                gc.enable()


@contextmanager
def unobserved() -> Iterator[None]:
    """Keeps our work in this thread from the program's profilers, tracers and debuggers: PyTorch's profiler with `with_stack`
    would note millions of our calls. Python has a way to ask for that since 3.11."""
    if sys.version_info < (3, 11):
        yield
        return
    current, enter, leave = _tracing_functions()
    thread = current()
    enter(thread)
    try:
        yield
    finally:
        leave(thread)


@functools.cache
def _tracing_functions() -> tuple[Callable[[], int], Callable[[int], None], Callable[[int], None]]:
    """Of Python's C API. The objects are ours alone: `ctypes.pythonapi` shares its own with everybody."""
    change = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    current = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    names = ("PyThreadState_EnterTracing", "PyThreadState_LeaveTracing")
    enter, leave = (change((name, ctypes.pythonapi)) for name in names)
    return current, enter, leave


def _forked() -> None:
    """A process that another thread forks in the middle of our work goes on without it."""
    global _lock, _users
    _lock = threading.Lock()
    if _users:
        _users = 0
        sys.setswitchinterval(_interval)
        if _collects:
            gc.enable()


after_fork(_forked)
