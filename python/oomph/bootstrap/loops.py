"""Loops over data loaders, cut short where their iterations repeat.

A prediction has to see every phase of a program (training, evaluation, the next epoch, the code after training), but only the
iterations of each loop that differ. So a loop over a `DataLoader` whose iterations request the same memory gets its last batch
next, which may be smaller, and ends. The program goes on as if its data were that short.

A loop whose memory grows runs on to its end, since that is where its peak is, and so does a loop that does not use the GPU.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils.data import dataloader

from ..interpreter.errors import keep
from ..interpreter.frames import callers, is_users
from ..recording.messages import words
from .later_iterations import LaterIterations
from .repetition import MAX_PERIOD, Row, change, period

MIN_ITERATIONS = 20
"""Iterations of a loop before it may be cut short, if it takes optimizer steps: some work happens only every few steps."""
MIN_ITERATIONS_WITHOUT_STEPS = 8
MIN_ITERATIONS_AGAIN = 2
"""The same for a loop that was cut short before, in an earlier epoch."""
FIXED_ITERATIONS = 24
"""Iterations of a loop whose number of batches is known to others: a trainer, or the other processes of a job."""
MAX_ITERATIONS = 200
"""Iterations after which a loop is cut short even if they never repeat."""
MAX_RUNS = 12
"""Runs of a loop after which the loop around it may be left as well."""
SHARE_OF_TIME = 0.25
"""Share of the time limit after which a loop may be cut short as soon as three iterations were equal."""
MAX_SECONDS_TO_LAST = 2.0
"""Time to look for a sampler's last batch."""
TRAINERS = frozenset({"lightning", "lightning_fabric", "pytorch_lightning", "transformers", "trl"})
"""Packages that end an epoch by `len(loader)`, not by the end of the loader."""

Key = tuple[tuple[CodeType, int], ...]


@dataclass
class Loop:
    """One place in a program that iterates over a data loader, however often it is reached."""

    file: str
    line: int
    function: str
    library: str | None
    """The function of a library that iterates, if it is not the program itself."""
    batches: int | None = None
    """Batches in one full run of the loop, if the loader knows."""
    iterations: int = 0
    """Batches processed in the longest run."""
    runs: int = 0
    skipped: int = 0
    """Batches skipped, over all runs; 1 for a run of unknown length."""
    is_settled: bool = True
    """Whether the iterations repeated themselves where the loop was cut short."""
    growth: int = 0
    """Bytes that each iteration added when the loop was cut short."""
    skipped_growth: int = 0
    """Bytes that the skipped iterations of one run would have added."""


