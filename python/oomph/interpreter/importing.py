"""Something to do around the import of a module, whenever that happens, without a trace in the import itself.

The module's loader stays the one that Python has found, in `__spec__`, in `__loader__`, and for code that only looks for
the module.
Nothing that goes wrong in what is done here reaches the program.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Report = Callable[[str], None]
"""Takes one line about a failure of ours."""

_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
"""Python leaves frames of this file out of the traceback of a failed import, and `warnings` does not count them."""


def around_import(
    name: str,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[ModuleType], None],
    report: Report | None = None,
) -> None:
    """Calls `before` and `after` around the import of `name`, or `after` at once if `name` is already imported.

    Exceptions of the two go to `report` and never reach the program.
    """
    finder = _Finder(name, before, after, report)
    if name in sys.modules:
        finder.guarded(lambda: after(sys.modules[name]))
    else:
        sys.meta_path.insert(0, finder)


class _Finder(importlib.abc.MetaPathFinder):
    """First of all finders until the module has been imported."""

    def __init__(
        self,
        name: str,
        before: Callable[[], None] | None,
        after: Callable[[ModuleType], None],
        report: Report | None,
    ) -> None:
        self.name = name
        self.before = before
        self.after = after
        self.report = report

    def guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if self.report is not None:
                self.report(f"`{self.name}` could not be prepared: {type(error).__name__}: {error}")

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            # Finders of before PEP 451 have no such method; Python passes over them as well.
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self.guarded(functools.partial(self._wrap, spec.loader))
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
            self.guarded(self.before)

    def _after(self, module: ModuleType) -> None:
        # A module that fails to import may be tried again; one that is there is not prepared twice.
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self.guarded(lambda: self.after(module))
