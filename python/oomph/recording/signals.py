"""Dumps on request (SIGUSR1) and before the end (SIGTERM), from a thread of our own.

The program does not see a handler: `signal.getsignal()` says what it says without us, so a library that installs its own
handlers where there are none does so. A program that handles these signals itself, before or after, keeps them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

from ..interpreter import threads
from ..interpreter.system import IS_LINUX, after_fork
from ..interpreter.wakeups import Wakeup, is_default
from .messages import say, words

_EXIT_TIMEOUT_SECONDS = 2.0
"""Time for a dump before the process exits: `docker stop` allows ten seconds, and the program needs some of them."""
_MAX_SHARE_TO_HOLD = 0.25
"""Share of that time for the program to stop."""
END_VARIABLE = "OOMPH_SIGTERM_SECONDS"

_installed: list[Signals] = []


class Signals:
    """`dump` writes a recording, with the reason for it and the seconds that it may take."""

    def __init__(self, dump: Callable[[str, float | None], object]) -> None:
        self.dump = dump
        self._wakeups: dict[signal.Signals, Wakeup] = {}

    def install(self) -> None:
        if not IS_LINUX:
            return
        try:
            for number, respond in ((signal.SIGUSR1, self._dump_when_asked), (signal.SIGTERM, self._end_when_asked)):
                if is_default(number):
                    self._handle(number, respond)
        except (OSError, RuntimeError) as error:  # no executable memory; no more threads
            say(f"SIGUSR1 and SIGTERM write no recording: {words(error)}")
        _installed.append(self)

    def remove(self) -> None:
        """Leaves the signals to the program."""
        wakeups, self._wakeups = self._wakeups, {}
        for number, wakeup in wakeups.items():
            wakeup.leave(number)
            wakeup.wake()  # the end of the listener
        if self in _installed:
            _installed.remove(self)

    def _handle(self, number: signal.Signals, respond: Callable[[], None]) -> None:
        wakeup = Wakeup.get()
        self._wakeups[number] = wakeup
        threads.start(self._listen, number, wakeup, respond)
        wakeup.handle(number)

    def _listen(self, number: signal.Signals, wakeup: Wakeup, respond: Callable[[], None]) -> None:
        while True:
            wakeup.wait()
            if self._wakeups.get(number) is not wakeup:
                return wakeup.put_back()
            respond()

    def _dump_when_asked(self) -> None:
        self.dump("signal", None)

    def _end_when_asked(self) -> None:
        try:
            seconds = _seconds()
            threads.start(_end_after, seconds)
            _hold_main_thread(seconds)
            self.dump("killed", seconds)
        finally:
            _end()


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
    """Keeps the program from going on while its recording is written: without us it would have ended by now.

    Waits for that for a moment, because nobody else can look at tensors that the program is about to free.
    """
    is_held, forever = threading.Event(), threading.Event()

    def hold(_: object) -> int:
        is_held.set()
        forever.wait(seconds + 1.0)
        return 0

    _holding.append(_Pending(hold))
    ctypes.pythonapi.Py_AddPendingCall(_holding[-1], None)
    is_held.wait(seconds * _MAX_SHARE_TO_HOLD)


def _leave_to_child() -> None:
    for signals in list(_installed):
        signals.remove()


after_fork(_leave_to_child)
