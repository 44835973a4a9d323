"""Where a program read an unknown value from the device: from there on it may behave differently than on a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

from ..interpreter.frames import callers, is_users

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


@dataclass
class Read:
    """One line of the program that read values of one kind."""

    file: str
    line: int
    function: str
    operator: str
    kind: str
    """`unknown`: a kernel would have computed it, the program got zeros; `made up`: plausible but not computed."""
    size: int
    """Bytes of the largest such read: one element decides something, a whole tensor is only carried away."""
    count: int = 1


class Reads:
    def __init__(self) -> None:
        self._reads: dict[tuple[CodeType | None, int, str, str], Read] = {}

    def all(self) -> list[Read]:
        return list(self._reads.values())

    def note(self, operator: str, kind: str, size: int) -> None:
        frame = self._innermost_of_user()
        code, line = (frame.f_code, frame.f_lineno) if frame is not None else (None, 0)
        key = (code, line, operator, kind)
        read = self._reads.get(key)
        if read is not None:
            read.count += 1
            read.size = max(read.size, size)
            return
        file, function = (code.co_filename, code.co_name) if code is not None else ("", "")
        self._reads[key] = Read(file, line, function, operator, kind, size)

    def _innermost_of_user(self) -> FrameType | None:
        """The innermost frame of the program; of a package that it uses, if the program is nothing else."""
        package: FrameType | None = None
        for frame in callers():
            if is_users(frame):
                return frame
            if package is None and not frame.f_code.co_filename.startswith(("<", _TORCH)):
                package = frame
        return package
