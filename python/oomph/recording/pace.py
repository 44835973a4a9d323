"""Whether a step is like the ones before.

To know whose part of `backward()` an allocation is takes a call into Python for each module. Where every step makes the same
requests, one step tells it for all of them: the report gives the others the same places.
"""

from __future__ import annotations

_ALIKE = 3
"""So many steps in a row that make the same requests are a steady loop."""
_LOOK_AGAIN = 64
"""Steps of a steady loop after which one is looked at again."""


class Pace:
    def __init__(self) -> None:
        self._before: list[tuple[int, int]] = []
        self._requests: list[tuple[int, int]] = []
        self._alike = 0

    def is_new(self, rows: list[dict[str, int]]) -> bool:
        """Whether the next step has to be looked at, after one that ended with these counters."""
        now = [(row["allocations"], row["all_requested"]) for row in rows]
        requests = [(a - b, c - d) for (a, c), (b, d) in zip(now, self._before, strict=False)]
        self._alike = self._alike + 1 if requests == self._requests else 0
        self._before, self._requests = now, requests
        return self._alike < _ALIKE or self._alike % _LOOK_AGAIN == 0
