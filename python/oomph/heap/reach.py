"""Which objects lead to tensors: of the hundreds of thousands in a process, a few thousand."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

Holding = list[tuple[Any, int]]
"""Objects, each with the number of references to it that come from nowhere in the graph: C code, the interpreter's stack."""


def holding(objects: list[Any], kinds: set[type], roots: set[int]) -> Holding:
    """Of `objects`, and what they lead to, those of `kinds` and those that lead to one of them.

    Nothing leads on to what is in `roots` (by identity): they are there anyway, and almost everything leads to them.
    """
    native = _native()
    return native.holding(objects, kinds, roots) if native is not None else in_python(objects, kinds, roots)


def in_python(objects: list[Any], kinds: set[type], roots: set[int]) -> Holding:
    """The same where the program has no native half of ours; several times slower."""
    places: dict[int, int] = {}
    everything: list[Any] = []
    for thing in objects:
        if places.setdefault(id(thing), len(everything)) == len(everything):
            everything.append(thing)
    known = len(everything)
    sources: dict[int, list[int]] = {}
    # Grows meanwhile by what the collector has been told not to look at.
    for at, thing in enumerate(everything):
        for referent in gc.get_referents(thing):
            identity = id(referent)
            to = places.get(identity)
            if to is None:
                if not gc.is_tracked(referent):
                    continue
                to = places[identity] = len(everything)
                everything.append(referent)
            if identity not in roots:
                sources.setdefault(to, []).append(at)
    waiting = [at for at, thing in enumerate(everything) if type(thing) in kinds]
    found = set(waiting)
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in found:
                found.add(source)
                waiting.append(source)
    # Three references are ours: in `everything`, in the tuple to be, and while we ask; one more is in `objects`.
    return [
        (everything[at], sys.getrefcount(everything[at]) - len(sources.get(at, ())) - (4 if at < known else 3))
        for at in sorted(found)
    ]


def _native() -> Any:
    """`oomph._native` of the wheel, if it is the one that this code belongs to."""
    try:
        native = importlib.import_module("oomph._native")
    except Exception:
        return None
    return native if hasattr(native, "holding") else None
