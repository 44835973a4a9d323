"""The history of tensor memory on the CPU, where PyTorch keeps none.

A dispatch mode meets every tensor that an operator takes or gives. A storage that is new is an allocation. Python's
weak references tell when it dies: PyTorch keeps a storage's Python object as long as the storage itself, also when only
autograd's graph holds it. What kernels allocate and free within one call is not seen, nor is what other threads do
until a tensor of theirs is used here. Code under `torch.compile` runs uncompiled meanwhile: PyTorch's own choice for
dispatch modes, and the one that shows the memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..interpreter.errors import keep
from ..interpreter.objects import instances
from ..interpreter.patching import LikeBuiltin
from ..interpreter.system import after_fork
from .cpu_mode import CpuMode
from .cpu_storages import Storages
from .history import LiveStack
from .messages import say, words


def _nothing() -> None:
    """Nobody waits for it."""


class CpuHistory:
    kind = "cpu"
    has_own_frames = False
    can_read_stacks_at_frees = False
    has_live_stacks = True

    def __init__(self, max_events: int, *, may_leave_for_cuda: Callable[[], bool] | None = None) -> None:
        self.max_events = max_events
        self._may_leave_for_cuda = may_leave_for_cuda
        """If given, the history ends when the program begins to use CUDA, because PyTorch's operators allocate differently
        under a mode. This says whether the mode may be left there; it cannot if CUDA begins in another thread."""
        self._at_cuda: tuple[Callable[[], None], list[str]] = (self._end, [])
        """As PyTorch keeps the calls that wait for CUDA: with the stack that an error would show."""
        self._storages = Storages(max_events)
        # Reentrant: a signal may ask for a snapshot in the middle of our own work.
        self._lock = threading.RLock()
        self._mode: CpuMode | None = None

    def start(self, begun: Callable[[], None] = _nothing, marked_by_program: Callable[[], None] = _nothing) -> None:
        """A new history, of this thread and the autograd work that it starts. Programs do not mark it themselves."""
        if self._mode is not None:
            return
        self._storages = Storages(self.max_events)
        self._mode = CpuMode(self._see)
        _install_hook()
        _running.append(self)
        self._find()
        self._mode.enter()
        if self._may_leave_for_cuda is not None:
            # Not by `_lazy_call`, which takes a lock: the program may hold it here.
            torch.cuda._queued_calls.append(self._at_cuda)
        begun()

    def look(self) -> None:
        self._find()

    def stop(self) -> None:
        """Ends the history; what is alive now stays in the snapshot."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.leave()
        _running.remove(self)
        _remove_hook()
        with self._lock:
            self._storages.forget()
        with contextlib.suppress(ValueError):
            torch.cuda._queued_calls.remove(self._at_cuda)

    def _end(self) -> None:
        """PyTorch calls this in the middle of the program. What was recorded stays."""
        try:
            mode, may_leave = self._mode, self._may_leave_for_cuda
            if mode is not None and may_leave is not None:
                mode.see = None
                if may_leave():
                    mode.leave()
        except Exception as error:
            self._fail(error)

    @property
    def modes(self) -> int:
        """How many dispatch modes of ours are on the stack of the thread that it was started in."""
        mode = self._mode
        return int(mode is not None and mode.is_entered)

    def mark(self, text: str) -> None:
        """What `user_metadata` says in the events that this thread causes from now on."""
        self._storages.mark = text

    def marked(self) -> str:
        return self._storages.mark

    def fresh(self) -> CpuHistory:
        return CpuHistory(self.max_events, may_leave_for_cuda=self._may_leave_for_cuda)

    def abandon(self) -> None:
        """In a forked process (a data loader's worker), which is not the one that we record."""
        # The thread that held the lock is not in this process.
        self._lock = threading.RLock()
        self.stop()

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            self._storages.bury()
            return self._storages.blocks.snapshot()

    def record_stacks(self, *, wanted: bool) -> bool:
        """They are always recorded: speed matters less on the CPU."""
        return True

    def live_snapshot(self) -> dict[str, Any]:
        return self.snapshot()

    def allocations(self) -> dict[int, int]:
        return {0: self._storages.blocks.count}

    def counters(self) -> list[dict[str, int]]:
        with self._lock:
            self._storages.bury()
            blocks = self._storages.blocks
            row = {"device": 0, "allocations": blocks.count, "allocated": blocks.allocated, "reserved": blocks.allocated}
            row |= {"peak": blocks.peak, "requested": blocks.allocated, "active": blocks.allocated}
            row |= {"inactive_split": 0, "retries": 0, "ooms": 0}
            return [row | {"device_allocs": blocks.count, "all_requested": blocks.requested}]

    def settings(self) -> dict[str, Any] | None:
        return None

    def live_stacks(self) -> list[LiveStack]:
        with self._lock:
            self._storages.bury()
            return self._storages.blocks.live_stacks()

    def peak(self) -> int:
        """The most bytes that were alive at once since the start."""
        return self._storages.blocks.peak

    def forget(self) -> None:
        """Leaves out the events so far."""
        with self._lock:
            self._storages.blocks.forget()

    def reset_peak(self) -> None:
        with self._lock:
            self._storages.bury()
            self._storages.blocks.reset_peak()

    def _find(self) -> None:
        """The tensors that are there already. Those that only C++ holds are met when they are used."""
        try:
            self._storages.finding = True
            self._storages.meet(instances(torch.Tensor))
            self._storages.finding = False
        except Exception as error:
            self._fail(error)

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        try:
            with self._lock:
                self._storages.bury()
                self._storages.meet(args)
                if kwargs:
                    self._storages.meet(kwargs.values())
                self._storages.meet((out,))
        except Exception as error:
            self._fail(error)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        try:
            with self._lock:
                self._storages.bury()
                self._storages.resized(storage)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The program goes on without us."""
        keep(error)
        say(f"stopped recording CPU memory: {words(error)}")
        # Not `stop`: the mode cannot be left from inside of it.
        if self._mode is not None:
            self._mode.see = None


_running: list[CpuHistory] = []


def _abandon() -> None:
    for history in list(_running):
        history.abandon()


after_fork(_abandon)


def _install_hook() -> None:
    # It is not an operator, so no dispatch mode sees it; FSDP frees its parameters with it.
    storage_class: Any = torch.UntypedStorage
    resize = storage_class.resize_
    if type(resize) is LikeBuiltin:
        return

    def resize_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        result = resize(self, *args, **kwargs)
        for history in list(_running):
            history._resized(self)
        return result

    storage_class.resize_ = LikeBuiltin(resize_, resize)


def _remove_hook() -> None:
    """Unless another history is on, or the program has put a function of its own there."""
    storage_class: Any = torch.UntypedStorage
    if not _running and type(vars(storage_class).get("resize_")) is LikeBuiltin:
        del storage_class.resize_
