"""Which frames of a stack belong to the program, and which to libraries."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = tuple(os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_is_users: dict[str, bool] = {}


def callers(depth: int = 1) -> Iterator[FrameType]:
    """The frames around the caller, innermost first, without ours."""
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether the frame belongs to the program itself, not to Python or an installed package."""
    file = frame.f_code.co_filename
    found = _is_users.get(file)
    if found is None:
        found = _is_users[file] = _is_users_file(file)
    return found


def _is_users_file(file: str) -> bool:
    if file.startswith("<"):
        return file in ("<string>", "<stdin>")
    path = os.path.abspath(file)
    return not path.startswith((_HERE, *_INSTALLED)) and not {"site-packages", "dist-packages"} & set(path.split(os.sep))
