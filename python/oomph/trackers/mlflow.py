"""MLflow."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from .metrics import Reading
from .tracker import GrowingMemory, MakeReport


class MlflowRun:
    """A run, by its ID. MLflow's own thread sends the metrics."""

    name = "MLflow"

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def log(self, reading: Reading) -> None:
        metric = import_module("mlflow.entities").Metric
        now_ms = time.time_ns() // 1_000_000
        metrics = [metric(name, value, now_ms, reading.step) for name, value in reading.flat().items()]
        self._client.log_batch(self._run_id, metrics, synchronous=False)

    def leak(self, leak: GrowingMemory) -> None:
        self._client.set_tag(self._run_id, "oomph.leak", leak.message)

    def report(self, step: int, report: MakeReport) -> None:
        made = report()
        self._client.set_tag(self._run_id, "oomph.findings", made.headline)
        self._client.log_text(self._run_id, made.text, "oomph/report.txt")
        self._client.log_dict(self._run_id, made.json, "oomph/report.json")


def run_of(run: Any) -> MlflowRun:
    return MlflowRun(import_module("mlflow").MlflowClient(), run.info.run_id)


def active_run() -> MlflowRun | None:
    mlflow = sys.modules.get("mlflow")
    run = None if mlflow is None else mlflow.active_run()
    return None if run is None else run_of(run)
