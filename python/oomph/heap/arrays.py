"""NumPy's arrays, which the collector knows nothing of: of objects, or of memory that belongs to a tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from . import attributes


def kinds() -> list[type]:
    """Classes of arrays, if the program uses NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    array = vars(numpy).get("ndarray")
    return attributes.with_subclasses(array) if type(array) is type else []


def references(array: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """What it is a view of, or the objects that are its own."""
    getters = attributes.namespace(sys.modules["numpy"].ndarray)
    base = getters["base"].__get__(array)
    if base is not None:
        yield ("attribute", "base"), base
    if getters["dtype"].__get__(array).kind == "O" and getters["flags"].__get__(array).owndata:
        for index, value in sys.modules["numpy"].ndenumerate(array):
            yield ("item", ", ".join(map(str, index))), value
