"""Dumps on request (SIGUSR1) and before the end (SIGTERM), from a thread of our own.

The program does not see a handler: `signal.getsignal()` says what it says without us, so a library that installs its own
handlers where there are none does so. The handler is one of `faulthandler`, which writes a few bytes to a pipe from C, also
while the main thread waits for a GPU or another rank. A program that handles these signals itself, before or after, keeps them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable

from ..interpreter import threads
from ..interpreter.pipes import Pipe
from ..interpreter.system import after_fork

_EXIT_TIMEOUT_SECONDS = 2.0
"""Time for a dump before the process exits: `docker stop` allows ten seconds, and the program needs some of them."""
_SIGACTION_BYTES = 512
"""More than `struct sigaction` has anywhere."""
END_VARIABLE = "OOMPH_SIGTERM_SECONDS"

_installed: list[Signals] = []


class Signals:
    """`dump` writes a recording, with the reason for it and the seconds that it may take."""

    def __init__(self, dump: Callable[[str, float | None], object]) -> None:
        self.dump = dump
        self._pipes: dict[signal.Signals, Pipe] = {}

    def install(self) -> None:
        # Windows has neither these signals nor handlers for them.
        if not hasattr(faulthandler, "register"):
            return
        for number, listen in ((signal.SIGUSR1, self._dump_when_asked), (signal.SIGTERM, self._end_when_asked)):
            if not _is_default(number):
                continue
            pipe = Pipe()
            os.set_blocking(pipe.write, False)
            threads.start(listen, pipe)
            faulthandler.register(number, file=pipe.write, all_threads=False)
            self._pipes[number] = pipe
        _installed.append(self)

    def check(self) -> None:
        """Leaves the signals to a program that has closed our pipes: its own files may have their numbers."""
        if not all(pipe.is_whole() for pipe in self._pipes.values()):
            self.remove()

    def remove(self, *, is_forked: bool = False) -> None:
        """Leaves the signals to the program. A forked process has no listener, so there both ends of a pipe are closed here."""
        for number, pipe in self._pipes.items():
            # A handler that the program has installed since is not ours to take away.
            if signal.getsignal(number) is signal.SIG_DFL:
                faulthandler.unregister(number)
            pipe.close_write()  # the end of the listener
            if is_forked:
                pipe.close_read()
        self._pipes = {}
        if self in _installed:
            _installed.remove(self)

    def _dump_when_asked(self, pipe: Pipe) -> None:
        while pipe.wait():
            self.dump("signal", None)
        pipe.close_read()

    def _end_when_asked(self, pipe: Pipe) -> None:
        if pipe.wait():
            try:
                seconds = _seconds()
                threads.start(_end_after, seconds)
                _hold_main_thread(seconds)
                self.dump("killed", seconds)
            finally:
                _end()
        pipe.close_read()


def _is_default(number: signal.Signals) -> bool:
    """Whether a signal has no handler: neither in Python nor below it, as `faulthandler` installs one."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return False
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if ctypes.CDLL(None).sigaction(int(number), None, action) != 0:
        return False
    handler = ctypes.c_void_p.from_buffer(action).value  # its first member
    return handler is None


def _seconds() -> float:
    try:
        return max(0.0, float(os.environ[END_VARIABLE]))
    except (KeyError, ValueError):
        return _EXIT_TIMEOUT_SECONDS


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    _end()


def _end() -> None:
    """Ends the process as SIGTERM does by default."""
    # `signal.signal` is for the main thread alone, which may be waiting for something that never comes.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)


_Pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_holding: list[object] = []
"""What the interpreter is to call, for as long as it may."""


def _hold_main_thread(seconds: float) -> None:
    """Keeps the program from going on while its recording is written: without us it would have ended by now."""
    forever = threading.Event()

    def hold(_: object) -> int:
        forever.wait(seconds + 1.0)
        return 0

    _holding.append(_Pending(hold))
    ctypes.pythonapi.Py_AddPendingCall(_holding[-1], None)


def _leave_to_child() -> None:
    for signals in list(_installed):
        signals.remove(is_forked=True)


after_fork(_leave_to_child)
