"""Where a program read an unknown value from the device: from there on it may behave differently than on a GPU."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_INSTALLED = tuple(os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))


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
        self._is_users: dict[str, bool] = {}

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
        frame: FrameType | None = sys._getframe(1)
        package: FrameType | None = None
        while frame is not None:
            file = frame.f_code.co_filename
            users = self._is_users.get(file)
            if users is None:
                users = self._is_users[file] = _is_users(file)
            if users:
                return frame
            if package is None and not file.startswith(("<", _HERE, _TORCH)):
                package = frame
            frame = frame.f_back
        return package


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return file in ("<string>", "<stdin>")
    path = os.path.abspath(file)
    return not path.startswith((_HERE, _TORCH, *_INSTALLED)) and "site-packages" not in path
