"""PyTorch's own history of CUDA memory."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..interpreter.dynamo import never_traced
from ..interpreter.errors import keep
from ..interpreter.patching import LikeBuiltin
from . import symbols
from .history import LiveStack
from .messages import say, words

_COUNTERS = {
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "requested": "requested_bytes",
    "active": "active_bytes",
    "inactive_split": "inactive_split_bytes",
}

_DEVICES_CHECK_INTERVAL = 64
"""Calls after which to check for devices that have come into use since."""


_WITH_STACKS = "alloc"
"""Which events to record with their stacks. Not frees: reading a stack there loses an exception that is on its way
(checkpointing stops its recomputation with one, and PyTorch then fails with a SystemError)."""


_SETTINGS_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set has the allocator's settings at the start."""
_SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
"""Functions that change them. `torch.cuda.memory._set_allocator_settings` calls one of them, depending on the release."""
_MAX_SETTINGS_CHANGES = 10_000
"""Bound on those that are kept."""


class _Functions(NamedTuple):
    """PyTorch's own."""

    record: Callable[..., Any]
    empty_cache: Callable[..., Any]
    set_metadata: Callable[..., Any] | None
    setters: dict[str, Callable[..., Any]]


class CudaHistory:
    kind = "cuda"

    def __init__(self, max_events: int, *, ends_in_any_thread: bool = False) -> None:
        self.max_events = max_events
        self.is_on = False
        # Absent before torch 2.10: then events do not say where the program was.
        self.mark: Callable[[str], None] = getattr(torch._C, "_cuda_setMemoryMetadata", _not_there)
        self.marked: Callable[[], str] = getattr(torch._C, "_cuda_getMemoryMetadata", str)
        self.has_own_frames = False
        self.can_read_stacks_at_frees = True
        self._pytorchs: _Functions | None = None
        self._record_memory_history: Callable[..., Any] = _not_there
        self._empty_cache: Callable[..., Any] = _not_there
        self._set_memory_metadata: Callable[..., Any] = _not_there
        self._setters: dict[str, Callable[..., Any]] = {}
        """Ours, in the place of PyTorch's."""
        set_variables = [os.environ[name] for name in _SETTINGS_VARIABLES if name in os.environ]
        self._initial_settings = set_variables[0] if set_variables else ""
        self._settings_changes: list[tuple[int, dict[int, int], str]] = []
        """When the program has changed the allocator's settings, after how many allocations, and how."""
        self._has_stacks = True
        known = inspect.signature(torch.cuda.memory._record_memory_history).parameters
        # Pinned memory has a history since torch 2.14. Annotations of one thread could be ended only by that thread.
        wanted = {"record_pinned_host_memory": True, "global_record_annotations": ends_in_any_thread}
        self._options = {name: True for name, is_wanted in wanted.items() if is_wanted and name in known}
        self._asked: dict[str, Any] | None = None
        """The program's own recording, as it has asked for it."""
        self._was_on = False
        """Whether the program had a history of its own when ours began. It stays as it is: its settings are not known."""
        self._devices: list[int] = []
        self._calls = 0
        # Before torch 2.10 there is no snapshot without a copy of the whole history.
        self.has_live_stacks = "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters

    def start(self, begun: Callable[[], None], marked_by_program: Callable[[], None]) -> None:
        """Begins when the process initialises CUDA; at once if it has."""
        self._share(marked_by_program)
        torch.cuda._lazy_call(lambda: self._begin(begun))

    def _begin(self, begun: Callable[[], None]) -> None:
        if self._pytorchs is None:
            return  # stopped before the program came to CUDA
        try:
            self._was_on = torch.cuda.is_initialized() and _has_history()
            self._record(_WITH_STACKS)
            self.is_on = True
            begun()
        except Exception as error:
            keep(error)
            say(f"nothing is recorded: {words(error)}")

    def look(self) -> None:
        self.is_on = torch.cuda.is_initialized()

    def stop(self) -> None:
        if self._pytorchs is None:
            return
        record = self._pytorchs.record
        if self.is_on:
            self.mark("")
            # A history that the program has asked for goes on as it has asked.
            if self._asked is not None:
                record(**self._asked)
            elif not self._was_on:
                record(enabled=None)
            self.is_on = False
        self.abandon()

    def fresh(self) -> CudaHistory:
        return CudaHistory(self.max_events)

    def abandon(self) -> None:
        """Leaves PyTorch's functions as they were, without a call into CUDA: in a process that was forked."""
        if self.is_on:
            _forget_annotations()
        self.is_on = False
        functions, self._pytorchs = self._pytorchs, None
        if functions is None:
            return
        memory: Any = torch.cuda.memory
        if memory._record_memory_history is self._record_memory_history:
            memory._record_memory_history = functions.record
        if getattr(torch._C, "_cuda_emptyCache", None) is self._empty_cache:
            torch._C._cuda_emptyCache = functions.empty_cache
        if functions.set_metadata is not None and memory._set_memory_metadata is self._set_memory_metadata:
            memory._set_memory_metadata = functions.set_metadata
        for name, setter in functions.setters.items():
            if getattr(torch._C, name) is self._setters[name]:
                setattr(torch._C, name, setter)

    def _share(self, marked_by_program: Callable[[], None]) -> None:
        """A program that records itself gets what it asks for, but must not end or shorten our history."""
        memory: Any = torch.cuda.memory
        has_metadata = self.mark is not _not_there
        pytorchs = self._pytorchs = _Functions(
            memory._record_memory_history,
            getattr(torch._C, "_cuda_emptyCache", _not_there),
            memory._set_memory_metadata if has_metadata else None,
            {name: getattr(torch._C, name) for name in _SETTERS if hasattr(torch._C, name)},
        )
        history, pid, getpid = self, os.getpid(), os.getpid

        @functools.wraps(pytorchs.record)
        def record(*args: Any, **kwargs: Any) -> Any:
            # Whoever has taken this function before the end of the recording still has it afterwards.
            if history._pytorchs is None or getpid() != pid:
                return pytorchs.record(*args, **kwargs)
            return history._asked_by_program(pytorchs.record, args, kwargs)

        memory._record_memory_history = self._record_memory_history = record

        @never_traced
        def empty_cache(*args: Any, **kwargs: Any) -> Any:
            if history._pytorchs is None or getpid() != pid:
                return pytorchs.empty_cache(*args, **kwargs)
            with history._frees_with_stacks():
                return pytorchs.empty_cache(*args, **kwargs)

        if pytorchs.empty_cache is not _not_there:
            torch._C._cuda_emptyCache = self._empty_cache = LikeBuiltin(empty_cache, pytorchs.empty_cache)
        for name, setter in pytorchs.setters.items():
            self._setters[name] = LikeBuiltin(self._noting(setter, pid), setter)
            setattr(torch._C, name, self._setters[name])
        pytorchs_metadata = pytorchs.set_metadata
        if pytorchs_metadata is None:
            return

        @functools.wraps(memory._set_memory_metadata)
        def set_metadata(*args: Any, **kwargs: Any) -> Any:
            # A program that marks its events itself has the better use for the field.
            if history._pytorchs is not None and getpid() == pid:
                marked_by_program()
            return pytorchs_metadata(*args, **kwargs)

        memory._set_memory_metadata = self._set_memory_metadata = set_metadata

    def _noting(self, setter: Callable[..., Any], pid: int) -> Callable[..., Any]:
        """A function that changes the allocator's settings, and notes that it does: a snapshot has only the last ones."""
        history, getpid = self, os.getpid

        @never_traced
        def set_settings(*args: Any, **kwargs: Any) -> Any:
            if history._pytorchs is not None and getpid() == pid:
                history._note_settings(*args, **kwargs)
            return setter(*args, **kwargs)

        return set_settings

    def _note_settings(self, *args: Any, **kwargs: Any) -> None:
        try:
            conf = str([*args, *kwargs.values()][0])
            self._devices = []  # a device that has just come into use counts as well
            if len(self._settings_changes) <= _MAX_SETTINGS_CHANGES:
                self._settings_changes.append((time.time_ns() // 1000, self.allocations(), conf))
        except Exception as error:
            keep(error)

    def settings(self) -> dict[str, Any] | None:
        if not 0 < len(self._settings_changes) <= _MAX_SETTINGS_CHANGES:
            return None
        return {"initial": self._initial_settings, "changes": self._settings_changes}

    def _asked_by_program(self, record: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Recording is one of the ways to initialise CUDA; then ours begins as well.
        torch.cuda.init()
        if not self.is_on:
            return record(*args, **kwargs)
        enabled = args[0] if args else kwargs.get("enabled", "all")
        if self._was_on:  # it replaces the one before it
            self._was_on = False
            self._record(_WITH_STACKS)
        if not enabled or enabled is True:  # `True` is an older form, whose history ours contains
            self._asked = None
            return None
        bound = inspect.signature(record).bind(*args, **kwargs)
        bound.apply_defaults()
        asked = self._asked = dict(bound.arguments)
        more = {"enabled": "all", "max_entries": max(self.max_events, asked["max_entries"]), "clear_history": False}
        more |= self._options
        if asked["context"] is None:
            more |= {"context": _WITH_STACKS, "stacks": "python"}
        elif asked["context"] == "all" and not self.can_read_stacks_at_frees:
            more["context"] = _WITH_STACKS
        return record(**{name: more.get(name, value) for name, value in asked.items()})

    def snapshot(self) -> dict[str, Any]:
        with symbols.without_the_compiler():
            snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        return snapshot

    @property
    def _is_as_we_ask(self) -> bool:
        """Whether the history is on, and the program has none of its own whose settings count."""
        return self.is_on and self._asked is None and not self._was_on

    def record_stacks(self, *, wanted: bool) -> bool:
        if self._pytorchs is not None and self._is_as_we_ask:
            self._has_stacks = wanted
            self._record(_WITH_STACKS if wanted else None)
            return wanted
        return True

    def _record(self, context: str | None) -> None:
        if self._pytorchs is not None and not self._was_on:
            options = {"context": context, "stacks": "python", "max_entries": self.max_events}
            self._pytorchs.record(enabled="all", **options, **self._options)

    @contextmanager
    def _frees_with_stacks(self) -> Iterator[None]:
        """Records which line returns memory to the device: here no exception is on its way."""
        changes = self._is_as_we_ask
        if changes:
            self.has_own_frames = True
            self._try_to_record("all")
        try:
            yield
        finally:
            if changes:
                self._try_to_record(_WITH_STACKS if self._has_stacks else None)

    def _try_to_record(self, context: str | None) -> None:
        try:
            self._record(context)
        except Exception as error:
            keep(error)

    def live_snapshot(self) -> dict[str, Any]:
        """Without the events: a fraction of the time."""
        with symbols.without_the_compiler():
            segments = torch.cuda.memory_snapshot(include_traces=False)
        return {"segments": segments, "device_traces": [[] for _ in range(torch.cuda.device_count())]}

    def allocations(self) -> dict[int, int]:
        stats = {device: torch._C._cuda_memoryStats(device) for device in self.devices()}
        return {device: _count(stat, "allocation", "allocated") for device, stat in stats.items()}

    def counters(self) -> list[dict[str, int]]:
        rows = []
        for device in self.devices():
            stats = torch._C._cuda_memoryStats(device)
            row = {"device": device, "allocations": _count(stats, "allocation", "allocated")}
            row.update({name: _count(stats, key, "current") for name, key in _COUNTERS.items()})
            row["peak"] = _count(stats, "allocated_bytes", "peak")
            row["all_requested"] = _count(stats, "requested_bytes", "allocated")
            row["retries"] = int(stats.get("num_alloc_retries", 0))
            row["ooms"] = int(stats.get("num_ooms", 0))
            row["device_allocs"] = int(stats.get("num_device_alloc", 0))
            rows.append(row)
        return rows

    def live_stacks(self) -> list[LiveStack] | None:
        if not self.is_on or not self.has_live_stacks:
            return None
        found: dict[tuple[int, ...], LiveStack] = {}
        for segment in self.live_snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] != "active_allocated":
                    continue
                # Equal frames are the same object within one answer.
                frames = block.get("frames", [])
                key = (segment["device"], *map(id, frames))
                stack = found.setdefault(key, LiveStack(segment["device"], frames))
                stack.bytes += block["size"]
                stack.count += 1
        return list(found.values())

    def devices(self) -> list[int]:
        """Those that PyTorch holds memory on: a machine may have eight, and each question costs microseconds."""
        if not self.is_on:
            return []
        if self._calls % _DEVICES_CHECK_INTERVAL == 0 or not self._devices:
            self._devices = [
                device for device in range(torch.cuda.device_count()) if _is_used(torch._C._cuda_memoryStats(device))
            ]
        self._calls += 1
        return self._devices


def _forget_annotations() -> None:
    """A history has PyTorch ask CUDA for the device in every `record_function`, also in a forked process, where that fails. A
    profiler that the program has on uses the same list."""
    autograd: Any = torch._C._autograd
    if not autograd._profiler_enabled():
        autograd._clear_callbacks()


def _has_history() -> bool:
    """Whether PyTorch records a history. Known since torch 2.1."""
    return bool(getattr(torch._C, "_cuda_isHistoryEnabled", bool)())


def _is_used(stats: dict[str, Any]) -> bool:
    """Whether the program has asked for memory, and perhaps got none."""
    return bool(_count(stats, "allocation", "allocated") or stats.get("num_ooms"))


def _not_there(*_: Any) -> None:
    """Where events cannot say where the program was."""


def _count(stats: dict[str, Any], key: str, field: str) -> int:
    """A counter of all pools together; the flat dictionary of `torch.cuda.memory_stats()` takes ten times as long."""
    value = stats.get(key, {}).get("all", {}).get(field, 0)
    return int(value)
