"""Steps of a steady loop that have ended since the counters were read."""

from __future__ import annotations

from .pace import Pace

_MAX_STEPS = 7
_MAX_US = 250_000
"""Steps after which the counters are read at the latest, and time since they were."""
_FIELDS = ("device", "allocations", "allocated", "reserved")

Rows = list[dict[str, int]]
Ended = tuple[int, int, Rows]
"""Number of a step, when it ended in microseconds, and counters of each device."""


class UncountedSteps:
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._steps: list[tuple[int, int]] = []
        self._counted_us = 0
        self.last_rows: Rows = []
        """The counters that were read last."""

    def __len__(self) -> int:
        return len(self._steps)

    def can_take(self, now_us: int) -> bool:
        """Whether the counters need not be read yet after a step of a steady loop."""
        return len(self._steps) < _MAX_STEPS and now_us - self._counted_us < _MAX_US

    def add(self, number: int, now_us: int) -> None:
        self._steps.append((number, now_us))

    def count(self, rows: Rows, now_us: int) -> None:
        """The counters have been read."""
        self.last_rows = [{name: row[name] for name in _FIELDS} for row in rows]
        self._counted_us = now_us

    def look(self) -> list[Ended]:
        """For watchers: these steps, with the counters that were read last."""
        return [(number, time_us, self.last_rows) for number, time_us in self._steps.copy()]

    def take(self, *, are_alike: bool) -> list[Ended]:
        """These steps, which are then counted. If they were not alike, only when they ended is known."""
        steps, self._steps = self._steps, []
        ended = [(number, time_us, self._after(at) if are_alike else []) for at, (number, time_us) in enumerate(steps, 1)]
        if steps and are_alike:
            self._pace.count(len(steps))
        return ended

    def forget(self) -> None:
        self._steps = []

    def _after(self, steps: int) -> Rows:
        counts = self._pace.allocations_after(steps)
        return [{**row, "allocations": count} for row, count in zip(self.last_rows, counts)]
