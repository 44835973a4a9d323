"""Whether a program repeats what it did, by the memory that it asks for."""

from __future__ import annotations

Row = dict[str, int]
"""Counters of all devices together, or how they changed."""

MAX_PERIOD = 32
"""Longest period: a program may accumulate gradients over that many iterations."""


def change(before: Row, after: Row) -> Row:
    return {key: after[key] - before[key] for key in after}


def period(changes: list[Row], repeats: int) -> int | None:
    """Length of the pattern that the last changes repeat `repeats` times."""
    for length in range(1, MAX_PERIOD + 1):
        last = changes[-repeats * length :]
        if len(last) < repeats * length:
            return None
        if all(a == b for a, b in zip(last, last[length:])):
            return length
    return None
