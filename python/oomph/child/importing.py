"""Something to do around the import of a module, whenever that happens."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def around_import(name: str, *, before: Callable[[], None] | None = None, after: Callable[[ModuleType], None]) -> None:
    """Calls `before` and `after` around the import of `name`; `after` at once if it is there already."""
    if name in sys.modules:
        after(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, before, after))


class _Finder(importlib.abc.MetaPathFinder):
    """Stands in front of all finders until the module is asked for."""

    def __init__(
        self, name: str, before: Callable[[], None] | None, after: Callable[[ModuleType], None]
    ) -> None:
        self.name = name
        self.before = before
        self.after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.abc.Loader, finder: _Finder) -> None:
        self.real = real
        self.finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self.finder.before is not None:
            self.finder.before()
        # Whoever reads resources through the module's loader sees the real one.
        module.__loader__ = self.real
        if module.__spec__ is not None:
            module.__spec__.loader = self.real
        self.real.exec_module(module)
        self.finder.after(module)
