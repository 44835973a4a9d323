"""What the trainers' callbacks share: one recording at a time, with the steps that the trainer counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..recording.alarm import Leak
from ..recording.api import Recording, record

TRAINER = "trainer"
"""`log_to` of a callback: wherever the trainer logs to."""


class Session:
    """`make` gets what to log to."""

    def __init__(self, path: str | os.PathLike[str], make: Callable[[Any], Recording], log_to: Any) -> None:
        self.path = os.fspath(path)
        self._make = make
        self._recording: Recording | None = None
        self._log_to = log_to
        # A wrong argument is said here, not in the middle of `fit()`.
        make(None if log_to == TRAINER else log_to)

    def start(self, trainers_own: Callable[[], list[Any]]) -> None:
        """Ends an earlier recording first: a run that failed may have left one. `trainers_own` gives what the trainer logs to."""
        self.end()
        self._recording = self._make(trainers_own() if self._log_to == TRAINER else self._log_to).start()

    def step(self) -> None:
        if self._recording is not None:
            self._recording.step()

    def end(self, error: BaseException | None = None) -> None:
        """Writes the recording; with the error, if that is how the run ended."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop(error)


class Recorded:
    """What every trainer's callback is made with."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "oomph-recording",
        *,
        max_events: int | None = None,
        device: str = "auto",
        on_leak: str | Callable[[Leak], object] | None = None,
        raise_on_leak: bool = False,
        log_to: Any = None,
    ) -> None:
        super().__init__()

        def make(log_to: Any) -> Recording:
            return record(
                path,
                max_events=max_events,
                device=device,
                # Only the trainer's word: a sanity check runs modules, and the first batch's optimizer runs before its end.
                own_steps=True,
                on_leak=on_leak,
                raise_on_leak=raise_on_leak,
                log_to=log_to,
            )

        self._session = Session(path, make, log_to)

    @property
    def path(self) -> str:
        return self._session.path
