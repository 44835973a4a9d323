"""Logs the steps of a recording to trackers, without slowing it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ..interpreter.errors import keep
from .choice import Named, trackers
from .final_report import final_report
from .metrics import Reading
from .tracker import GrowingMemory, Tracker

_INTERVAL_SECONDS = 1.0
_MAX_SHARE = 0.01
"""Bounds on how often steps are logged, and on the share of the run that this takes: a tracker may be slow to answer."""


class StepLog:
    """`say` reports what cannot be logged, with the error: once for each tracker."""

    def __init__(self, log_to: Any, say: Callable[[str, Exception | None], None]) -> None:
        self._trackers = trackers(log_to, lambda text: say(text, None))
        self._say = say
        self._failed: set[int] = set()
        self._reading = Reading("cuda")
        self._is_new = False
        """Whether the reading has steps that are not logged."""
        self._next = 0.0

    def begin(self, kind: str) -> None:
        """A recording of a GPU (`cuda`) or of the `cpu` begins."""
        self._reading, self._is_new, self._next = Reading(kind), False, 0.0
        for tracker in self._trackers:
            if isinstance(tracker, Named):
                tracker.begin()

    def step_ended(self, row: dict[str, Any], driver: dict[str, Any]) -> None:
        self._reading.add(row, driver)
        self._is_new = True
        if time.monotonic() >= self._next:
            self._log()

    def leak_found(self, leak: GrowingMemory) -> None:
        self._each(lambda tracker: tracker.leak(leak))

    def end(self, recording: str | None) -> None:
        """Logs the last steps, and what `oomph report` says of a recording that has ended."""
        if self._is_new:
            self._log()
        if recording is not None:
            report = cache(partial(final_report, recording))
            self._each(lambda tracker: tracker.report(self._reading.step, report))

    def _log(self) -> None:
        began = time.monotonic()
        reading = self._reading
        self._each(lambda tracker: tracker.log(reading))
        self._reading, self._is_new = reading.begin(), False
        now = time.monotonic()
        self._next = now + max(_INTERVAL_SECONDS, (now - began) / _MAX_SHARE)

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for at, tracker in enumerate(self._trackers):
            try:
                do(tracker)
            except Exception as error:
                keep(error)
                if at not in self._failed:
                    self._failed.add(at)
                    self._say(f"{tracker.name}: something is not logged", error)
