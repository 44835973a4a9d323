"""What PyTorch imports by itself when it names the frames of CUDA stacks.

That is a large part of the compiler. If one thread imports it while another imports the same, Python lets one of them see
modules that are half done, and the program fails. So it is imported where no import is under way, before a thread needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from types import FrameType

_MODULE = "torch._inductor.codecache"
_PATIENCE = 10.0
"""Seconds: a process that is told to end has not much longer."""


def load() -> None:
    """At the end of a step, by the thread that has done it."""
    with contextlib.suppress(Exception):  # PyTorch does without it as well
        importlib.import_module(_MODULE)


def wait_for_imports() -> None:
    """In a thread of ours: until the program imports nothing, if that matters."""
    end = time.monotonic() + _PATIENCE
    while _MODULE not in sys.modules and _others_import() and time.monotonic() < end:
        time.sleep(0.05)


def _others_import() -> bool:
    own = threading.get_ident()
    return any(_imports(frame) for thread, frame in sys._current_frames().items() if thread != own)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
