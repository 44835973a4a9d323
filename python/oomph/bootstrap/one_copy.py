"""Which copy of oomph a process uses: the installed wheel, or the files that `oomph` has laid out for the run.

With one copy there is one recorder, also for a program that calls `oomph.record()` itself, and one class
`oomph.MemoryGrows`; and tracebacks show an installed package, not a temporary folder. The wheel is used if its files are
the same, byte for byte, as those of the `oomph` that has started the process. They are only read: a module of the
program that happens to be called `oomph` is not imported because of us.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_WHEEL = "oomph"
_LAID_OUT = __name__.partition(".")[0]
_LAID_OUT_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def package() -> str:
    """Name of the package to import the recorder from."""
    try:
        return _WHEEL if _is_wheel_usable() else _LAID_OUT
    except OSError:
        return _LAID_OUT


def _is_wheel_usable() -> bool:
    spec = _found()
    if spec is None or spec.origin is None or os.path.basename(spec.origin) != "__init__.py":
        return False
    files = _python_files(_LAID_OUT_FOLDER)
    return not _is_half_imported(files) and _is_same(files, os.path.dirname(spec.origin))


def _found() -> ModuleSpec | None:
    """What `import oomph` gives the program, without importing it."""
    if _WHEEL not in sys.modules:
        return PathFinder.find_spec(_WHEEL)
    imported = sys.modules[_WHEEL]
    return vars(imported).get("__spec__") if type(imported) is ModuleType else None


def _python_files(folder: str) -> list[str]:
    """Files of the packages below a folder, as `PACKAGE/NAME.py`."""
    packages = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    return [
        os.path.join(package, name)
        for package in packages
        for name in os.listdir(os.path.join(folder, package))
        if name.endswith(".py")
    ]


def _is_half_imported(files: list[str]) -> bool:
    """Whether a module of the wheel that the recorder needs has itself imported torch and waits for it: what it defines
    is not there yet. Modules that users import (`oomph.holders`) import torch before any of these."""
    names = (f"{_WHEEL}.{file.removesuffix('.py').replace(os.sep, '.')}" for file in files)
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in names)
    return any(getattr(spec, "_initializing", False) for spec in specs)


def _is_same(files: list[str], folder: str) -> bool:
    pairs = [(os.path.join(_LAID_OUT_FOLDER, file), os.path.join(folder, file)) for file in files]
    # Sizes first: another version rarely has the same, and then nothing is read.
    if any(os.stat(ours).st_size != os.stat(theirs).st_size for ours, theirs in pairs):
        return False
    return bool(pairs) and all(_read(ours) == _read(theirs) for ours, theirs in pairs)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
