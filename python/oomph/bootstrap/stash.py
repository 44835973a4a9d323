"""Modules that are imported before a program begins, but not for the program: its own `import` finds them here.

So what hooks the import of torch (importing.py) sees it, and a program that never imports it does not have it. Uses nothing of
ours: the tests have an interpreter of their own that works this way.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_PACKAGES = ("torch", "torchgen", "functorch")
"""What is hidden. Other modules that torch imports make no difference to a program."""


class Stash(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.groups: list[dict[str, ModuleType]] = []
        """Modules that one import has brought, by name."""

    def add(self, name: str) -> None:
        before = set(sys.modules)
        importlib.import_module(name)
        new = [name for name in sys.modules if name not in before and name.split(".")[0] in _PACKAGES]
        self.groups.append({name: sys.modules[name] for name in new})

    def hide(self) -> None:
        """Leaves the process as it was before the imports."""
        for group in self.groups:
            for name in group:
                del sys.modules[name]
        # PyTorch imports it when it is asked for the attribute.
        vars(self.groups[0]["torch"]).pop("_dynamo", None)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        group = next((group for group in self.groups if fullname in group), None)
        if group is None:
            return None
        loader = _Loader(self, group, fullname)
        return importlib.machinery.ModuleSpec(fullname, loader, is_package=hasattr(group[fullname], "__path__"))

    def restore(self, group: dict[str, ModuleType], name: str) -> None:
        """Brings everything that an import has brought."""
        group.pop(name, None)
        hooked = [name for name in group if any(getattr(finder, "name", None) == name for finder in sys.meta_path)]
        sys.modules.update({name: module for name, module in group.items() if name not in hooked})
        for name in hooked:
            importlib.import_module(name)
        if group in self.groups:
            self.groups.remove(group)
        if not self.groups and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(importlib.abc.Loader):
    """Loads one module of a stash."""

    def __init__(self, stash: Stash, group: dict[str, ModuleType], name: str) -> None:
        self.stash, self.group, self.name, self.module = stash, group, name, group[name]
        self.spec = self.module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
        self.stash.restore(self.group, self.name)
