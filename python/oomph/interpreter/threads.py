"""Threads of ours, which the program does not see: `threading` does not list them, and its trace functions do not follow them."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable
from typing import Any


def start(function: Callable[..., object], *args: Any) -> None:
    """Runs `function` in a thread that does not outlive the program. Raises where the system has no more threads."""

    def run() -> None:
        try:
            function(*args)
        except Exception:
            return  # each of them reports its own failures; what is left comes from an interpreter that shuts down

    # A signal that the program has blocked in all its threads, to wait for it, must not find ours, which inherits the mask.
    has_masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()) if has_masks else set()
    try:
        _thread.start_new_thread(run, ())
    finally:
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
