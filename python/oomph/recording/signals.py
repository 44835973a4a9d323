"""Dumps on request (SIGUSR1) and before the end (SIGTERM), from a thread of our own.

A Python handler runs only when the main thread comes back to Python: one that waits for a GPU or another rank may never. So
the handler's byte goes to a pipe, which the interpreter writes to at once, and a thread reads it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


_NUMBERS = (signal.SIGUSR1, signal.SIGTERM)
_installed: list[Signals] = []


class Signals:
    """`dump` writes a recording, with the reason for it."""

    def __init__(self, dump: Callable[[str], object]) -> None:
        self.dump = dump
        self._ours: list[signal.Signals] = []
        self._pipe = -1

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may
        # A program that handles these itself keeps them.
        self._ours = [number for number in _NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
        if not self._ours:
            return
        read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        for number in self._ours:
            signal.signal(number, self._handle)
        threading.Thread(target=self._listen, args=(read,), name="oomph", daemon=True).start()
        _installed.append(self)

    def remove(self) -> None:
        """Leaves the signals to the program; also in a forked process, which has no listener."""
        if self._pipe == -1 or threading.current_thread() is not threading.main_thread():
            return
        for number in self._ours:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current != self._pipe:
            signal.set_wakeup_fd(current)
        os.close(self._pipe)  # the listener's end
        self._pipe = -1
        _installed.remove(self)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # The interpreter's own byte goes elsewhere if the program has a use for it (asyncio has).
        current = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        if current != self._pipe:
            signal.set_wakeup_fd(current)
            os.write(self._pipe, bytes([number]))

    def _listen(self, pipe: int) -> None:
        while asked := os.read(pipe, 64):
            # The interpreter writes a byte for every signal that Python handles, also for those of the program.
            ours = [number for number in asked if signal.getsignal(number) == self._handle]
            if signal.SIGTERM in ours:
                self.dump("killed")
                _end()
            elif signal.SIGUSR1 in ours:
                self.dump("signal")
        os.close(pipe)


def _end() -> None:
    """Ends the process as SIGTERM does by default."""
    # `signal.signal` is for the main thread alone, which may be waiting for something that never comes.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)


def _leave_to_child() -> None:
    for signals in list(_installed):
        signals.remove()


os.register_at_fork(after_in_child=_leave_to_child)
