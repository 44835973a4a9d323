"""Whether a step repeats the ones before, so that recording it closely would tell nothing new.

Stacks and modules take a tenth of the time of a CPU-bound step and more. In a loop that makes the same requests in every step,
and ends each with the same memory, one step tells them for all: the report gives the others the same (`repeated.rs`).
A program whose memory grows never repeats a step, so everything about a leak is recorded.

Reading the counters takes a tenth of a millisecond in a step of ten, where nothing of it is in the processor's caches. So in a
steady loop they are read once for several steps, and tell whether all of these were alike.
"""

from __future__ import annotations

from .history import EVENTS_PER_ALLOCATION

_EQUAL_STEPS_FOR_STEADY = 3
"""Equal steps in a row that make a steady loop."""
_CLOSE_STEP_INTERVAL = 64
"""Steps of a steady loop after which one is recorded closely again."""
_MIN_CLOSE_STEPS = 3
"""Steps recorded with stacks that the history must hold before it drops the oldest events."""

Step = list[tuple[int, int, int]]
"""Allocations, bytes requested, and bytes allocated at the end, of each device."""


class Pace:
    """`max_events`: the length of the history."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._counts: list[tuple[int, int]] = []
        self._step: Step = []
        self._alike = 0

    def is_new(self, rows: list[dict[str, int]]) -> bool:
        """Whether the next step has to be recorded closely, after one that ended with these counters."""
        counts = [(row["allocations"], row["all_requested"]) for row in rows]
        if len(counts) != len(self._counts):
            self._counts = [(0, 0)] * len(counts)
        step = [(a - b, c - d, row["allocated"]) for (a, c), (b, d), row in zip(counts, self._counts, rows)]
        self._alike = self._alike + 1 if step == self._step else 0
        self._counts, self._step = counts, step
        return self._alike < _EQUAL_STEPS_FOR_STEADY or self._alike % self._look_again() == 0

    def repeated(self, rows: list[dict[str, int]], steps: int) -> bool:
        """Whether repeating the last step `steps` times would have led to these counters."""
        return len(rows) == len(self._step) and all(
            (row["allocations"], row["all_requested"], row["allocated"])
            == (counts[0] + steps * step[0], counts[1] + steps * step[1], step[2])
            for row, counts, step in zip(rows, self._counts, self._step)
        )

    def count(self, steps: int) -> None:
        """Counts `steps` further steps as repeats of the last one."""
        self._counts = [(a + steps * b, c + steps * d) for (a, c), (b, d, _) in zip(self._counts, self._step)]
        self._alike += steps

    def allocations_after(self, steps: int) -> list[int]:
        """Allocations of each device after `steps` further repeats of the last step."""
        return [a + steps * b for (a, _), (b, _, _) in zip(self._counts, self._step)]

    def _look_again(self) -> int:
        events = max(1, *(EVENTS_PER_ALLOCATION * allocations for allocations, _, _ in self._step))
        return max(1, min(_CLOSE_STEP_INTERVAL, self._max_events // (_MIN_CLOSE_STEPS * events)))
