"""Which objects lead to tensors: of the hundreds of thousands in a process, a few thousand."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

from ..interpreter.errors import keep
from . import arrays
from .referents import referents

_ROOT = __name__.partition(".")[0]

Holding = list[tuple[Any, int]]
"""Objects, each with the number of references to it that come from nowhere in the graph: C code, the interpreter's stack."""


def holding(objects: list[Any], kinds: list[type], array_kinds: list[type], roots: set[int]) -> Holding:
    """Of `objects`, and what they lead to, those of `kinds` and those that lead to one of them.

    `array_kinds`: NumPy's arrays, which the collector does not see. Nothing leads on to what is in `roots` (by identity): they
    are there anyway, and almost everything leads to them.
    """
    half = native()
    find = half.holding if half is not None else in_python
    found: Holding = find(objects, kinds, array_kinds, roots)
    return found


def in_python(objects: list[Any], kinds: list[type], array_kinds: list[type], roots: set[int]) -> Holding:
    """The same where the program has no native half of ours; several times slower."""
    wanted, hidden = set(map(id, kinds)), set(map(id, array_kinds))
    untracked = hidden | {id(dict), id(tuple)} if hidden else set()
    places: dict[int, int] = {}
    everything: list[Any] = []
    for thing in objects:
        if places.setdefault(id(thing), len(everything)) == len(everything):
            everything.append(thing)
    known = len(everything)
    sources: dict[int, list[int]] = {}
    # Grows meanwhile by objects that the collector does not track.
    for at, thing in enumerate(everything):
        found = referents(thing)
        if id(type(thing)) in hidden:
            found += [value for _, value in arrays.references(thing)]
        for referent in found:
            identity = id(referent)
            to = places.get(identity)
            if to is None:
                # A dictionary or tuple with nothing in it but arrays is not tracked either.
                if not gc.is_tracked(referent) and id(type(referent)) not in untracked:
                    continue
                to = places[identity] = len(everything)
                everything.append(referent)
            if identity not in roots:
                sources.setdefault(to, []).append(at)
    waiting = [at for at, thing in enumerate(everything) if id(type(thing)) in wanted]
    leading = set(waiting)
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source not in leading:
                leading.add(source)
                waiting.append(source)
    # Three references are ours: in `everything`, in the tuple to be, and while we ask; one more is in `objects`.
    return [
        (everything[at], sys.getrefcount(everything[at]) - len(sources.get(at, ())) - (4 if at < known else 3))
        for at in sorted(leading)
    ]


def native() -> Any:
    """The extension module of the wheel; None in the copy that `oomph run` lays out, which has Python files only."""
    try:
        return importlib.import_module(f"{_ROOT}._native")
    except Exception as error:
        keep(error)
        return None
