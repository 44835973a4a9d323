"""Records a Lightning run: `Trainer(callbacks=[OomphCallback("recording")])`.

Works with `lightning` and with `pytorch_lightning`, which have the same classes under two names.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ..trackers.choice import known
from ..trackers.mlflow import MlflowRun
from .session import Recorded

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[type, ...]:
    """The Callback class of the package that the program uses; of both, if it has imported both."""
    names = [name for name in _NAMES if name in sys.modules]
    if not names:
        names = [name for name in _NAMES if _is_installed(name)][:1]
    if not names:
        raise ModuleNotFoundError("oomph.integrations.lightning needs `lightning` or `pytorch_lightning`")
    return tuple(importlib.import_module(name).Callback for name in names)


def _is_installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def _tracker(logger: Any) -> Any:
    """The run that a logger of Lightning logs to; for one that is not known here, a function that logs with it."""
    experiment = getattr(logger, "experiment", None)
    if hasattr(type(experiment), "log_batch") and hasattr(logger, "run_id"):
        return MlflowRun(experiment, logger.run_id)
    return experiment if known(experiment) else lambda step, metrics: logger.log_metrics(metrics, step)


class OomphCallback(Recorded, *_bases()):  # type: ignore[misc]
    """Records from the setup of a run to its end, or to the exception that ends it.

    A step is a batch of the run's own kind: in `fit()` the training batches, and not those of a validation in between.
    """

    _stage = ""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Before the model goes to its device: its parameters have their lines then.
        self._stage = stage
        self._session.start(lambda: [_tracker(logger) for logger in trainer.loggers])

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._session.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._session.end(exception)

    def on_train_batch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._step("fit")

    def on_validation_batch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._step("validate")

    def on_test_batch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._step("test")

    def on_predict_batch_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._step("predict")

    def _step(self, stage: str) -> None:
        if stage == self._stage:
            self._session.step()
