"""Prepares a process before the user's program begins: everything waits for `import torch`.

The stand-in for CUDA has to be in the process before torch's own libraries, and the recorder has to be there before the
first allocation. Both hang on the import of torch, so a process that never imports it is left alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from types import ModuleType

from . import settings as settings_module
from .importing import around_import
from .settings import Settings


def prepare() -> None:
    settings = settings_module.from_environment()
    if settings is None:
        return
    if settings.library is not None:
        _end_with_parent()
        os.register_at_fork(after_in_child=_end_with_parent)
    library: list[ctypes.CDLL] = []

    def before() -> None:
        if settings.library is not None:
            library.append(ctypes.CDLL(settings.library, mode=ctypes.RTLD_GLOBAL))

    def after(torch: ModuleType) -> None:
        if library and torch.version.cuda is None:
            _say_failure(f"torch {torch.__version__} is a build without CUDA; the CUDA build of it is needed, though no GPU")
        _install(settings, library[0] if library else None)

    around_import("torch", before=before, after=after)


def _end_with_parent() -> None:
    """On a pretended GPU no process outlives the one that started it, however that ends: oomph, a launcher, a loader."""
    # The signal follows the thread that forked, and a short-lived thread must not take its children along.
    if threading.current_thread() is threading.main_thread():
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _say_failure(text: str) -> None:
    """A line among the stand-in's own notes, for oomph to read."""
    path = os.environ.get("OOMPH_PRETEND_NOTES")
    if path is not None:
        with open(path, "a", encoding="utf-8") as notes:
            notes.write(f"failure\t{text}\n")


def _install(settings: Settings, library: ctypes.CDLL | None) -> None:
    from . import guard, recording, techniques, values

    if library is not None:
        values.install(library, settings.unknown)
        if not settings.keep_files:
            guard.install()
    techniques.install(settings.techniques)
    recording.install(settings, library)
