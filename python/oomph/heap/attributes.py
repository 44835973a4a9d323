"""The names of an instance's attributes, without giving it a `__dict__` that it does not have yet.

Since Python 3.11 an instance keeps its attributes inline until `__dict__` is read; asking makes one, which
stays. So they are read where they lie. The places are found and tried on a class of our own; where they do not fit,
attributes have no names, and nothing else changes.
"""

from __future__ import annotations

import sys
from functools import cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from .memory import WORD, byte, object_at, word

_MANAGED_DICT = 1 << 4
_INLINE_VALUES = 1 << 2


def inline(thing: object) -> list[tuple[str, int]]:
    """Names of attributes in the instance itself, with the identity of their values."""
    kind = type(thing)
    return _inline(thing, kind) if _is_managed(kind) and _can_look_inside() else []


def slots(thing: object, members: list[MemberDescriptorType]) -> list[tuple[str, Any]]:
    """Attributes that have a place of their own, by `__slots__` or by the C code of the class (`members_of` it)."""
    found = []
    for member in members:
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


def with_subclasses(kind: type) -> list[type]:
    """Whatever their metaclasses say."""
    found = {id(kind): kind}
    waiting = [kind]
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        waiting += [each for each in subclasses if id(each) not in found]
        found |= {id(each): each for each in subclasses}
    return list(found.values())


def members_of(kind: type) -> list[MemberDescriptorType]:
    return [each for base in mro(kind) for each in list(namespace(base).values()) if type(each) is MemberDescriptorType]


def _is_managed(kind: type) -> bool:
    return sys.version_info >= (3, 11) and bool(_flags(kind) & _MANAGED_DICT)


def _flags(kind: type) -> int:
    found: int = type.__dict__["__flags__"].__get__(kind)
    return found


def _size(kind: type) -> int:
    found: int = type.__dict__["__basicsize__"].__get__(kind)
    return found


def _inline(thing: object, kind: type) -> list[tuple[str, int]]:
    values = _values_at(thing, kind)
    if not values:
        return []
    found = [(name, word(values + WORD * at)) for at, name in enumerate(_shared_names(kind))]
    return [(name, identity) for name, identity in found if identity]


def _values_at(thing: object, kind: type) -> int:
    if sys.version_info >= (3, 13):
        values = id(thing) + _size(kind)
        is_valid = _flags(kind) & _INLINE_VALUES and byte(values + 3)
        return values + WORD if is_valid else 0
    if sys.version_info >= (3, 12):
        found = word(id(thing) - 3 * WORD)
        return found + 1 if found & 1 else 0
    return word(id(thing) - 4 * WORD)


def _dict_at(thing: object) -> int:
    found = word(id(thing) - 3 * WORD)
    return 0 if found & 1 else found


def _shared_names(kind: type) -> list[str]:
    """The names that all instances of a class share, in the order of their values."""
    keys = word(id(kind) + _offset_of_keys())
    if not keys:
        return []
    entries = keys + 32 + (1 << byte(keys + 9))
    names = [word(entries + 2 * WORD * at) for at in range(word(keys + 24))]
    return [str(object_at(name)) for name in names if name]


class _Probe:
    def __init__(self) -> None:
        self.first, self.second = object(), object()


@cache
def _offset_of_keys() -> int:
    """Where a class has the names that its instances share: next to its own names, which are known."""
    name, qualname = id(_Probe.__name__), id(_Probe.__qualname__)
    for offset in range(0, _size(type) - 4 * WORD, WORD):
        if word(id(_Probe) + offset) == name and word(id(_Probe) + offset + 2 * WORD) == qualname:
            return offset + 3 * WORD
    return 0


@cache
def _can_look_inside() -> bool:
    is_known = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 15)
    if not is_known or not getattr(sys, "_is_gil_enabled", lambda: True)() or not _offset_of_keys():
        return False
    probe = _Probe()
    return [name for name, _ in _inline(probe, _Probe)] == ["first", "second"] and not _dict_at(probe)
