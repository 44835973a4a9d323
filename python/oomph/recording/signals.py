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


class Signals:
    """`dump` writes a recording, with the reason for it."""

    def __init__(self, dump: Callable[[str], None]) -> None:
        self.dump = dump
        self._ours: list[signal.Signals] = []

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may
        # A program that handles these itself keeps them.
        for number in (signal.SIGUSR1, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._ours.append(number)
        if not self._ours:
            return
        read, write = os.pipe()
        os.set_blocking(write, False)
        for end in (read, write):
            os.set_inheritable(end, False)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)

        def handler(number: int, _frame: FrameType | None) -> None:
            # The interpreter's own byte goes elsewhere if the program has a use for it (asyncio has).
            current = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            if current != write:
                signal.set_wakeup_fd(current)
                os.write(write, bytes([number]))

        for number in self._ours:
            signal.signal(number, handler)
        threading.Thread(target=self._listen, args=(read,), name="oomph", daemon=True).start()
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """A forked process has no listener: its signals are its own."""
        for number in self._ours:
            signal.signal(number, signal.SIG_DFL)

    def _listen(self, pipe: int) -> None:
        while True:
            asked = os.read(pipe, 64)
            if not asked:
                return
            numbers = [number for number in self._ours if number in asked]
            if signal.SIGTERM in numbers:
                self.dump("killed")
                _end()
            elif numbers:
                self.dump("signal")


def _end() -> None:
    """Ends the process as SIGTERM does by default."""
    # `signal.signal` is for the main thread alone, which may be waiting for something that never comes.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)
