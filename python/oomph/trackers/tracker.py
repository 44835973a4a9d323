"""What a tracker has to offer, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .final_report import FinalReport
from .metrics import Reading

MakeReport = Callable[[], FinalReport]
"""Makes the report when it is called first: that may take a second, and a tracker may have no use for it."""


class GrowingMemory(Protocol):
    """An `oomph.Leak`."""

    @property
    def message(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def bytes_per_step(self) -> int: ...
    @property
    def device(self) -> int: ...


class Tracker(Protocol):
    """A run of a tracker. Whatever it raises is reported once and goes no further."""

    @property
    def name(self) -> str:
        """As its users call it."""

    def log(self, reading: Reading) -> None: ...

    def leak(self, leak: GrowingMemory) -> None:
        """Memory grows step after step."""

    def report(self, step: int, report: MakeReport) -> None:
        """The recording has ended, `step` was the last."""


class Function:
    """A function of the program, which gets the step and its metrics by name."""

    name = "the function given for `log_to`"

    def __init__(self, function: Callable[[int, dict[str, int]], object]) -> None:
        self._function = function

    def log(self, reading: Reading) -> None:
        self._function(reading.step, reading.flat())

    def leak(self, leak: GrowingMemory) -> None:
        """Nothing: `on_leak` calls a function."""

    def report(self, step: int, report: MakeReport) -> None:
        """Nothing: the program can load the recording."""
