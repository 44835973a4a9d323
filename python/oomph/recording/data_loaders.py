"""Which `DataLoader` each worker process and each pinning thread belongs to, and the line that made it.

A loader looks up a method of its own at the end of its construction, and an iterator calls a built-in function when its workers
run. We note both: nothing of ours is in a traceback, and a batch costs the same as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from ..interpreter.errors import keep
from ..interpreter.frames import callers, is_users
from ..interpreter.patching import LikeBuiltin, Noted, replace

Line = tuple[str, int, str]
"""File, line and function of the program."""

_MAX_LOADERS = 256
_MAX_WORKERS = 256


class DataLoaders:
    def __init__(self) -> None:
        self.lines: list[Line | None] = []
        """Where each loader was made; loaders of one line are one. The program has no part in the stack of those without."""
        self.workers: dict[int, int] = {}
        """Index of the loader that each process works for."""
        self._pinning: dict[int, int] = {}
        """Index of the loader that each thread pins for."""
        self._indexes: dict[Line | None, int] = {}
        self._loaders: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._undo: Callable[[], None] | None = None

    def install(self) -> None:
        loader: Any = DataLoader
        check = loader.check_worker_number_rationality
        noted = loader.check_worker_number_rationality = Noted(self._made, check)
        set_worker_pids: Any = vars(signal_handling)["_set_worker_pids"]

        def observed(*args: Any) -> Any:
            try:
                self._started(next(callers()))
            except Exception as error:
                keep(error)
            return set_worker_pids(*args)

        ours = LikeBuiltin(observed, set_worker_pids)
        replace(signal_handling, "_set_worker_pids", ours)

        def restore() -> None:
            if vars(loader)["check_worker_number_rationality"] is noted:
                loader.check_worker_number_rationality = check
            if vars(signal_handling)["_set_worker_pids"] is ours:
                replace(signal_handling, "_set_worker_pids", set_worker_pids)

        self._undo = restore

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def pinned_for(self, thread: int) -> Line | None:
        """The line of the loader that a thread pins batches for."""
        index = self._pinning.get(thread)
        return None if index is None else self.lines[index]

    def _made(self, loader: DataLoader[Any]) -> None:
        # An iterator looks it up again.
        if loader not in self._loaders:
            self._loaders[loader] = self._index(user_line(callers()))

    def _started(self, frame: FrameType) -> None:
        iterator, loader = frame.f_locals.get("self"), frame.f_locals.get("loader")
        if iterator is None or not isinstance(loader, DataLoader):
            return
        index = self._loaders[loader]
        self.workers = _newest({**self.workers, **{worker.pid: index for worker in iterator._workers}})
        thread = getattr(iterator, "_pin_memory_thread", None)
        if thread is not None:
            self._pinning = _newest({**self._pinning, thread.ident: index})

    def _index(self, line: Line | None) -> int:
        if line not in self._indexes:
            if len(self.lines) == _MAX_LOADERS:
                return _MAX_LOADERS - 1
            self._indexes[line] = len(self.lines)
            self.lines.append(line)
        return self._indexes[line]


def _newest(numbers: dict[int, int]) -> dict[int, int]:
    return dict(list(numbers.items())[-_MAX_WORKERS:])


def user_line(frames: Iterator[FrameType]) -> Line | None:
    """The innermost line of the program itself."""
    for frame in frames:
        if is_users(frame):
            return (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    return None
