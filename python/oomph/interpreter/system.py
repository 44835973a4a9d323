"""What only some systems have. `oomph.record()` works on all of them, with less where something is missing."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

IS_LINUX = sys.platform == "linux"
_IS_WINDOWS = sys.platform == "win32"
_QUERY_LIMITED_INFORMATION = 0x1000
_STILL_ACTIVE = 259
"""Exit code of a process of Windows that has not ended."""

NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag that keeps `os.open` from following a link."""
BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag that keeps Windows from changing the ends of lines."""
NO_WAITING: int = getattr(os, "O_NONBLOCK", 0)
"""Flag that keeps `os.open` from waiting for the other end of a FIFO."""


_after_fork: list[Callable[[], object]] = []


def after_fork(function: Callable[[], object]) -> None:
    """Calls `function` in every process that this one forks."""
    if not _after_fork and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    _after_fork.append(function)


def _forked() -> None:
    for function in list(_after_fork):
        function()


def forget_forks() -> None:
    """Calls nothing any more, and takes our function out of the interpreter's list, for which Python has no call."""
    _after_fork.clear()
    for functions in gc.get_referrers(_forked):
        if type(functions) is list:
            functions[:] = [function for function in functions if function is not _forked]


def is_running(process: int) -> bool:
    """Whether there is a process with this ID."""
    if not _IS_WINDOWS:
        try:
            os.kill(process, 0)
        except OSError as error:
            return isinstance(error, PermissionError)  # of another user
        return True
    # `os.kill` would send Ctrl-C, whose number is 0 there.
    kernel: Any = vars(ctypes)["windll"].kernel32
    handle = kernel.OpenProcess(_QUERY_LIMITED_INFORMATION, False, process)
    code = ctypes.c_ulong()
    try:
        return bool(handle) and bool(kernel.GetExitCodeProcess(handle, ctypes.byref(code))) and code.value == _STILL_ACTIVE
    finally:
        if handle:
            kernel.CloseHandle(handle)
