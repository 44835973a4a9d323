"""Which frames of a stack belong to the program, and which to libraries."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = tuple(os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_FOLDERS = {"site-packages", "dist-packages", "oomph_child"}
"""Folders of libraries. The last is the copy that `oomph run` lays out."""
_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__")
"""How the names of code without a file begin that is not the user's. `<stdin>` and `<ipython-input-1>` are."""


def callers(depth: int = 1) -> Iterator[FrameType]:
    """The frames around the caller, innermost first, without ours."""
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether the frame belongs to the program itself, not to Python or an installed package."""
    return is_users_file(frame.f_code.co_filename)


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether the file, as frames name it, belongs to the program itself."""
    if file.startswith("<"):
        return not file.startswith(_GENERATED)
    path = os.path.abspath(file)
    return not path.startswith((_HERE, *_INSTALLED)) and _FOLDERS.isdisjoint(path.split(os.sep))
