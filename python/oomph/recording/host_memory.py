"""Host memory of a process and of its data loaders' workers over time, and its pinned memory by line: `rankN.host.jsonl`.

A thread of ours reads the kernel's counters about once per second, or less often where that would take more than a hundredth of
the time. Samples are appended to their file as they come, so that they outlive a process that the kernel kills.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..interpreter import threads
from ..interpreter.errors import keep
from ..interpreter.system import IS_LINUX
from . import proc_memory
from .data_loaders import DataLoaders
from .files import Files
from .messages import say, words
from .pinned_memory import PinnedMemory

_INTERVAL_SECONDS = 1.0
_MAX_INTERVAL_SECONDS = 60.0
_SAMPLES_PER_INTERVAL = 512
"""After so many samples the interval doubles: a run of a day has 2,000 of them."""
_MAX_SHARE = 0.01
_UNPACED_SECONDS = 1.0
"""Share of a CPU that reading the counters may take, once it has taken so long."""
_MAX_WAITING = 1024
"""Samples that wait for their file: its name is known with the first dump or step."""


class HostMemory:
    def __init__(self, files: Files, kind: str) -> None:
        self._files = files
        self._kind = kind
        self._loaders = DataLoaders()
        self._pinned = PinnedMemory(self._loaders.pinned_for)
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._written_loaders = 0
        self._samples = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pid = os.getpid()

    def install(self) -> None:
        """Before the program makes a loader."""
        self._loaders.install()
        if self._kind == "cuda":
            self._pinned.install()

    def begin(self) -> None:
        """Once the process uses its device. No thread of ours is there before."""
        if IS_LINUX:
            try:
                threads.start(self._run)
            except RuntimeError as error:  # no more threads
                say(f"host memory is not recorded: {words(error)}")

    def remove(self) -> None:
        self._pinned.remove()
        self._loaders.remove()
        # In a forked process, the thread that may hold the event's lock is not there.
        if os.getpid() == self._pid:
            self._ended.set()

    def _run(self) -> None:
        interval, spent = _INTERVAL_SECONDS, 0.0
        try:
            while not self._ended.wait(interval):
                began = time.thread_time()
                self.sample()
                self.flush()
                pace = _INTERVAL_SECONDS * (1 << self._samples // _SAMPLES_PER_INTERVAL)
                took = time.thread_time() - began
                spent += took
                interval = max(min(pace, _MAX_INTERVAL_SECONDS), took / _MAX_SHARE if spent > _UNPACED_SECONDS else 0.0)
        except Exception as error:
            keep(error)
            say(f"host memory is no longer recorded: {words(error)}")

    def sample(self) -> None:
        """Notes what the kernel counts at this moment."""
        own = proc_memory.process(self._pid)
        if own is None:
            return
        row: dict[str, Any] = {"time_us": time.time_ns() // 1000, **own}
        parts: tuple[tuple[str, Callable[[], dict[str, int] | None]], ...] = (
            ("shm", proc_memory.shared_memory),
            ("cgroup", proc_memory.control_group),
            ("machine", proc_memory.machine),
        )
        for name, read in parts:
            found = read()
            if found is not None:
                row[name] = found
        known = list(self._loaders.workers.items())
        workers = [found for pid, loader in known if (found := self._worker(pid, loader)) is not None]
        if workers:
            row["workers"] = workers
        with self._lock:
            self._samples += 1
            self._waiting.append(row)

    def _worker(self, pid: int, loader: int) -> dict[str, int] | None:
        found = proc_memory.process(pid)
        if found is None:
            self._loaders.workers.pop(pid, None)
            return None
        counted = {"private": proc_memory.private(pid), "faulted": proc_memory.faulted(pid)}
        return {"pid": pid, "loader": loader, **found, **{name: count for name, count in counted.items() if count is not None}}

    def flush(self) -> None:
        """Appends what waits to the file, once it has a name."""
        if self._files.number is None:
            return
        with self._lock:
            loaders = list(enumerate(self._loaders.lines))[self._written_loaders :]
            rows = [{"loader": index, **_line(line)} for index, line in loaders]
            rows += [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._written_loaders += len(loaders)
            self._files.append("host.jsonl", rows)

    def write(self, host_segments: list[dict[str, Any]]) -> None:
        """Everything that is known now, with a last sample."""
        if IS_LINUX:
            self.sample()
        pinned = self._pinned.as_json(host_segments) if self._kind == "cuda" else None
        if pinned is not None:
            self._waiting.append({"pinned": pinned})
        self.flush()


def _line(line: tuple[str, int, str] | None) -> dict[str, Any]:
    return {} if line is None else dict(zip(("file", "line", "function"), line))