@dataclass
class LoopRun:
    """One pass through a loop."""

    loops: Loops
    batches: int | None
    began: float = field(default_factory=time.monotonic)
    loop: Loop | None = None
    has_steps: bool = False
    count: int = 0
    """Batches that the program got: when it asks for the next one, the number of iterations that have ended."""
    row: Row | None = None
    """Counters at the last batch."""
    changes: list[Row] = field(default_factory=list)
    """What each of the last iterations has changed."""
    left_out: int = 0
    """Batches that are skipped."""
    is_settled: bool = False
    """Whether the iterations repeated; those after that are later ones, taken out of order."""

    def got_batch(self) -> None:
        self.count += 1
        if self.loop is not None:
            self.loop.iterations = max(self.loop.iterations, self.count)

    def next(self, row: Row) -> None:
        """The program asks for the next batch."""
        if self.row is not None and not self.is_settled:
            self.changes.append(change(self.row, row))
            del self.changes[: -3 * MAX_PERIOD]
        self.row = row

    def uses_gpu(self) -> bool:
        return any(of["allocations"] for of in self.changes)

    def may_end(self) -> bool:
        """Whether the last batch may come next."""
        if self.loop is None or not self.loops.cuts or not self.uses_gpu():
            return False
        if self.loops.is_over():
            return True
        if self.is_settled:
            return not self.loops.runs_later_iterations(self)
        length = self.period()
        if length is None:
            return self.count >= MAX_ITERATIONS and not self._always_grows()
        if any(sum(of[key] for of in self.changes[-length:]) for key in ("allocated", "reserved")):
            return False
        if self.count < self._needed(self.loop):
            return False
        self.is_settled = self.loops.runs_later_iterations(self)
        return not self.is_settled

    def ended(self) -> None:
        """Notes what was skipped, and whether that matters."""
        left_out, self.left_out = self.left_out, 0
        if self.loop is None or left_out == 0:
            return
        if not self.is_settled:
            # The last batch may be smaller.
            self.changes = self.changes[:-1]
        length = self.period()
        self.loop.is_settled &= length is not None
        if length is None and self._always_grows():
            length = MIN_ITERATIONS
        if length is not None:
            growth = max(0, sum(of["allocated"] for of in self.changes[-length:]) // length)
            self.loop.growth = max(self.loop.growth, growth)
            self.loop.skipped_growth = max(self.loop.skipped_growth, growth * left_out)
        self.loop.skipped += left_out

    def _always_grows(self) -> bool:
        last = self.changes[-MIN_ITERATIONS:]
        return len(last) == MIN_ITERATIONS and all(of["allocated"] > 0 for of in last)

    def _needed(self, loop: Loop) -> int:
        if loop.runs > 1 and loop.skipped:
            return MIN_ITERATIONS_AGAIN
        if time.monotonic() - self.began > SHARE_OF_TIME * self.loops.seconds:
            return 1
        return MIN_ITERATIONS if self.has_steps else MIN_ITERATIONS_WITHOUT_STEPS

    def period(self) -> int | None:
        """Number of iterations after which they repeat, if the last three periods were equal."""
        again = self.loop is not None and self.loop.runs > 1 and self.loop.skipped > 0
        return period(self.changes, 2 if again else 3)


class Loops:
    """`counters` gives the memory of all devices; `stop` ends the program; `report` receives our own errors; `seconds` is the
    time limit; `cuts` is whether loops are cut short, and `later` runs some of their later iterations first."""

    def __init__(
        self,
        counters: Callable[[], Row],
        stop: Callable[[str], None],
        report: Callable[[str], None],
        seconds: float,
        *,
        cuts: bool,
        later: LaterIterations | None,
    ) -> None:
        self._report = report
        self._later = later
        self.seconds = seconds
        self.cuts = cuts
        self._fixed: weakref.WeakSet[Any] = weakref.WeakSet()
        """Loaders of which a trainer knows the length."""
        self.marks: list[tuple[int, int | None]] = []
        """When the program was in which loop: time in microseconds, index of the loop."""
        self._counters = counters
        self._stop = stop
        self._ends_at = time.monotonic() + seconds
        self._loops: dict[Key, Loop] = {}
        self._active: list[tuple[weakref.ref[Any], LoopRun]] = []
        self._steps_since_batch = MAX_PERIOD + 1
        self._has_shortened = False
        """Whether a trainer was given a length that is not the loader's."""
        self._pid = os.getpid()

    def install(self) -> None:
        loader: Any = dataloader.DataLoader
        iterator: Any = dataloader._BaseDataLoaderIter
        batches, length, next_batch = loader._index_sampler.fget, loader.__len__, iterator.__next__
        loops, getpid = self, os.getpid

        def _index_sampler(self: Any) -> Any:
            sampler = batches(self)
            # A loader inside of a worker is none of the program's loops.
            return _Batches(sampler, loops, self) if getpid() == loops._pid else sampler

        @functools.wraps(length)
        def __len__(self: Any) -> int:
            found: int = length(self)
            if not loops.cuts or getpid() != loops._pid or not _is_called_by_trainer():
                return found
            loops._fixed.add(self)
            loops._has_shortened |= found > FIXED_ITERATIONS
            return min(found, FIXED_ITERATIONS)

        @functools.wraps(next_batch)
        def __next__(self: Any) -> Any:
            indexes = getattr(self, "_sampler_iter", None)
            if not isinstance(indexes, _ShortIterator):
                return next_batch(self)
            run = indexes.run
            loops.guarded(lambda: loops.before_batch(self, run))
            try:
                batch = next_batch(self)
            except StopIteration:
                loops.guarded(lambda: loops.ended(run))
                raise
            run.got_batch()
            return batch

        loader._index_sampler = property(_index_sampler)
        loader.__len__ = __len__
        iterator.__next__ = __next__

    def guarded(self, call: Callable[[], None]) -> None:
        """Runs `call`; our own errors never reach the program, and loops are no longer cut short after one."""
        try:
            call()
        except Exception as error:
            keep(error)
            self.cuts = False
            self._report(f"loops are no longer cut short: {words(error)}")

    def is_over(self) -> bool:
        return time.monotonic() > self._ends_at

    def has_time(self) -> bool:
        """Whether half of the time is left."""
        return time.monotonic() < self._ends_at - self.seconds / 2

    def step_ended(self) -> bool:
        """Whether the step belongs to a loop over a data loader, which ends by itself. A loop that restarts many times may
        itself be inside an endless loop."""
        self._drop_abandoned()
        for _, run in self._active:
            run.has_steps = True
        self._steps_since_batch += 1
        # There may be several steps for one batch.
        is_in_loop = self._steps_since_batch <= MAX_PERIOD
        return is_in_loop and all(run.loop is None or run.loop.runs <= MAX_RUNS for _, run in self._active)

    def runs_later_iterations(self, run: LoopRun) -> bool:
        """Whether a loop runs later iterations before it is cut short. Those of trainers have their own number of batches."""
        is_first = run.loop is not None and run.loop.runs == 1 and run.loop.library is None
        remaining = None if run.batches is None else run.batches - run.count
        return is_first and self._later is not None and self._later.run_in_loader_loop(callers(), run.batches, remaining)

    def before_batch(self, iterator: Any, run: LoopRun) -> None:
        self._steps_since_batch = 0
        if run.loop is None:
            run.loop = self._find()
            run.loop.runs += 1
            run.loop.batches = run.batches
        row = self._counters()
        run.next(row)
        self._drop_abandoned()
        # A persistent iterator begins its next run; loops inside of this one are over.
        self._active = [(of, active) for of, active in self._active if of() is not iterator or active is run]
        while any(active is run for _, active in self._active) and self._active[-1][1] is not run:
            self._active.pop()[1].ended()
        if not self._active or self._active[-1][1] is not run:
            self._active.append((weakref.ref(iterator), run))
        self._mark()
        if row["allocations"] and time.monotonic() > self._ends_at + SHARE_OF_TIME * self.seconds:
            self._stop("time")

    def forget_active(self) -> None:
        """The program is about to leave a loop around the active ones."""
        for _, run in self._active:
            run.ended()
        self._active = []

    def ended(self, run: LoopRun) -> None:
        run.ended()
        self._active = [(iterator, active) for iterator, active in self._active if active is not run]
        self._drop_abandoned()
        self._mark()

    def _drop_abandoned(self) -> None:
        """A loop that the program has left by itself no longer has an iterator."""
        for iterator, run in self._active:
            if iterator() is None:
                run.ended()
        self._active = [(iterator, run) for iterator, run in self._active if iterator() is not None]

    def _mark(self) -> None:
        loop = self._active[-1][1].loop if self._active else None
        at = next((index for index, known in enumerate(self._loops.values()) if known is loop), None)
        if not self.marks or self.marks[-1][1] != at:
            self.marks.append((time.time_ns() // 1000, at))

    def _find(self) -> Loop:
        frames = list(callers(2))
        key = tuple((frame.f_code, frame.f_lineno) for frame in frames)
        if key not in self._loops:
            users = next(filter(is_users, frames), frames[0])
            self._loops[key] = Loop(users.f_code.co_filename, users.f_lineno, users.f_code.co_name, _library(frames))
        return self._loops[key]

    def as_json(self) -> dict[str, Any]:
        for _, run in self._active:
            run.ended()
        loops = [vars(loop) for loop in self._loops.values()]
        return {"loops": loops, "marks": self.marks, "shortened": self._has_shortened}


class _Batches:
    """A sampler that ends early."""

    def __init__(self, sampler: Any, loops: Loops, loader: Any) -> None:
        self._sampler = sampler
        self._loops = loops
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        is_fixed = self._loops.cuts and (self._loader in self._loops._fixed or _is_distributed())
        return _ShortIterator(self._sampler, self._loops, is_fixed=is_fixed)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name in ("_sampler", "_loops", "_loader"):
            raise AttributeError(name)  # of a copy that is not made yet
        return getattr(self._sampler, name)


class _ShortIterator:
    def __init__(self, sampler: Any, loops: Loops, *, is_fixed: bool) -> None:
        try:
            batches = len(sampler)
        except Exception:
            batches = None
        self.run = LoopRun(loops, batches)
        self._inner = iter(sampler)
        self._is_fixed = is_fixed
        self._taken = 0
        self._is_last = False

    def __iter__(self) -> _ShortIterator:
        return self

    def __next__(self) -> Any:
        if self._is_last:
            raise StopIteration
        batches = self.run.batches
        if self._may_end() and (batches is None or self._taken < batches - 1):
            self._is_last = True
            if batches is None:
                self.run.left_out = 1
                raise StopIteration
            self.run.left_out = batches - self._taken - 1
            return self._last()
        self._taken += 1
        return next(self._inner)

    def _may_end(self) -> bool:
        if not self._is_fixed:
            return self.run.may_end()
        # Before the first iteration has ended (workers prefetch), nobody knows whether the loop uses the GPU.
        is_needed = self.run.count > 0 and not self.run.uses_gpu()
        return self._taken >= FIXED_ITERATIONS - (self.run.batches is not None) and not is_needed

    def _last(self) -> Any:
        """The last batch, or a late one if the sampler takes long to reach it."""
        ends_at, last = time.monotonic() + MAX_SECONDS_TO_LAST, next(self._inner)
        for batch in self._inner:
            last = batch
            if time.monotonic() > ends_at:
                break
        return last


def _is_distributed() -> bool:
    """Whether other processes take the same steps: then all ranks must cut their loops at the same iteration."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _is_called_by_trainer() -> bool:
    """Whether the length is for a trainer that ends its loop by it. Evaluations of transformers only print it."""
    is_trainer = False
    for frame in callers(2):
        package, function = _package(frame), frame.f_code.co_name
        if package in ("torch", "accelerate"):
            continue
        if package not in TRAINERS:
            break
        is_trainer = True
        if package == "transformers" and function.startswith(("eval", "predict")):
            return False
        if "train" in function:
            break
    return is_trainer


def _library(frames: list[FrameType]) -> str | None:
    """What iterates for the program, as `package: function`."""
    for frame in itertools.takewhile(lambda frame: not is_users(frame), frames):
        module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        if _package(frame) in TRAINERS and not function.startswith(("__", "get_", "prefetch")):
            # Every loop of Lightning has these two; the module tells them apart.
            name = module.rpartition(".")[2] if function in ("advance", "run") else function
            return f"{_package(frame)}: {name}"
    return None


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
