"""Loops over data loaders, cut short where their iterations repeat.

A prediction has to see every phase of a program (training, evaluation, the next epoch, what comes after), but of each loop
only the iterations that differ. So a loop over a `DataLoader` whose iterations ask for the same memory gets the last batch
next, which may be smaller, and ends. The program goes on as if its data were that short.

A loop whose memory grows runs on to its end, since that is where its peak is, and so does a loop that does not use the GPU.
"""

from __future__ import annotations

import functools
import itertools
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
from .repetition import MAX_PERIOD, Row, change, period

MIN_ITERATIONS = 20
"""Iterations of a loop before it may be cut short, if it trains: something may happen only every few steps."""
MIN_ITERATIONS_WITHOUT_STEPS = 8
MIN_ITERATIONS_AGAIN = 2
"""The same for a loop that was cut short before, in an earlier epoch."""
FIXED_ITERATIONS = 24
"""Iterations of a loop whose number of batches is known to others: a trainer, or the other processes of a job."""
MAX_ITERATIONS = 200
"""Iterations after which a loop is cut short although no two of them were equal."""
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
    """How many batches a run of the loop has without us."""
    iterations: int = 0
    """How many of them were run, in the longest run."""
    runs: int = 0
    skipped: int = 0
    """Batches that were left out, in all runs."""
    is_settled: bool = True
    """Whether the iterations repeated themselves where the loop was cut short."""
    growth: int = 0
    """Bytes that each iteration added when the loop was cut short."""


