"""Roots of the heap: the variables of modules, and the classes that modules define."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import compress
from types import ModuleType
from typing import Any

from . import attributes
from .references import type_name

_PACKAGES = {"oomph", "oomph_child", __name__.partition(".")[0]}
"""The wheel, and the copy that `oomph run` lays out."""


def is_of_ours(namespace: dict[str, Any]) -> bool:
    """Whether a namespace is that of a module of ours."""
    name = dict.get(namespace, "__name__")
    return type(name) is str and name.partition(".")[0] in _PACKAGES


class Sorted:
    """The classes of all objects, and the objects among them that are classes themselves, or ours."""

    def __init__(self, objects: list[Any]) -> None:
        # One look at each of a million objects is what takes time: here and below, without a step of the interpreter for each.
        self.kinds = dict(zip(map(id, map(type, objects)), map(type, objects), strict=True))
        metaclasses = {identity for identity, kind in self.kinds.items() if issubclass(kind, type)}
        own = {identity for identity, kind in self.kinds.items() if type_name(kind).partition(".")[0] in _PACKAGES}
        wanted = metaclasses | own
        chosen = list(compress(objects, map(wanted.__contains__, map(id, map(type, objects)))))
        self.ours = {id(thing) for thing in chosen if id(type(thing)) in own}
        """Identities of the recorder's own objects. It has put functions into torch that lead to them, and they hold nothing
        of the program's."""
        self._classes = [thing for thing in chosen if id(type(thing)) in metaclasses]

    def classes(self) -> Iterator[tuple[str, type]]:
        """Those that their modules have under their names. Every instance refers to its class: if that held a tensor, all of
        them would lead to it."""
        for kind in self._classes:
            module = attributes.namespace(kind).get("__module__")
            path = type.__dict__["__qualname__"].__get__(kind)
            if type(module) is str and _named(sys.modules.get(module), path) is kind:
                yield f"{module}.{path}", kind


def _named(module: Any, path: str) -> Any:
    """The class that a module has under a dotted name."""
    if not issubclass(type(module), ModuleType):
        return None
    namespace: Any = namespace_of(module)
    found: Any = None
    for name in path.split("."):
        found = namespace.get(name)
        if not issubclass(type(found), type):
            return None
        namespace = attributes.namespace(found)
    return found


def namespace_of(module: Any) -> dict[str, Any]:
    getter: Any = vars(ModuleType)["__dict__"]
    found: dict[str, Any] | None = getter.__get__(module)
    return found if found is not None else {}


def file_of(name: str, namespace: dict[str, Any]) -> str:
    file = namespace.get("__file__")
    if type(file) is str:
        return file
    # Python takes it away from a script that has come to its end.
    script = sys.argv[0] if name == "__main__" and sys.argv else ""
    return os.path.abspath(script) if script.endswith(".py") else ""


def modules() -> Iterator[tuple[str, dict[str, Any]]]:
    seen: set[int] = set()
    for name, module in [("__main__", sys.modules.get("__main__")), *list(sys.modules.items())]:
        if issubclass(type(module), ModuleType):
            namespace = namespace_of(module)
            if id(namespace) not in seen:
                seen.add(id(namespace))
                yield name, namespace


def files(kinds: Iterable[type]) -> dict[str, str]:
    """Files of the modules that define these classes, by module name."""
    files = {}
    for kind in kinds:
        name = attributes.namespace(kind).get("__module__")
        module = sys.modules.get(name) if type(name) is str else None
        if issubclass(type(module), ModuleType):
            file = file_of(name, namespace_of(module))
            if file:
                files[name] = file
    return files
