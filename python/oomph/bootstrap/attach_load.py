"""Loads the recorder into a process that `oomph attach` has come to, and takes it out again. `attach_start.py` runs it.

The recorder's files are imported from memory, under the name of the package that `oomph run` uses. The program's path stays as
it is; only while our modules are imported, `sys.meta_path` has a finder for them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import linecache
import os
import sys
import time
from types import CodeType, ModuleType
from typing import Any

parts: dict[str, Any] = globals()["parts"]
"""`files`: source by path inside the package; `folder`: where they would be. The others are arguments of `attach.run`."""

PACKAGE = "oomph_child"
RETRY_SECONDS = 0.05


class Files(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads modules of the package."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != PACKAGE and self._file(name) not in parts["files"]:
            return None
        is_package = self.is_package(name)
        spec = importlib.machinery.ModuleSpec(name, self, origin=self.get_filename(name), is_package=is_package)
        spec.has_location = True
        return spec

    def is_package(self, name: str) -> bool:
        return name.count(".") < 2

    def get_filename(self, name: str) -> str:
        return f"{parts['folder']}/{PACKAGE}/{self._file(name)}"

    def get_source(self, name: str) -> str:
        source: str = parts["files"].get(self._file(name), "")
        return source

    def get_code(self, name: str) -> CodeType:
        return compile(self.get_source(name), self.get_filename(name), "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), vars(module))

    def _file(self, name: str) -> str:
        inside = name.removeprefix(PACKAGE).lstrip(".").replace(".", "/")
        return f"{inside}/__init__.py".lstrip("/") if self.is_package(name) else f"{inside}.py"


known_files = set(linecache.cache)


def unload() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    # Ours, and sources of PyTorch's that the recorder has looked at. Others are read again when they are needed.
    for file in set(linecache.cache) - known_files:
        linecache.cache.pop(file, None)


def main() -> None:
    # A recorder of `oomph run`, or of another `oomph attach` that is about to leave.
    while PACKAGE in sys.modules:
        if not os.path.exists(parts["folder"]):
            return  # `oomph` has given up
        time.sleep(RETRY_SECONDS)
    finder = Files()
    try:
        sys.meta_path.insert(0, finder)
        try:
            attach = importlib.import_module(f"{PACKAGE}.bootstrap.attach")
        finally:
            sys.meta_path.remove(finder)
    except BaseException:
        unload()
        raise
    attach.run(parts["settings"], parts["attachment"], unload)


main()
