"""All objects of the process, looked at without a trace.

A reference of ours to an object of the program can hurt it. `tuple(generator)` grows its tuple while it fills it, and Python
refuses that (`SystemError: bad argument to internal function`) if another thread has got hold of the tuple meanwhile. So
objects are gone through in one call of C code, during which no other thread runs; instances are found by their reference to
their class.
"""

from __future__ import annotations

import gc
from itertools import chain
from typing import Any, TypeVar

from .pause import undisturbed

T = TypeVar("T")


def instances(*kinds: type[T]) -> list[T]:
    """All instances that the collector knows, of the classes and of those made from them."""
    # A collection in the middle may run code of the program.
    with undisturbed():
        # One call, in which the list of all objects comes and goes.
        types: set[type] = set(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
        wanted = {each for each in types if issubclass(each, kinds)}
        return [found for found in gc.get_referrers(*wanted) if type(found) in wanted]


def complete_objects() -> list[Any]:
    """All objects that the collector knows, without tuples that are being filled: their last places are empty."""
    things = gc.get_objects()
    places = [at for at, thing in enumerate(things) if type(thing) is tuple and len(gc.get_referents(thing)) < len(thing)]
    for at in reversed(places):
        del things[at]
    return things
