"""Settings of the interpreter that our work changes for a moment: the collector, and how often threads take turns."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
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
