"""Settings of a process that `oomph` starts, as one JSON object in the environment, and what the process reports back."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

VARIABLE = "OOMPH_CHILD"


@dataclass(frozen=True)
class Settings:
    output: str
    """Folder for what is recorded."""
    library: str | None = None
    """The CUDA emulator, if the run is on an emulated GPU."""
    tracer: str | None = None
    """The library that counts calls of the driver, if the run is to be traced (recording/driver_trace.py)."""
    device: str = "auto"
    """Which memory to record: `cuda`, `cpu`, or `auto`, the first where there is a GPU."""
    max_events: int | None = None
    """Most events to keep in the history, if not the default."""
    steps: int | None = None
    """Number of steps to stop after; 0 runs to the end; None stops when memory per step repeats."""
    time_limit: float | None = None
    """Seconds that a prediction may take to look for later phases (loops.py)."""
    cuts_loops: bool = False
    """Whether it cuts loops short for that."""
    runs_later_iterations: bool = False
    """Whether it runs the later iterations of these loops in which a condition changes (later_iterations.py)."""
    detail: str = "auto"
    """Which steps to record with stacks: `auto`, not those that repeat the ones before; `full`, all."""
    techniques: list[str] = field(default_factory=list)
    """What to switch on from outside (techniques/registry.py)."""
    unknown: int = 0
    """Byte that programs get where they read unknown values."""
    is_live: bool = False
    """Whether others may watch the run."""
    keep_files: bool = False
    """Whether the program may write checkpoints of emulated values."""
    raise_on_leak: bool = False
    """Whether the program gets an exception when its memory grows step after step."""
    job: dict[str, Any] | None = None
    """Which ranks of a job run, if it is predicted as a whole: the fields of `JobPlan` (job/plan.py)."""
    is_template: bool = False
    """Whether the process runs no program, but forks for those of later requests (template.py)."""
    lifeline: str | None = None
    """FIFO that `oomph` holds open for as long as the processes of an emulated run may live (lifeline.py)."""
    notes: str | None = None
    """File for lines `KIND<tab>TEXT` that `oomph` acts on or shows: `prepared`, `torch`, `device`, `failure`, and about a job
    `job`, `group`, `mesh`, `communicator`, `layout`."""
    problems: str | None = None
    """File for one line about each failure of the recorder, which `oomph` shows as the cause where something is missing."""

    @classmethod
    def from_environment(cls) -> Settings | None:
        text = os.environ.get(VARIABLE)
        return cls(**json.loads(text)) if text else None

    def note(self, kind: str, text: str) -> None:
        _append(self.notes, f"{kind}\t{text}")

    def report_problem(self, text: str) -> None:
        """Reports a failure of ours to `oomph`; never raises, and writes nothing where the program would see it."""
        _append(self.problems, text)


def _append(path: str | None, text: str) -> None:
    if path is None:
        return
    try:
        # One write: processes of a run append to one file.
        line = " ".join(text.split("\n")).encode("utf-8", "replace") + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError:
        return  # the run has ended and its folder is gone, or the disk is full
