"""Weights & Biases."""

from __future__ import annotations

import sys
from typing import Any

from .metrics import PREFIX, Reading
from .tracker import GrowingMemory, MakeReport


class WandbRun:
    """A run. Metrics join the row that the program logs next, so its own steps stay as they are.

    W&B counts a step with each row and drops rows for steps that are over: a row of ours would shift the program's.
    """

    name = "Weights & Biases"

    def __init__(self, run: Any) -> None:
        self._run = run
        self._row: int | None = None
        self._unfinished: dict[str, int] = {}
        """Metrics in the row that the program has not logged yet."""

    def log(self, reading: Reading) -> None:
        row = self._run.step
        metrics = reading.flat()
        if row == self._row:
            metrics = {name: max(value, self._unfinished.get(name, value)) for name, value in metrics.items()}
        self._row, self._unfinished = row, metrics
        self._run.log({PREFIX + "step": reading.step, **metrics}, commit=False)

    def leak(self, leak: GrowingMemory) -> None:
        self._run.summary[PREFIX + "leak_bytes_per_step"] = leak.bytes_per_step
        self._run.alert("Memory grows step after step", leak.message, level="WARN")

    def report(self, step: int, report: MakeReport) -> None:
        made = report()
        self._run.summary[PREFIX + "findings"] = made.headline
        self._run.log({PREFIX + "report": sys.modules["wandb"].Html(made.html, inject=False)}, commit=False)


def active_run() -> WandbRun | None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    return None if run is None else WandbRun(run)
