"""What oomph tells a process that it has started: one JSON object in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

VARIABLE = "OOMPH_CHILD"


@dataclass(frozen=True)
class Settings:
    output: str
    """Folder for what is recorded."""
    library: str | None = None
    """The stand-in for CUDA, if the run is on a pretend GPU."""
    device: str = "auto"
    """Which memory to record: `cuda`, `cpu`, or `auto`, the first where there is a GPU."""
    max_events: int | None = None
    """Bound on the history, if not the usual one."""
    steps: int | None = None
    """Stop after so many steps; 0: run to the end; None: when memory per step repeats itself."""
    techniques: list[str] = field(default_factory=list)
    """What to switch on from outside (techniques.py)."""
    unknown: int = 0
    """What the program gets that reads a value which nobody knows."""
    is_live: bool = False
    """Whether others may watch the run."""
    keep_files: bool = False
    """Whether the program may write checkpoints of pretended values."""
    raise_on_leak: bool = False
    """Whether the program gets an exception when its memory grows step after step."""


def from_environment() -> Settings | None:
    text = os.environ.get(VARIABLE)
    return Settings(**json.loads(text)) if text else None
