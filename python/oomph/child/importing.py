"""Something to do around the import of a module, whenever that happens, without a trace in the import itself.

The module's loader stays the one that Python has found, in `__spec__`, in `__loader__`, and for whoever only looks for the module.
Nothing that goes wrong in what is done here reaches the program.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from .settings import from_environment

_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
"""Python leaves frames of this file out of the traceback of a failed import, and `warnings` does not count them."""


def around_import(name: str, *, before: Callable[[], None] | None = None, after: Callable[[ModuleType], None]) -> None:
    """Calls `before` and `after` around the import of `name`; `after` at once if it is there already."""
    if name in sys.modules:
        _guarded(name, lambda: after(sys.modules[name]))
    else:
        sys.meta_path.insert(0, _Finder(name, before, after))


def _guarded(name: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        settings = from_environment()
        if settings is not None:
            settings.report_problem(f"`{name}` could not be prepared: {type(error).__name__}: {error}")


class _Finder(importlib.abc.MetaPathFinder):
    """First of all finders until the module has been imported."""

    def __init__(
        self, name: str, before: Callable[[], None] | None, after: Callable[[ModuleType], None]
    ) -> None:
        self.name = name
        self.before = before
        self.after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            # Finders of before PEP 451 have no such method; Python passes over them as well.
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                _guarded(name, lambda: self._wrap(spec.loader))
                return spec
        return None

    def _wrap(self, loader: importlib.abc.Loader | None) -> None:
        """Hides the loader's `exec_module` for one call."""
        if loader is None or not hasattr(loader, "exec_module"):
            return
        hidden = vars(loader).get("exec_module")

        def exec_module(module: ModuleType) -> None:
            self._before()
            if hidden is None:
                vars(loader).pop("exec_module", None)
            else:
                loader.exec_module = hidden  # type: ignore[method-assign]
            loader.exec_module(module)
            self._after(module)

        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
        loader.exec_module = exec_module  # type: ignore[method-assign]

    def _before(self) -> None:
        if self.before is not None and self in sys.meta_path:
            _guarded(self.name, self.before)

    def _after(self, module: ModuleType) -> None:
        # A module that fails to import may be tried again; one that is there is not prepared twice.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _guarded(self.name, lambda: self.after(module))
