"""Ends the processes of an emulated run when `oomph` ends, however it does.

Each process opens a FIFO whose other end `oomph` holds, and asks the system for SIGKILL when that end closes. No thread is
needed, the death of a thread or of a parent does not matter, and a process that closes its files is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal

from ..interpreter.descriptors import out_of_the_way
from ..interpreter.system import after_fork

_F_SETSIG = 10
"""Of Linux, which is not in `fcntl` before Python 3.14."""
_O_ASYNC = 0x2000
_descriptor: int | None = None


def hold(path: str) -> None:
    """Binds this process, and those that it forks, to the process that holds the other end."""
    _bind(path)
    after_fork(lambda: _bind(path))


def _bind(path: str) -> None:
    global _descriptor
    import fcntl  # not on Windows, where no process is bound

    with contextlib.suppress(Exception):
        if _descriptor is not None:
            # A forked process shares the open file of its parent, and the system signals only one of them.
            inherited, _descriptor = _descriptor, None
            if _is_it(inherited, path):
                os.close(inherited)
        try:
            descriptor = out_of_the_way(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except FileNotFoundError:
            _end()
            return
        _descriptor = descriptor
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK | _O_ASYNC)
        # The other end may have been closed before; an open one that is never written to gives EAGAIN.
        with contextlib.suppress(BlockingIOError):
            if os.read(descriptor, 1) == b"":
                _end()


def _is_it(descriptor: int, path: str) -> bool:
    """Whether a descriptor is still the FIFO: the program may have closed it and got the number again."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
