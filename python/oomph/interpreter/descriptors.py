"""Descriptors of ours in a program that may close all descriptors, and may then get the same numbers for files of its own."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from .system import BINARY, NO_LINKS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FIRST_NUMBER = 900
"""Few programs open so many files, and the usual limit is 1024."""


def out_of_the_way(descriptor: int) -> int:
    """Moves a descriptor to a high number, so that the program's own have the numbers that they have without us."""
    try:
        import fcntl
        import resource
    except ImportError:  # on Windows
        return descriptor
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = _FIRST_NUMBER if limit == resource.RLIM_INFINITY else min(_FIRST_NUMBER, limit * 7 // 8)
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first)
    except OSError:
        return descriptor  # no number is free up there
    os.close(descriptor)
    return moved


def identity(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor stands for: files, pipes and sockets have a number each."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OwnFile(io.RawIOBase):
    """A file to write, for the owner's eyes alone, whatever the program's umask: names of files and command lines are in it.

    Fails once its descriptor is the program's.
    """

    def __init__(self, path: str, flags: int) -> None:
        self._number = out_of_the_way(os.open(path, os.O_WRONLY | os.O_CREAT | flags | NO_LINKS | BINARY, 0o600))
        self._identity = identity(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        if not self._is_ours():
            raise OSError("the program has closed a file of the recording")
        return os.write(self._number, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._is_ours():
                os.close(self._number)

    def _is_ours(self) -> bool:
        return identity(self._number) == self._identity
