"""How an object refers to another: by an attribute, an item, a variable.

Nothing here runs the program's code: no `__getattr__`, property, `__iter__`, `__repr__` or `__eq__` of its classes.
"""

from __future__ import annotations

import functools
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
    MemberDescriptorType,
    MethodType,
    TracebackType,
)
from typing import Any

import torch
from torch.nn import Module

from . import attributes
from .arrays import references as array_references
from .frames import variables
from .referents import referents

Name = tuple[str, str]
"""A kind and a text:

`attribute` and its name; `item` and what stands between the brackets; `local` and `closure` with the name of a variable;
`element` of a set; `key` of a dictionary; `cached`, by a function's cache; `part` (what it is called in C), or nothing.
`inside` is a step that a path leaves out: to the dictionary of an instance, whose items are then attributes.
"""
Reference = tuple[Name, Any]

_INSIDE = ("inside", "")
_UNNAMED = ("part", "")
_MAX_NAME_LENGTH = 80
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
# By identity: the program's classes may have a `__hash__` and an `__eq__` of their own.
_ATTRIBUTES_OF = {id(kind): names for kind, names in _ATTRIBUTES.items()}
_FRAME_OF = {id(GeneratorType): "gi_frame", id(CoroutineType): "cr_frame", id(AsyncGeneratorType): "ag_frame"}
_PLAIN = {id(kind) for kind in (str, bytes, int, float, complex, bool, type(None))}
_OF_MODULES = ("_modules", "_parameters", "_buffers")


