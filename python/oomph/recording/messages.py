"""Messages of the recorder on standard error, which the program may have closed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable

from ..interpreter.descriptors import identity

_STDOUT, _STDERR = 1, 2
_MAX_CAUSES = 16
_AT_START = identity(_STDERR)

listener: Callable[[str], object] | None = None
"""Gets the messages in place of standard error, if there is one."""


def say(text: str) -> None:
    if listener is not None:
        listener(text)
        return
    try:
        if sys.stderr is not None and not _is_data():
            print(f"oomph: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # closed by the program


def _is_data() -> bool:
    """Whether standard error has become a file of the program, which has closed it and got its number again. A log is opened for
    appending, or is standard output as well."""
    if sys.stderr is not sys.__stderr__ or identity(_STDERR) in (_AT_START, identity(_STDOUT)):
        return False
    if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
        return False
    try:
        import fcntl
    except ImportError:  # on Windows
        return True
    return not fcntl.fcntl(_STDERR, fcntl.F_GETFL) & os.O_APPEND


def words(error: BaseException) -> str:
    """An exception in one line; `str()` of it may fail or give text that cannot be encoded."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()


def out_of_memory_behind(error: BaseException) -> BaseException | None:
    """The `OutOfMemoryError` behind an exception that was raised from it, or while it was handled."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None or type(cause).__name__ == "OutOfMemoryError":
            return cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None
