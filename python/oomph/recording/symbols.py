"""Keeps PyTorch from importing its compiler when it names the frames of CUDA stacks.

It asks the compiler for the stacks of generated code, and so imports it: seconds, hundreds of modules, and an import that a
thread of ours must not make while the program makes the same. Where the program has not imported the compiler, no generated
code has run, and there is nothing to ask for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_PACKAGE = "torch._inductor"
_ASKED_FOR = "codecache"


class _NotImported(ModuleType):
    """In the place of the package while frames are named. Whoever else asks it for something gets it from the real one."""

    def __getattr__(self, name: str) -> Any:
        if name == _ASKED_FOR:
            raise AttributeError(name)
        return getattr(importlib.import_module(_PACKAGE), name)


@contextmanager
def without_the_compiler() -> Iterator[None]:
    namespace = vars(torch)
    name = _PACKAGE.rpartition(".")[2]
    if name in namespace or f"{_PACKAGE}.{_ASKED_FOR}" in sys.modules:
        yield
        return
    absent = namespace[name] = _NotImported(_PACKAGE)
    try:
        yield
    finally:
        # An import by another thread has put the real one there.
        if namespace.get(name) is absent:
            del namespace[name]
