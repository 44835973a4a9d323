"""When a run on an emulated GPU has shown enough."""

from __future__ import annotations

import itertools

EQUAL_STEPS_FOR_PERIOD = 3
MIN_STEPS = 20
"""Steps before a period ends the run: evaluations and leaks show up late."""
MAX_STEPS = 200
"""Steps after which a run without a period ends as well."""

Row = dict[str, int]
"""Counters of all devices together at the end of a step."""


class StopRule:
    """`limit`: number of steps to stop after; 0 runs to the end; `None` stops when memory per step repeats."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.rows: list[Row] = []
        self.count = 0

    def after(self, row: Row, *, goes_on: bool) -> str | None:
        """Why the run may end after this step. `goes_on`: the loop around the step ends by itself, and something may follow."""
        self.count += 1
        if self.limit is not None:
            return "steps" if self.count == self.limit else None
        if goes_on:
            self.rows = []
            return None
        self.rows = [*self.rows[-EQUAL_STEPS_FOR_PERIOD:], row]
        if self.count >= MIN_STEPS and self._repeats():
            return "periodic"
        return "long" if self.count >= MAX_STEPS else None

    def is_growing(self) -> bool:
        """Whether the last step left more behind than the one before."""
        return len(self.rows) > 1 and self.rows[-1]["allocated"] > self.rows[-2]["allocated"]

    def _repeats(self) -> bool:
        """Whether the last steps made the same requests and left the same amount behind."""
        changes = [{key: b[key] - a[key] for key in a} for a, b in itertools.pairwise(self.rows)]
        return len(changes) == EQUAL_STEPS_FOR_PERIOD and all(change == changes[0] for change in changes)
