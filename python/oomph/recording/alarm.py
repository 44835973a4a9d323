"""Memory that grows step after step, as it is reported to the program."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Leak:
    """Memory that grows step after step on one device. The rule is that of `oomph report`."""

    message: str
    """One sentence for people."""
    step: int
    """Step in which it was found, counted from 1."""
    bytes_per_step: int
    """What each step adds."""
    allocated: int
    """Bytes allocated by then."""
    device: int
    rank: int
    folder: str
    """Where the recording is."""


class MemoryGrows(RuntimeError):
    """Raised at the end of a step by a program that has asked for it; the recording has been written."""

    def __init__(self, leak: Leak) -> None:
        super().__init__(leak)
        self.leak = leak

    def __str__(self) -> str:
        return f"{self.leak.message}; a recording is in {self.folder}"

    @property
    def bytes_per_step(self) -> int:
        return self.leak.bytes_per_step

    @property
    def folder(self) -> str:
        return self.leak.folder


Leak.__module__ = MemoryGrows.__module__ = "oomph"


def parse_request(asked: str, folder: str) -> tuple[str, list[Leak]]:
    """Parses the file that `oomph run` leaves for a rank's recorder: the reason for a dump, and a line per leak (`alarms.rs`)."""
    reason, *lines = asked.splitlines() or [""]
    return reason.strip() or "asked", [Leak(**json.loads(line), folder=folder) for line in lines]
