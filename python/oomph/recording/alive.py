"""What is alive in the process, of one kind."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


def alive(kind: type[T]) -> list[T]:
    """All instances that the collector knows, of the class and of those made from it."""
    things = gc.get_objects()
    # By type first: a process has hundreds of thousands of objects and a few thousand types.
    kinds = {each for each in set(map(type, things)) if issubclass(each, kind)}
    return [thing for thing in things if type(thing) in kinds]
