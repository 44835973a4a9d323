"""What a running recorder reports to watchers: current counters, the last steps, the driver's view.

Nothing of the history is copied for it and nothing waits for the GPU. What costs more than microseconds, the driver's view and
the stacks of what is alive, is asked for rarely, and only while a watcher shows it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from ..interpreter import threads
from .facts import command, limit, pinned, world_size
from .files import launched_as
from .live_socket import LiveSocket, Question
from .messages import say, words

if TYPE_CHECKING:
    from .recorder import Recorder

_MAX_STEPS = 512
_COUNTERS_INTERVAL_SECONDS = 0.1
_DRIVER_INTERVAL_SECONDS = 1.0
_STACKS_INTERVAL_SECONDS = 2.0
_STACKS_REQUEST_SECONDS = 10.0
"""How long a request for stacks holds: a watcher that has gone away is not served forever."""
_MAX_STACKS_SHARE = 0.002
"""Share of the run that reading the stacks of live blocks may take: the program is paused meanwhile."""
_MAX_STACKS = 64


class Live:
    """The recorder's side of the live socket."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._socket = LiveSocket(self._answer)
        self._facts = {
            "version": 1,
            "host": socket.gethostname(),
            "world_size": world_size(),
            "command": command(),
            "torch": torch.__version__,
            "kind": recorder.history.kind,
            "started_us": time.time_ns() // 1000,
        }
        self._cards: dict[int, dict[str, Any]] = {}
        self._counts: dict[str, Any] = {}
        self._counted_at = 0.0
        self._steps: deque[dict[str, Any]] = deque(maxlen=_MAX_STEPS)
        self._era = 0
        """Counts how often steps have been numbered from the start."""
        self._driver: dict[int, dict[str, Any]] = {}
        self._driver_at = 0.0
        self._stacks: list[dict[str, Any]] | None = None
        self._stacks_wanted_until = 0.0
        self._stacks_next = 0.0
        self._stacks_step = 0
        """The step in which they were read."""
        self._is_dumping = False
        self._dumps = 0

    def open(self) -> None:
        try:
            self._socket.open()
        except (OSError, RuntimeError) as error:  # no private folder; no more threads
            say(f"this run cannot be watched: {words(error)}")

    def close(self) -> None:
        self._socket.close()

    def forked(self) -> None:
        self._socket.forked()

    def step_ended(self, number: int, time_us: int, rows: list[dict[str, int]]) -> None:
        self._steps.append(_step(number, time_us, rows))
        if time.monotonic() < self._stacks_wanted_until:
            self._look_at_stacks()

    def begin_anew(self) -> None:
        self._era += 1
        self._steps.clear()

    def _answer(self, question: Question) -> dict[str, Any]:
        if question.get("dump") and not self._is_dumping:
            # In a thread of its own: watchers want answers meanwhile.
            self._is_dumping = True
            threads.start(self._dump)
        now = time.monotonic()
        if now - self._counted_at >= _COUNTERS_INTERVAL_SECONDS:
            self._counted_at = now
            self._counts = self._count()
        # A client that has seen the steps of another era gets all.
        since = question.get("since", 0) if question.get("era") == self._era else 0
        steps = self._steps_since(since) if since < self._recorder.count else []
        answer = {**self._counts, "era": self._era, "count": self._recorder.count, "steps": steps}
        answer |= {"dumps": self._dumps, "is_dumping": self._is_dumping}
        if question.get("stacks"):
            self._stacks_wanted_until = now + _STACKS_REQUEST_SECONDS
            is_new = self._stacks_step > question.get("stacks_since", 0)
            answer |= {"stacks": self._stacks if is_new else None, "stacks_step": self._stacks_step}
        return answer

    def _steps_since(self, since: int) -> list[dict[str, Any]]:
        uncounted = [_step(*step) for step in self._recorder.uncounted.look()]
        # They may have been counted meanwhile.
        counted = {step["step"]: step for step in self._steps.copy()}
        steps = {step["step"]: step for step in uncounted} | counted
        return [steps[number] for number in sorted(steps) if number > since]

    def _count(self) -> dict[str, Any]:
        """Reply that may be reused for watchers that ask at the same time."""
        recorder = self._recorder
        is_cuda = recorder.history.kind == "cuda"
        devices = recorder.history.counters()
        if is_cuda:
            self._ask_driver(devices)
            devices = [{**row, **self._driver.get(row["device"], {}), **self._card(row["device"])} for row in devices]
        return {
            **self._facts,
            "pid": os.getpid(),
            "rank": launched_as(),
            "folder": recorder.files.folder,
            "name": recorder.files.name,
            "time_us": time.time_ns() // 1000,
            "devices": devices,
            **(pinned() if devices and is_cuda else {}),
            "has_stacks": recorder.history.has_live_stacks,
        }

    def _card(self, device: int) -> dict[str, Any]:
        """What the card is; the limit may change."""
        if device not in self._cards:
            properties = torch.cuda.get_device_properties(device)
            uuid = str(getattr(properties, "uuid", ""))
            self._cards[device] = {"card": properties.name, "uuid": uuid, "total": properties.total_memory}
        return {**self._cards[device], "limit": limit(device)}

    def _ask_driver(self, rows: list[dict[str, int]]) -> None:
        now = time.monotonic()
        if now - self._driver_at < _DRIVER_INTERVAL_SECONDS:
            return
        self._driver_at = now
        nvml = self._recorder.nvml()
        found: dict[int, dict[str, Any]] = {}
        for device in (row["device"] for row in rows):
            used = nvml.used(device)
            if used is not None:
                found[device] = {"used": used, "processes": nvml.processes(device)}
        for entry in self._recorder.ledger.driver_counts():
            found.setdefault(entry["device"], {}).setdefault("driver", []).append(entry)
        self._driver = found

    def _look_at_stacks(self) -> None:
        """At the end of a step: what is alive then is what stays."""
        began = time.monotonic()
        if began < self._stacks_next:
            return
        found = self._recorder.history.live_stacks()
        took = time.monotonic() - began
        self._stacks_next = began + max(_STACKS_INTERVAL_SECONDS, took / _MAX_STACKS_SHARE)
        if found is not None:
            found.sort(key=lambda stack: stack.bytes, reverse=True)
            self._stacks = [vars(stack) for stack in found[:_MAX_STACKS]]
            self._stacks_step = self._recorder.count

    def _dump(self) -> None:
        try:
            self._dumps += self._recorder.request_dump("asked")
        finally:
            self._is_dumping = False


def _step(number: int, time_us: int, rows: list[dict[str, int]]) -> dict[str, Any]:
    devices = [{field: row[field] for field in ("device", "allocated", "reserved")} for row in rows]
    return {"step": number, "time_us": time_us, "devices": devices}
