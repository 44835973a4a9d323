"""When a run on an emulated GPU has shown enough of a loop."""

from __future__ import annotations

from .repetition import MAX_PERIOD, Row, change, period

EQUAL_STEPS_FOR_PERIOD = 3
MIN_STEPS = 20
"""Steps before a period ends the run: evaluations and leaks show up late."""
MAX_STEPS = 200
"""Steps after which a run without a period ends as well."""


class StopRule:
    """`limit`: number of steps to stop after; 0 runs to the end; `None` stops when memory per step repeats."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = 0
        self._row: Row | None = None
        self._changes: list[Row] = []
        """What each of the last steps has changed."""
        self._since = 0
        """Steps in this loop, as far as is known."""

    def after(self, row: Row, *, goes_on: bool) -> str | None:
        """The reason to end the run after this step, if any. `goes_on`: the loop around the step ends by itself, and something
        may follow."""
        self.count += 1
        if self.limit is not None:
            return "steps" if self.count == self.limit else None
        if goes_on:
            self.reset()
            return None
        self._since += 1
        if self._row is not None:
            self._changes = [*self._changes, change(self._row, row)][-EQUAL_STEPS_FOR_PERIOD * MAX_PERIOD :]
        self._row = row
        if self._since >= MIN_STEPS and self._period() is not None:
            return "periodic"
        return "long" if self._since >= MAX_STEPS else None

    def reset(self, *, is_settled: bool = False) -> None:
        """Forgets earlier steps: another loop starts, or, if `is_settled`, other iterations of one whose steps repeat."""
        self._row, self._changes, self._since = None, [], MIN_STEPS if is_settled else 0

    def is_growing(self) -> bool:
        """Whether each repetition leaves more behind than the one before."""
        length = self._period()
        return length is not None and sum(of["allocated"] for of in self._changes[-length:]) > 0

    def _period(self) -> int | None:
        """Number of steps after which they make the same requests and leave the same amount behind."""
        return period(self._changes, EQUAL_STEPS_FOR_PERIOD)
