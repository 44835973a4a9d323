"""The first that `oomph attach` has a process run, in its main thread: a thread that loads the rest from a private folder.

Its globals `PATH`, `TOKEN`, `PAGE` and `WAITS` come from `oomph`. Only a file that begins with the token is run, so it does not
matter who may create one by this name when `oomph` has given up and removed its own.
"""

from __future__ import annotations

from typing import Any

PATH: str = globals()["PATH"]
TOKEN: str = globals()["TOKEN"]
PAGE: tuple[int, int] = globals()["PAGE"]
"""Address and length of the memory that a debugger has put this text into; zeros where Python has read it from a file."""
WAITS: int = globals()["WAITS"]
"""Whether the main thread was waiting for a lock. Then it has time, and might not come again."""

_MAX_SECONDS_TO_LOAD = 10.0


def load(is_loaded: Any) -> None:
    """`is_loaded`: a lock that the main thread waits for."""
    import contextlib
    import json
    import os

    def let_go() -> None:
        with contextlib.suppress(RuntimeError):
            is_loaded.release()

    try:
        descriptor = os.open(PATH, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        if text.startswith(TOKEN):
            parts = {**json.loads(text.removeprefix(TOKEN)), "let_go": let_go}
            exec(parts["load"], {"__name__": "oomph_attach", "parts": parts})
    except Exception:
        return  # `oomph` has given up, and nobody waits for an answer
    finally:
        let_go()
        address, length = PAGE
        if length:
            import ctypes

            ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))


def start() -> None:
    import _thread
    import signal

    is_loaded = _thread.allocate_lock()
    is_loaded.acquire()
    # A signal that the program waits for must not find this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(load, (is_loaded,))
    except RuntimeError:
        return  # no more threads
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if WAITS:
        is_loaded.acquire(True, _MAX_SECONDS_TO_LOAD)


start()
