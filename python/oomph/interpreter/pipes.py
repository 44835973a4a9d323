"""Pipes in a program that may close all descriptors, and may then get the same numbers for files of its own."""

from __future__ import annotations

import contextlib
import os


class Pipe:
    """Wakes a thread of ours, by a byte or by the end of the pipe. Never touches a descriptor that is no longer ours."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self._identity = _identity(self.read)

    def is_whole(self) -> bool:
        return _identity(self.read) == self._identity == _identity(self.write)

    def wait(self) -> bytes:
        """Bytes that were written; none at the end, or where the program has closed the pipe."""
        return os.read(self.read, 1 << 16) if _identity(self.read) == self._identity else b""

    def close_read(self) -> None:
        self._close(self.read)

    def close_write(self) -> None:
        self._close(self.write)

    def _close(self, descriptor: int) -> None:
        if _identity(descriptor) == self._identity:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
