"""What an object refers to, as the collector sees it."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

_namespace_of_module: Any = vars(ModuleType)["__dict__"]


def referents(thing: Any) -> list[Any]:
    """What an object refers to; of a module only its variables.

    What C code keeps in a module may be dead: `_asyncio` of Python 3.12 shows its list of freed objects, and a reference to
    one, held for a moment, frees it again; the interpreter then never exits.
    """
    if issubclass(type(thing), ModuleType):
        namespace = _namespace_of_module.__get__(thing)
        return [] if namespace is None else [namespace]
    return gc.get_referents(thing)
