"""Ranks that end a loop of the program do so after the same step."""

from __future__ import annotations

import os
import time

import torch.distributed as dist

from ..interpreter.system import is_running
from .plan import JobPlan

WAIT_SECONDS = 30.0
"""Time for the other ranks to end a step; after that, ranks no longer wait for each other."""
_POLL_SECONDS = 0.002


class StepAgreement:
    """What the ranks of a job that run think of each step: whether it may be the last."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._folder = os.path.join(plan.folder, "steps")
        self._rank: int | None = None
        self._others: list[int] = []
        self._step = 0
        self._is_broken = False

    def agreed(self, reason: str | None) -> str | None:
        """`reason` if all ranks have one to end the run after this step."""
        if self._is_broken or not self._join():
            return reason
        self._step += 1
        self._write(f"{self._step}-{self._rank}", reason or "")
        found = self._wait()
        self._is_broken = found is None
        return reason if found is None or all(found) else None

    def _join(self) -> bool:
        """Whether there are other ranks."""
        if self._rank is None and dist.is_available() and dist.is_initialized():
            self._rank = dist.get_rank()
            ranks = range(dist.get_world_size())
            self._others = [rank for rank in ranks if rank != self._rank and self._plan.runs(rank)]
            os.makedirs(self._folder, exist_ok=True)
            self._write(f"process-{self._rank}", str(os.getpid()))
        return bool(self._others)

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self._folder, name)
        with open(f"{path}.new", "w") as file:
            file.write(text)
        os.replace(f"{path}.new", path)

    def _read(self, name: str) -> str | None:
        try:
            with open(os.path.join(self._folder, name)) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _wait(self) -> list[str] | None:
        """What the others say; nothing if one of them does not get here."""
        missing, found = set(self._others), []
        ends_at = time.monotonic() + WAIT_SECONDS
        while missing:
            for rank in list(missing):
                text = self._read(f"{self._step}-{rank}")
                if text is not None:
                    found.append(text)
                    missing.discard(rank)
            if missing and (time.monotonic() > ends_at or any(map(self._has_ended, missing))):
                return None
            time.sleep(_POLL_SECONDS if missing else 0)
        return found

    def _has_ended(self, rank: int) -> bool:
        process = self._read(f"process-{rank}")
        return process is not None and not is_running(int(process)) and self._read(f"{self._step}-{rank}") is None
