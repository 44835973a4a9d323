"""Follows tensor storages on the CPU from the first sight of them to their death."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from ..heap import sparse
from ..interpreter.errors import keep
from .cpu_blocks import Block, Blocks


class Watched(weakref.ref[torch.UntypedStorage]):
    """A storage that has been met."""

    __slots__ = ("address", "block", "elsewhere", "key", "size")

    key: int
    elsewhere: bool
    """Not in the CPU's memory: a GPU's, or emulated as fake tensors do."""
    address: int
    size: int
    block: Block | None
    """None while it has no memory."""


class Storages:
    """Not safe to call from several threads at once; only the deaths may come at any time."""

    def __init__(self, max_events: int) -> None:
        self.blocks = Blocks(max_events)
        self.finding = False
        """Whether what is met was there before the history."""
        self._local = threading.local()
        self._watched: dict[int, Watched] = {}
        self._dead: deque[tuple[Watched, int, str]] = deque()

    @property
    def mark(self) -> str:
        return getattr(self._local, "mark", "")

    @mark.setter
    def mark(self, text: str) -> None:
        self._local.mark = text

    def meet(self, values: Iterable[Any]) -> None:
        """Looks at every tensor among an operator's arguments or results."""
        known = self._watched
        for value in values:
            if isinstance(value, torch.Tensor):
                try:
                    storage = value.untyped_storage()
                except Exception as error:
                    keep(error)
                    # Others without a storage (lazy ones, for example) are opaque.
                    self.meet([] if torch.nn.parameter.is_lazy(value) else sparse.parts(value))
                    continue
                watched = known.get(id(storage))
                # Most are known and as they were: without a further call, for the time that every operator waits.
                if (
                    watched is None
                    or watched() is not storage
                    or storage.nbytes() != watched.size
                    or (watched.block is not None and storage.data_ptr() != watched.address)
                ):
                    self._meet_storage(storage)
            elif isinstance(value, (list, tuple)):
                self.meet(value)
            elif isinstance(value, torch.UntypedStorage):
                self._meet_storage(value)
            elif isinstance(value, dict):
                self.meet(value.values())

    def resized(self, storage: torch.UntypedStorage) -> None:
        watched = self._watched.get(id(storage))
        if watched is not None and watched() is storage:
            self._look_again(watched, storage)

    def bury(self) -> None:
        """Ends the blocks of the storages that have died."""
        while self._dead:
            watched, time_us, mark = self._dead.popleft()
            if self._watched.get(watched.key) is watched:
                del self._watched[watched.key]
            if watched.block is not None:
                self.blocks.release(watched.block, time_us, mark)

    def forget(self) -> None:
        """Stops reporting freed storages; the blocks stay as they are."""
        self.bury()
        self._watched.clear()

    def _meet_storage(self, storage: torch.UntypedStorage) -> None:
        watched = self._watched.get(id(storage))
        if watched is None or watched() is not storage:
            # One that has just died may have had the same id.
            self.bury()
            watched = self._watch(storage)
        self._look_again(watched, storage)

    def _watch(self, storage: torch.UntypedStorage) -> Watched:
        watched = Watched(storage, self._died)
        watched.key = id(storage)
        watched.elsewhere = storage.device.type != "cpu"
        watched.address = watched.size = 0
        watched.block = None
        self._watched[watched.key] = watched
        return watched

    def _look_again(self, watched: Watched, storage: torch.UntypedStorage) -> None:
        """Storages change their size, and where they are: `resize_`, `share_memory_`."""
        if watched.elsewhere:
            return None
        try:
            size = storage.nbytes()
            address = storage.data_ptr() if size else 0
        except Exception as error:
            return keep(error)  # of a tensor that has no memory of its own: `torch.func` and others make some
        if size == watched.size and address == watched.address:
            return None
        mark, time_us = self.mark, time.time_ns() // 1000
        if watched.block is not None:
            self.blocks.release(watched.block, time_us, mark)
        watched.size, watched.address, watched.block = size, address, None
        if not size or not address:
            return None
        if self.finding:
            watched.block = self.blocks.found(address, size)
        else:
            watched.block = self.blocks.alloc(address, size, storage.resizable(), time_us, mark)

    def _died(self, watched: Watched, now: Any = time.time_ns) -> None:
        # Only this: it runs at any moment of any thread, even inside of the methods above.
        self._dead.append((watched, now() // 1000, self.mark))
