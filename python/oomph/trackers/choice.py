"""Where a program wants its steps and findings: `log_to` of `oomph.record()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import mlflow, opentelemetry, tensorboard, wandb
from .metrics import Reading
from .tracker import Function, GrowingMemory, MakeReport, Tracker


class _Kind(NamedTuple):
    find: Callable[[], Tracker | None]
    """Finds what the program has open."""
    missing: str
    """What to say if there is nothing."""


_KINDS = {
    "wandb": _Kind(wandb.active_run, "no active run of Weights & Biases (`wandb.init()` begins one)"),
    "mlflow": _Kind(mlflow.active_run, "no active run of MLflow (`mlflow.start_run()` begins one)"),
    "tensorboard": _Kind(tensorboard.only_writer, "no open `SummaryWriter`, or several (pass yours: `log_to=writer`)"),
    "opentelemetry": _Kind(opentelemetry.of_provider_in_use, "no meter provider of OpenTelemetry (`set_meter_provider()`)"),
}
NAMES = tuple(_KINDS)


class Named:
    """A tracker by its name: the run that the program has active at a step, and that one from then on."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.name = f"log_to={name!r}"
        self._kind = _KINDS[name]
        self._say = say
        self._found: Tracker | None = None
        self._is_said = False

    def begin(self) -> None:
        """Another recording begins, perhaps of another run. A meter knows what it has counted, and stays."""
        if not isinstance(self._found, opentelemetry.Meter):
            self._found = None

    def log(self, reading: Reading) -> None:
        if found := self._find():
            found.log(reading)

    def leak(self, leak: GrowingMemory) -> None:
        if found := self._find():
            found.leak(leak)

    def report(self, step: int, report: MakeReport) -> None:
        if found := self._find():
            found.report(step, report)

    def _find(self) -> Tracker | None:
        if self._found is None:
            self._found = self._kind.find()
            if self._found is None and not self._is_said:
                self._is_said = True
                self._say(f"{self.name}: {self._kind.missing}; nothing is logged until there is")
        return self._found


def trackers(log_to: Any, say: Callable[[str], None]) -> list[Tracker]:
    """Raises for anything that is no tracker."""
    several = log_to if isinstance(log_to, (list, tuple)) else [log_to]
    return [_tracker(each, say) for each in several]


def _tracker(of: Any, say: Callable[[str], None]) -> Tracker:
    if isinstance(of, str):
        if of not in _KINDS:
            raise ValueError(f"expected one of {', '.join(NAMES)} for `log_to`, found {of!r}")
        return Named(of, say)
    found = known(of)
    if found is not None:
        return found
    if callable(of):
        return Function(of)
    raise TypeError(f"expected the name of a tracker, its run, or a function for `log_to`, found {of!r}")


def known(of: Any) -> Tracker | None:
    """The tracker that an object belongs to, by what its class has: nothing is imported to find out."""
    kind = type(of)
    if isinstance(of, mlflow.MlflowRun):
        return of
    if hasattr(kind, "define_metric"):
        return wandb.WandbRun(of)
    if hasattr(kind, "add_scalar") and hasattr(kind, "add_text"):
        return tensorboard.TensorboardWriter(of)
    if hasattr(kind, "create_gauge"):
        return opentelemetry.Meter(of)
    if hasattr(kind, "get_meter"):
        return opentelemetry.meter_of(of)
    if hasattr(getattr(of, "info", None), "run_id"):
        return mlflow.run_of(of)
    return None
