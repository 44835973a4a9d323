"""What the trainers' callbacks share: one recording at a time, with the steps that the trainer counts."""

from __future__ import annotations

import os

from ..recording.api import Recording, record


class Session:
    def __init__(self, path: str | os.PathLike[str], max_events: int | None, device: str) -> None:
        self.path = os.fspath(path)
        self._max_events = max_events
        self._device = device
        self._recording: Recording | None = None
        # A wrong argument is said here, not in the middle of `fit()`.
        self._make()

    def start(self) -> None:
        """Ends an earlier recording first: a run that failed may have left one."""
        self.end()
        self._recording = self._make().start()

    def step(self) -> None:
        if self._recording is not None:
            self._recording.step()

    def end(self, error: BaseException | None = None) -> None:
        """Writes the recording; with the error, if that is how the run ended."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop(error)

    def _make(self) -> Recording:
        # Only the trainer's word: a sanity check runs modules, and the first batch's optimizer runs before its end.
        return record(self.path, max_events=self._max_events, device=self._device, own_steps=True)


class Recorded:
    """What every trainer's callback is made with."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "oomph-recording",
        *,
        max_events: int | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__()
        self._session = Session(path, max_events, device)

    @property
    def path(self) -> str:
        return self._session.path
