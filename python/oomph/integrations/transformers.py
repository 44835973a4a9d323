"""Records a run of the transformers `Trainer`: `Trainer(..., callbacks=[OomphCallback("recording")])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..recording.messages import say
from ..trackers.choice import NAMES
from .session import Recorded


def _trackers(report_to: list[str]) -> list[str]:
    others = [name for name in report_to if name not in NAMES]
    if others:
        say(f"log_to='trainer': nothing is logged to {', '.join(others)}; expected one of {', '.join(NAMES)}")
    return [name for name in report_to if name in NAMES]


class OomphCallback(Recorded, TrainerCallback):
    """Records `train()`. A step is one of the optimizer's: batches whose gradients accumulate belong to one step.

    The trainer does not notify its callbacks of an exception: the recording is then written when the process ends, by
    `stop()`, or when `train()` is called again.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.start(lambda: _trackers(args.report_to))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.end()

    def stop(self, error: BaseException | None = None) -> None:
        """Writes the recording of a `train()` that did not finish."""
        self._session.end(error)
