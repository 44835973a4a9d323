"""Wakes a thread of ours when a signal arrives, without a Python handler and without a descriptor.

Python runs its handlers in the main thread, which may be waiting for a GPU or another rank. A handler of `faulthandler` runs at
once, but reads the frames of a thread in the middle of a change: on Python 3.11, one signal in 50,000 to 300,000 crashed the
process. And the descriptor that it writes to may have become a file of the program. So the handler is a few machine instructions
that call `sem_post`, which POSIX allows at any moment, and whose only argument is a semaphore of ours.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import struct
from typing import Any

_SEMAPHORE_BYTES = 64
"""More than `sem_t` has on any 64-bit Linux."""
_PROT_READ_EXEC = 0x1 | 0x4
_MAP_PRIVATE = 0x2
_SA_RESTART_ONSTACK = 0x10000000 | 0x08000000

_unused: list[Wakeup] = []


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class Wakeup:
    """A semaphore, and a signal handler that posts it. Lives as long as the process: whoever has replaced the handler may put it
    back at any time."""

    def __init__(self) -> None:
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        _libc().sem_init(self._semaphore, 0, 0)
        post = ctypes.cast(_libc().sem_post, ctypes.c_void_p).value or 0
        self._handler = _executable(_instructions(ctypes.addressof(self._semaphore), post))

    @classmethod
    def get(cls) -> Wakeup:
        """One that nobody waits for. Raises OSError where the system or the processor does not allow such a handler."""
        return _unused.pop() if _unused else cls()

    def wait(self) -> None:
        """Waits for `wake` or a signal. Those that came in the meantime are one."""
        while _libc().sem_wait(self._semaphore) != 0:
            pass
        self._forget()

    def wake(self) -> None:
        _libc().sem_post(self._semaphore)

    def put_back(self) -> None:
        """Called by the thread that has waited, when it is done."""
        self._forget()
        _unused.append(self)

    def handle(self, number: signal.Signals) -> None:
        _set(number, self._handler)

    def leave(self, number: signal.Signals) -> None:
        """Restores the default action, unless somebody else handles the signal by now."""
        if _handler(number) == self._handler:
            _set(number, None)

    def _forget(self) -> None:
        while _libc().sem_trywait(self._semaphore) == 0:
            pass


def is_default(number: signal.Signals) -> bool:
    """Whether a signal has no handler: neither in Python nor below it, as `faulthandler` installs one."""
    return signal.getsignal(number) is signal.SIG_DFL and _handler(number) is None


def _handler(number: signal.Signals) -> int | None:
    """Address of the handler below Python; None is the default action."""
    action = _Action()
    if _libc().sigaction(int(number), None, ctypes.byref(action)) != 0:
        return -1
    handler: int | None = action.handler
    return handler


def _set(number: signal.Signals, handler: int | None) -> None:
    action = _Action(handler=handler, flags=_SA_RESTART_ONSTACK)
    _libc().sigaction(int(number), ctypes.byref(action), None)


def _instructions(semaphore: int, post: int) -> bytes:
    """`post(semaphore)` as the last call of a function, in machine code."""
    machine = os.uname().machine
    if machine == "x86_64":
        # mov rdi, semaphore; mov rax, post; jmp rax
        return struct.pack("<2sQ2sQ2s", b"\x48\xbf", semaphore, b"\x48\xb8", post, b"\xff\xe0")
    if machine == "aarch64":
        # ldr x0, semaphore; ldr x16, post; br x16; nop; the two values
        return struct.pack("<4I2Q", 0x58000080, 0x580000B0, 0xD61F0200, 0xD503201F, semaphore, post)
    raise OSError(f"no signal handler for {machine}")


def _executable(code: bytes) -> int:
    """Address of a copy that can be executed, and not written: what many systems require."""
    file = os.memfd_create("oomph")
    try:
        os.write(file, code)
        address: int | None = _libc().mmap(None, len(code), _PROT_READ_EXEC, _MAP_PRIVATE, file, 0)
    finally:
        os.close(file)
    if address is None or address == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, f"executable memory: {os.strerror(error)}")
    return address


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return library
