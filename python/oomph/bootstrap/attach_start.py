"""The first that `oomph attach` has a process run, in its main thread: a thread that loads the rest from a private folder.

Its globals `PATH`, `TOKEN` and `PAGE` come from `oomph`. Only a file that begins with the token is run, so it does not
matter who may create one by this name when `oomph` has given up and removed its own.
"""

from __future__ import annotations

PATH: str = globals()["PATH"]
TOKEN: str = globals()["TOKEN"]
PAGE: tuple[int, int] = globals()["PAGE"]
"""Address and length of the memory that `oomph` has written this text to; zeros where Python has read it from a file."""


def load() -> None:
    import json
    import os

    try:
        descriptor = os.open(PATH, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        os.unlink(PATH)  # who has asked twice is answered once
        if text.startswith(TOKEN):
            parts = json.loads(text.removeprefix(TOKEN))
            exec(parts["load"], {"__name__": "oomph_attach", "parts": parts})
    except Exception:
        return  # `oomph` has given up or has been answered
    finally:
        address, length = PAGE
        if length:
            import ctypes

            ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))


def start() -> None:
    import _thread
    import signal

    # A signal that the program waits for must not find this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(load, ())
    except RuntimeError:
        return  # no more threads
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Raising:
    """What a handler of a signal has raised here, for the program: whoever runs this text would only print it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __bool__(self) -> bool:
        raise self.error

    def ask(self) -> None:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        ctypes.pythonapi.Py_AddPendingCall(ctypes.pythonapi.PyObject_IsTrue, ctypes.py_object(self))


try:
    start()
except BaseException as error:
    Raising(error.with_traceback(None)).ask()