@dataclass
class LoopRun:
    """One pass through a loop."""

    loops: Loops
    batches: int | None
    began: float = field(default_factory=time.monotonic)
    loop: Loop | None = None
    has_steps: bool = False
    count: int = 0
    """Batches that the program got."""
    row: Row | None = None
    """Counters at the last batch."""
    changes: list[Row] = field(default_factory=list)
    """What each iteration has changed."""

    def got_batch(self) -> None:
        self.count += 1
        if self.loop is not None:
            self.loop.iterations = max(self.loop.iterations, self.count)

    def next(self, row: Row) -> None:
        """The program asks for the next batch."""
        if self.row is not None:
            self.changes.append(change(self.row, row))
        self.row = row

    def may_end(self) -> bool:
        """Whether the last batch may come next."""
        loop, count = self.loop, len(self.changes)
        if loop is None or not self.loops.cuts or not any(of["allocations"] for of in self.changes[-MAX_PERIOD:]):
            return False
        if self.loops.is_over():
            return True
        length = self.period()
        if length is None:
            return count >= MAX_ITERATIONS and not self._always_grows()
        if any(sum(of[key] for of in self.changes[-length:]) for key in ("allocated", "reserved")):
            return False
        return count >= self._needed(loop)

    def cut(self, left_out: int) -> None:
        """Some batches are left out."""
        if self.loop is None:
            return
        length = self.period()
        self.loop.skipped += left_out
        self.loop.is_settled &= length is not None
        if length is None and self._always_grows():
            length = MIN_ITERATIONS
        if length is not None:
            grown = sum(of["allocated"] for of in self.changes[-length:])
            self.loop.growth = max(self.loop.growth, grown // length)

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
    """`counters` gives the memory of all devices; `stop` ends the program; `report` gets errors of ours; `seconds` is the time
    that the run may take; `cuts` is whether loops are cut short."""

    def __init__(
        self,
        counters: Callable[[], Row],
        stop: Callable[[str], None],
        report: Callable[[str], None],
        seconds: float,
        *,
        cuts: bool,
    ) -> None:
        self._report = report
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
        self._is_in_step = False

    def install(self) -> None:
        loader: Any = dataloader.DataLoader
        iterator: Any = dataloader._BaseDataLoaderIter
        batches, length, following = loader._index_sampler.fget, loader.__len__, iterator.__next__
        loops = self

        def _index_sampler(self: Any) -> Any:
            return _Batches(batches(self), loops, is_fixed=loops.cuts and (self in loops._fixed or _is_distributed()))

        @functools.wraps(length)
        def __len__(self: Any) -> int:
            found: int = length(self)
            if not loops.cuts or not _is_asked_by_trainer():
                return found
            loops._fixed.add(self)
            return min(found, FIXED_ITERATIONS)

        @functools.wraps(following)
        def __next__(self: Any) -> Any:
            run = getattr(self._sampler_iter, "run", None)
            if run is None:
                return following(self)
            loops.guarded(lambda: loops.before_batch(self, run))
            try:
                batch = following(self)
            except StopIteration:
                loops.guarded(lambda: loops.ended(run))
                raise
            run.got_batch()
            return batch

        loader._index_sampler = property(_index_sampler)
        loader.__len__ = __len__
        iterator.__next__ = __next__

    def guarded(self, call: Callable[[], None]) -> None:
        """An error of ours must not reach the program; from then on its loops are left alone."""
        try:
            call()
        except Exception as error:
            keep(error)
            self.cuts = False
            self._report(f"loops are no longer cut short: {words(error)}")

    def is_over(self) -> bool:
        return time.monotonic() > self._ends_at

    def step_ended(self) -> bool:
        """Whether the step belongs to a loop over a data loader, which ends by itself. One that begins again and again may be
        inside of a loop that does not."""
        self._drop_abandoned()
        for _, run in self._active:
            run.has_steps = True
        is_in_loop, self._is_in_step = self._is_in_step, False
        return is_in_loop and all(run.loop is None or run.loop.runs <= MAX_RUNS for _, run in self._active)

    def before_batch(self, iterator: Any, run: LoopRun) -> None:
        self._is_in_step = True
        if run.loop is None:
            run.loop = self._find()
            run.loop.runs += 1
            run.loop.batches = run.batches
        run.next(self._counters())
        self._drop_abandoned()
        while any(active is run for _, active in self._active) and self._active[-1][1] is not run:
            self._active.pop()
        if not self._active or self._active[-1][1] is not run:
            self._active.append((weakref.ref(iterator), run))
        self._mark()
        if self.is_over() and time.monotonic() > self._ends_at + SHARE_OF_TIME * self.seconds:
            self._stop("time")

    def left(self) -> None:
        """The program is about to leave a loop around the active ones."""
        self._active = []

    def ended(self, run: LoopRun) -> None:
        self._active = [(iterator, active) for iterator, active in self._active if active is not run]
        self._drop_abandoned()
        self._mark()

    def _drop_abandoned(self) -> None:
        """A loop that the program has left by itself has no iterator any more."""
        self._active = [(iterator, run) for iterator, run in self._active if iterator() is not None]

    def _mark(self) -> None:
        loop = self._active[-1][1].loop if self._active else None
        at = None if loop is None else list(self._loops.values()).index(loop)
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
        return {"loops": [vars(loop) for loop in self._loops.values()], "marks": self.marks}


class _Batches:
    """A sampler that ends early."""

    def __init__(self, sampler: Any, loops: Loops, *, is_fixed: bool) -> None:
        self._sampler = sampler
        self._loops = loops
        self._is_fixed = is_fixed

    def __iter__(self) -> Iterator[Any]:
        return _ShortIterator(self._sampler, self._loops, is_fixed=self._is_fixed)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _ShortIterator:
    def __init__(self, sampler: Any, loops: Loops, *, is_fixed: bool) -> None:
        try:
            batches = len(sampler)
        except (TypeError, NotImplementedError):
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
        may_end = self._taken >= FIXED_ITERATIONS - 1 if self._is_fixed else self.run.may_end()
        if may_end and (batches is None or self._taken < batches - 1):
            self._is_last = True
            last = None if batches is None else self._last()
            self.run.cut(1 if batches is None else batches - self._taken - (last is not None))
            if last is None:
                raise StopIteration
            return last
        self._taken += 1
        return next(self._inner)

    def _last(self) -> Any:
        """The last batch, if the sampler comes to it soon."""
        ends_at, last = time.monotonic() + MAX_SECONDS_TO_LAST, None
        for batch in self._inner:
            last = batch
            if time.monotonic() > ends_at:
                return None
        return last


def _is_distributed() -> bool:
    """Whether other processes take the same steps: then all have to cut their loops short alike."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _is_asked_by_trainer() -> bool:
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
