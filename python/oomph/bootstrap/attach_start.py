"""The first that `oomph attach` has a process run, in its main thread: a thread that loads the rest from a private folder.

`oomph` puts the values of `PATH`, `TOKEN` and `PAGE` in front. Only a file that begins with the token is run, so it does not matter
who may create one by this name when `oomph` has given up and removed its own.
"""

PATH: str
TOKEN: str
PAGE: tuple[int, int]
"""Address and length of the memory that a debugger has put this text into; of no length if there is none."""


def load() -> None:
    import json
    import os

    try:
        descriptor = os.open(PATH, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        if text.startswith(TOKEN):
            parts = json.loads(text.removeprefix(TOKEN))
            exec(parts["load"], {"__name__": "oomph_attach", "parts": parts})
    except Exception:
        return  # `oomph` has given up, and nobody waits for an answer
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
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


try:
    start()
except Exception:  # no more threads
    pass
