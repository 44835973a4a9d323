"""The names of an instance's attributes, without giving it a `__dict__` that it does not have yet.

Since Python 3.11 an instance keeps its attributes in itself until somebody asks for its `__dict__`; asking makes one, which
stays. So they are read where they lie. The places are found and tried on a class of our own; where they do not fit,
attributes have no names, and nothing else changes.
"""

from __future__ import annotations

import sys
from ctypes import c_ubyte, c_uint64, cast, py_object
from functools import cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

_MANAGED_DICT = 1 << 4
_INLINE_VALUES = 1 << 2
_WORD = 8


def inline(thing: object) -> dict[int, str]:
    """Names of attributes in the instance itself, by the identity of their values."""
    kind = type(thing)
    return _inline(thing, kind) if _is_managed(kind) and _can_look_inside() else {}


def slots(thing: object) -> list[tuple[str, Any]]:
    """Attributes that have a place of their own, by `__slots__` or by the C code of the class."""
    found = []
    for member in _members(type(thing)):
        try:
            found.append((member.__name__, member.__get__(thing)))
        except (AttributeError, TypeError):
            continue
    return found


def identity_of_dict(thing: object, has_dict: bool) -> int:
    """Of the instance's `__dict__`, if there is one. `has_dict`: it refers to some dictionary."""
    kind = type(thing)
    if _is_managed(kind):
        return _dict_at(thing) if _can_look_inside() else 0
    if has_dict:
        for base in mro(kind):
            getter = namespace(base).get("__dict__")
            if type(getter) is GetSetDescriptorType:
                return id(getter.__get__(thing))
    return 0


def mro(kind: type) -> tuple[type, ...]:
    """As it is, whatever a metaclass says."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def namespace(kind: type) -> Any:
    return type.__dict__["__dict__"].__get__(kind)


@cache
def _members(kind: type) -> list[MemberDescriptorType]:
    return [each for base in mro(kind) for each in list(namespace(base).values()) if type(each) is MemberDescriptorType]


def _is_managed(kind: type) -> bool:
    return sys.version_info >= (3, 11) and bool(kind.__flags__ & _MANAGED_DICT)


def _word(address: int) -> int:
    return c_uint64.from_address(address).value


def _inline(thing: object, kind: type) -> dict[int, str]:
    values = _values_at(thing, kind)
    if not values:
        return {}
    found = {_word(values + _WORD * at): name for at, name in enumerate(_shared_names(kind))}
    found.pop(0, None)
    return found


def _values_at(thing: object, kind: type) -> int:
    if sys.version_info >= (3, 13):
        values = id(thing) + kind.__basicsize__
        is_valid = kind.__flags__ & _INLINE_VALUES and c_ubyte.from_address(values + 3).value
        return values + _WORD if is_valid else 0
    if sys.version_info >= (3, 12):
        found = _word(id(thing) - 3 * _WORD)
        return found + 1 if found & 1 else 0
    return _word(id(thing) - 4 * _WORD)


def _dict_at(thing: object) -> int:
    found = _word(id(thing) - 3 * _WORD)
    return 0 if found & 1 else found


def _shared_names(kind: type) -> list[str]:
    """The names that all instances of a class share, in the order of their values."""
    keys = _word(id(kind) + _offset_of_keys())
    if not keys:
        return []
    entries = keys + 32 + (1 << c_ubyte.from_address(keys + 9).value)
    names = [_word(entries + 2 * _WORD * at) for at in range(_word(keys + 24))]
    return [str(cast(name, py_object).value) for name in names if name]


class _Probe:
    def __init__(self) -> None:
        self.first, self.second = object(), object()


@cache
def _offset_of_keys() -> int:
    """Where a class has the names that its instances share: next to its own names, which are known."""
    name, qualname = id(_Probe.__name__), id(_Probe.__qualname__)
    for offset in range(0, type.__basicsize__ - 4 * _WORD, _WORD):
        if _word(id(_Probe) + offset) == name and _word(id(_Probe) + offset + 2 * _WORD) == qualname:
            return offset + 3 * _WORD
    return 0


@cache
def _can_look_inside() -> bool:
    is_known = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 15)
    if not is_known or not getattr(sys, "_is_gil_enabled", lambda: True)() or not _offset_of_keys():
        return False
    probe = _Probe()
    return list(_inline(probe, _Probe).values()) == ["first", "second"] and not _dict_at(probe)
