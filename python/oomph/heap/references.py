"""How an object refers to another: by an attribute, an item, a variable.

Nothing here runs the program's code: no `__getattr__`, property, `__iter__`, `__repr__` or `__eq__` of its classes.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Iterator
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any

import torch
from torch.nn import Module

from . import attributes
from .frames import variables

Name = tuple[str, str]
"""A kind and a text:

`attribute` and its name; `item` and what stands between the brackets; `local` and `closure` with the name of a variable;
`element` of a set; `key` of a dictionary; `cached`, by a function's cache; `part` (what it is called in C), or nothing.
`inside` is a step that a path leaves out: to the dictionary of an instance, whose items are then attributes.
"""
Reference = tuple[Name, Any]

_INSIDE = ("inside", "")
_UNNAMED = ("part", "")
_LONGEST = 80
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    FunctionType: ("__defaults__", "__kwdefaults__", "__dict__", "__globals__", "__builtins__"),
    MethodType: ("__self__", "__func__"),
    BuiltinMethodType: ("__self__",),
    TracebackType: ("tb_frame", "tb_next"),
    FrameType: ("f_back", "f_globals", "f_builtins", "f_trace"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
}
_SUSPENDED = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
_OF_MODULES = ("_modules", "_parameters", "_buffers")


class References:
    """The references of objects. Owners first, then `dict` and `tuple`: what a dictionary's items are depends on whose it is."""

    def __init__(self) -> None:
        self._namespaces: set[int] = set()
        self._closures: dict[int, tuple[str, ...]] = {}

    def add_namespace(self, dictionary: dict[Any, Any]) -> None:
        """Its items are attributes of something."""
        self._namespaces.add(id(dictionary))

    def of(self, thing: Any) -> Iterator[Reference]:
        kind = type(thing)
        if kind is list:
            yield from ((("item", str(at)), value) for at, value in enumerate(thing))
        elif kind is dict:
            yield from self._items(thing)
        elif kind is tuple:
            yield from self._elements(thing)
        else:
            names = self._names(thing, kind)
            yield from ((names.get(id(value), _UNNAMED), value) for value in gc.get_referents(thing))

    def _items(self, thing: dict[Any, Any]) -> Iterator[Reference]:
        kind = "attribute" if id(thing) in self._namespaces else "item"
        for key, value in dict.items(thing):
            yield (kind, key if kind == "attribute" and type(key) is str else text_of(key)), value
            if type(key) is not str:
                yield ("key", text_of(key)), key

    def _elements(self, thing: tuple[Any, ...]) -> Iterator[Reference]:
        names = self._closures.get(id(thing))
        for at, value in enumerate(thing):
            yield (("closure", names[at]) if names and at < len(names) else ("item", str(at))), value

    def _names(self, thing: Any, kind: type) -> dict[int, Name]:
        """By the identity of what is referred to."""
        names: dict[int, Name] = {}
        if issubclass(kind, dict):
            names |= {id(value): name for name, value in self._items(thing)}
        elif issubclass(kind, (list, tuple, deque)):
            iterate = next(base.__iter__ for base in (list, tuple, deque) if issubclass(kind, base))
            names |= {id(value): ("item", str(at)) for at, value in enumerate(iterate(thing))}
        elif issubclass(kind, (set, frozenset)):
            names |= {id(value): ("element", "") for value in (set if issubclass(kind, set) else frozenset).__iter__(thing)}
        elif kind is CellType:
            names |= {id(value): _INSIDE for value in gc.get_referents(thing)}
        elif kind is functools._lru_cache_wrapper:
            names |= {id(value): ("cached", "") for value in gc.get_referents(thing) if type(value) is not dict}
        elif kind is FrameType:
            names |= {id(value): ("local", name) for name, value in variables(thing)}
        elif kind in _SUSPENDED:
            frame = getattr(thing, _SUSPENDED[kind])
            names |= {id(value): ("local", name) for name, value in (variables(frame) if frame is not None else [])}
        if issubclass(kind, BaseException):
            names |= self._attributes(thing, ("__traceback__", "__context__", "__cause__", "args"), BaseException)
        names |= self._attributes(thing, _ATTRIBUTES.get(kind, ()), kind)
        if kind is FunctionType and thing.__closure__ is not None:
            self._closures[id(thing.__closure__)] = thing.__code__.co_freevars
            names[id(thing.__closure__)] = _INSIDE
        names |= self._instance(thing, kind)
        return names

    def _attributes(self, thing: Any, of_class: tuple[str, ...], kind: type) -> dict[int, Name]:
        """By the getters of a built-in class."""
        found = {}
        for name in of_class:
            getter = attributes.namespace(kind).get(name)
            value = getter.__get__(thing) if getter is not None else None
            if value is not None:
                found[id(value)] = ("attribute", name)
        return found

    def _instance(self, thing: Any, kind: type) -> dict[int, Name]:
        names = {id(value): ("attribute", name) for name, value in attributes.slots(thing)}
        names |= {identity: ("attribute", name) for identity, name in attributes.inline(thing).items()}
        dictionaries = {id(value): value for value in gc.get_referents(thing) if type(value) is dict}
        if issubclass(kind, torch.Tensor) and dictionaries:
            names |= self._attributes(thing, ("_backward_hooks", "_post_accumulate_grad_hooks"), torch._C.TensorBase)
        if issubclass(kind, type):
            # Of the class itself; its other dictionaries are written by C code.
            own = [each for each in dictionaries.values() if "__module__" in each and "__doc__" in each]
        else:
            identity = attributes.identity_of_dict(thing, bool(dictionaries))
            own = [dictionaries[identity]] if identity in dictionaries else []
        for dictionary in own:
            names[id(dictionary)] = _INSIDE
            self._namespaces.add(id(dictionary))
            if issubclass(kind, Module):
                self._add_names_of_module(dictionary)
        return names

    def _add_names_of_module(self, dictionary: dict[str, Any]) -> None:
        """`_modules['encoder']` of a module is its attribute `encoder`."""
        for name in _OF_MODULES:
            inner = dictionary.get(name)
            if isinstance(inner, dict):
                self._namespaces.add(id(inner))


def text_of(key: Any) -> str:
    """A key as it is written in Python, if that is sure to run no code of the program."""
    if type(key) in (str, bytes, int, float, complex, bool, type(None)):
        return _short(repr(key))
    if type(key) is tuple:
        return _short(f"({', '.join(text_of(part) for part in key[:8])}{',' if len(key) == 1 else ''})")
    if type(key) is type:
        return type_name(key)
    return f"<{type_name(type(key))}>"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def type_name(kind: type) -> str:
    """`collections.OrderedDict`; without the module for what is built in."""
    name = type.__dict__["__qualname__"].__get__(kind)
    module = attributes.namespace(kind).get("__module__")
    return name if type(module) is not str or module == "builtins" else f"{module}.{name}"