class References:
    """The references of objects. Owners first, then `dict` and `tuple`: what its items are depends on whose a dictionary is."""

    def __init__(self, arrays: set[int]) -> None:
        """`arrays`: identities of NumPy's classes of arrays."""
        self._arrays = arrays
        self._namespaces: set[int] = set()
        self._left_out: set[int] = set()
        """Dictionaries in an instance's own whose items are attributes of the instance as well."""
        self._closures: dict[int, tuple[str, ...]] = {}
        self._members: dict[int, list[MemberDescriptorType]] = {}

    def add_namespace(self, dictionary: dict[Any, Any]) -> None:
        """A dictionary whose items are the attributes of an object."""
        self._namespaces.add(id(dictionary))

    def of(self, thing: Any) -> Iterator[Reference]:
        kind = type(thing)
        if kind is list:
            yield from ((("item", str(at)), value) for at, value in enumerate(thing))
        elif kind is dict:
            yield from self._items(thing)
        elif kind is tuple:
            yield from self._elements(thing)
        elif id(kind) in self._arrays:
            yield from array_references(thing)
        else:
            names: dict[int, list[Name]] = {}
            for name, identity in self._names(thing, kind):
                names.setdefault(identity, []).append(name)
            for value in referents(thing):
                known = names.get(id(value), [_UNNAMED])
                # What is referred to under several names has each of them; otherwise the last is the best.
                yield (known.pop() if len(known) > 1 else known[0]), value

    def _items(self, thing: dict[Any, Any]) -> Iterator[Reference]:
        is_namespace = id(thing) in self._namespaces
        for key, value in list(dict.items(thing)):
            if type(key) is not str:
                yield ("item", text_of(key)), value
                yield ("key", text_of(key)), key
            elif id(value) in self._left_out:
                yield _INSIDE, value
            elif is_namespace:
                yield ("item" if key.isdigit() else "attribute", key), value
            else:
                yield ("item", text_of(key)), value

    def _elements(self, thing: tuple[Any, ...]) -> Iterator[Reference]:
        names = self._closures.get(id(thing))
        for at, value in enumerate(thing):
            yield (("closure", names[at]) if names and at < len(names) else ("item", str(at))), value

    def _names(self, thing: Any, kind: type) -> Iterator[tuple[Name, int]]:
        """With the identity of what is referred to; if one is given twice, the later is the better."""
        if issubclass(kind, dict):
            yield from ((name, id(value)) for name, value in self._items(thing))
        elif issubclass(kind, (list, tuple, deque)):
            iterate = next(base.__iter__ for base in (list, tuple, deque) if issubclass(kind, base))
            yield from ((("item", str(at)), id(value)) for at, value in enumerate(iterate(thing)))
        elif issubclass(kind, (set, frozenset)):
            elements = set.__iter__(thing) if issubclass(kind, set) else frozenset.__iter__(thing)
            yield from ((("element", ""), id(value)) for value in elements)
        elif kind is CellType:
            yield from ((_INSIDE, id(value)) for value in referents(thing))
        elif kind is functools._lru_cache_wrapper:
            yield from ((("cached", ""), id(value)) for value in referents(thing))
        elif kind is FrameType:
            yield from ((("local", name), id(value)) for name, value in variables(thing))
        elif id(kind) in _FRAME_OF:
            frame = getattr(thing, _FRAME_OF[id(kind)])
            yield from ((("local", name), id(value)) for name, value in (variables(frame) if frame is not None else []))
        if issubclass(kind, BaseException):
            yield from _attributes(thing, ("__traceback__", "__context__", "__cause__", "args"), BaseException)
        elif issubclass(kind, torch.Tensor):
            yield from _attributes(thing, ("_backward_hooks", "_post_accumulate_grad_hooks"), torch._C.TensorBase)
        yield from _attributes(thing, _ATTRIBUTES_OF.get(id(kind), ()), kind)
        yield from self._instance(thing, kind)
        if kind is FunctionType and thing.__closure__ is not None:
            self._closures[id(thing.__closure__)] = thing.__code__.co_freevars
            yield _INSIDE, id(thing.__closure__)
        yield ("attribute", "__class__"), id(kind)

    def _instance(self, thing: Any, kind: type) -> Iterator[tuple[Name, int]]:
        if id(kind) not in self._members:
            self._members[id(kind)] = attributes.members_of(kind)
        yield from ((("attribute", name), id(value)) for name, value in attributes.slots(thing, self._members[id(kind)]))
        yield from ((("attribute", name), identity) for name, identity in attributes.inline(thing))
        dictionaries = {id(value): value for value in referents(thing) if type(value) is dict}
        if issubclass(kind, type):
            # Of the class itself; its other dictionaries are written by C code.
            own = [each for each in dictionaries.values() if "__module__" in each and "__doc__" in each]
        else:
            identity = attributes.identity_of_dict(thing, bool(dictionaries))
            own = [dictionaries[identity]] if identity in dictionaries else []
        for dictionary in own:
            yield _INSIDE, id(dictionary)
            self._namespaces.add(id(dictionary))
            if issubclass(kind, Module):
                self._add_names_of_module(dictionary)

    def _add_names_of_module(self, dictionary: dict[str, Any]) -> None:
        """`_modules['encoder']` of a module is its attribute `encoder`."""
        for name in _OF_MODULES:
            inner = dictionary.get(name)
            if issubclass(type(inner), dict):
                self._namespaces.add(id(inner))
                self._left_out.add(id(inner))


def _attributes(thing: Any, names: tuple[str, ...], kind: type) -> Iterator[tuple[Name, int]]:
    """By the getters of a built-in class."""
    for name in names:
        getter = attributes.namespace(kind).get(name)
        value = getter.__get__(thing) if getter is not None else None
        if value is not None:
            yield ("attribute", name), id(value)


def text_of(key: Any) -> str:
    """A key as it is written in Python, if that is sure to run no code of the program."""
    if id(type(key)) in _PLAIN:
        return _short(repr(key))
    if type(key) is tuple:
        return _short(f"({', '.join(text_of(part) for part in key[:8])}{',' if len(key) == 1 else ''})")
    if type(key) is type:
        return type_name(key)
    return f"<{type_name(type(key))}>"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"


def type_name(kind: type) -> str:
    """`collections.OrderedDict`; without the module for what is built in."""
    name = type.__dict__["__qualname__"].__get__(kind)
    module = attributes.namespace(kind).get("__module__")
    return name if type(module) is not str or module == "builtins" else f"{module}.{name}"
