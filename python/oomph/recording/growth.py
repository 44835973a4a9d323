"""Whether memory grows, so that it is worth a look who holds it while the program runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_SKIPPED_STEPS = 2
"""First steps, in which optimizers allocate their state and libraries their workspaces."""
_MIN_STEPS = 6
_MIN_BYTES = 1 << 20
_MAX_SECONDS = 2.0
_MAX_SHARE = 0.02
"""Bound on the time of all heap walks: the larger of the two."""


class Growth:
    def __init__(self) -> None:
        self._steps = 0
        self._next_look = _MIN_STEPS
        self._lowest: int | None = None
        self._lowest_before: int | None = None
        """The least that a step has ended with since the last look, and between the two looks before."""
        self._began = time.monotonic()
        self._spent = 0.0
        self._longest = 0.0

    def is_worth_a_look(self, rows: list[dict[str, int]]) -> bool:
        """After a step that ended with these counters. Looks come ever more rarely: after 6, 8, 12, 16, 24, 32 … steps.

        Memory grows if even the step that ended with the least holds more than before: something may be kept only every few
        steps, and what comes and goes is no growth.
        """
        allocated = sum(row["allocated"] for row in rows)
        self._steps += 1
        if self._steps == _SKIPPED_STEPS:
            self._lowest_before = allocated
        elif self._steps > _SKIPPED_STEPS:
            self._lowest = allocated if self._lowest is None else min(self._lowest, allocated)
        if self._steps < self._next_look or self._lowest is None or self._lowest_before is None:
            return False
        power = 1 << (self._steps.bit_length() - 1)
        self._next_look = 2 * power if self._steps > power else power + power // 2
        has_grown = self._lowest - self._lowest_before >= _MIN_BYTES
        self._lowest_before, self._lowest = self._lowest, None
        return has_grown and self._has_time()

    @property
    def has_looked(self) -> bool:
        return self._spent > 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self._spent += took
            self._longest = max(self._longest, took)

    def _has_time(self) -> bool:
        limit = max(_MAX_SECONDS, _MAX_SHARE * (time.monotonic() - self._began))
        return self._spent + self._longest <= limit
