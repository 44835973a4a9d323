"""Records a process: its history, its steps, what its tensors are, and how it ended.

Nothing here may raise into the program, unless it has asked for that (`on_leak.py`). A part that fails says so once on standard
error and is left out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.util import Finalize, _afterfork_registry, register_after_fork  # type: ignore[attr-defined]
from typing import Any

import torch

from ..heap import walk as heap
from ..interpreter.errors import keep
from ..interpreter.pause import undisturbed, unobserved
from ..interpreter.system import after_fork
from .alarm import Leak, MemoryGrows, parse_request
from .compiled import Compiled
from .driver_trace import DriverTrace
from .facts import meta, pinned
from .files import Files, launched_as, owner
from .growth import Growth
from .history import EVENTS_PER_ALLOCATION, History
from .host_memory import HostMemory
from .job_place import JobPlace
from .labels import Labels
from .ledger import Ledger
from .live import Live
from .messages import out_of_memory_behind, say, words
from .module_tracker import ModuleTracker, tensors_in
from .names import Names
from .nvml import Nvml
from .on_leak import OnLeak, answer
from .pace import Pace
from .phases import Phase, Phases
from .pool_owners import pool_owners, private_pools
from .signals import Signals
from .stacks import leave_out_own_frames
from .steps import Steps
from .uncounted import UncountedSteps

_MAX_CALLS = 1024
_MAX_ARGUMENTS = 1024
"""Bounds on the calls of modules that are remembered, and on the arguments of one that are looked at."""
_SECONDS_PER_EVENT = 3e-6
"""Time to write the history (467,100 events in 1.4 s on the host of an H200)."""
_NVML_INTERVAL_SECONDS = 1.0
"""Time between queries of the driver."""
_MAX_SECONDS_IN_DUMPS = 2.0
_MAX_SHARE_IN_DUMPS = 0.05
"""Bound on the time of dumps at failed allocations: a program may catch them and retry forever."""

_MAX_SECONDS_OF_WORKERS = 4.0
"""How long the last dump of a process of multiprocessing may take."""
_REQUEST_TIMEOUT_SECONDS = 5.0
"""How long a dump that another thread asks for waits for the program to come to a point where it can be made."""

Alarm = Callable[[list[dict[str, int]], Files], list[Leak]]
"""Gets the counters of a step, and the files that it is written to; gives those whose memory grows, each once."""

StepListener = Callable[[dict[str, Any], dict[str, Any]], None]
"""Gets the row of a step, as in `rankN.steps.jsonl`, and the last sample of the ledger."""

active: Recorder | None = None
"""The recorder of this process."""
_installed: list[Recorder] = []


@dataclass(frozen=True)
class Options:
    folder: str
    is_fresh: bool = False
    """Whether the folder holds nothing but this run."""
    tracks_modules: bool = True
    """Whether to follow modules."""
    has_labels: bool = True
    """Whether to name tensors."""
    has_heap: bool = True
    """Whether to write who holds the tensors."""
    has_heap_without_need: bool = True
    """Whether to write that also if memory neither grows nor runs out."""
    has_own_steps: bool = False
    """Whether only the program's own word ends a step."""
    has_all_stacks: bool = False
    """Whether to record where allocations come from also in steps that repeat the ones before."""
    is_live: bool = True
    """Whether others may watch the run."""
    has_host_memory: bool = True
    """Whether to record the memory of the process and its workers on the host."""
    is_guest: bool = False
    """Whether nothing may stay in the process afterwards: no signal handlers, no observer of failed allocations."""


class _Request:
    """A dump that a thread of ours waits for."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.is_taken = threading.Event()
        self.is_done = threading.Event()
        self.is_written = False


class Recorder:
    """Records from `install` on, to the end of the process or to `stop`.

    `after_step` gets the counters of each step; so does what `alarm` returns, which reports devices whose memory grows; `more`
    adds to the summary of the run; `problem` gets the first failure of ours.
    """

    def __init__(
        self,
        options: Options,
        history: History,
        *,
        after_step: Callable[[list[dict[str, int]]], None] | None = None,
        alarm: Callable[[], Alarm] | None = None,
        more: Callable[[], dict[str, Any]] | None = None,
        problem: Callable[[str], None] | None = None,
        driver_trace: DriverTrace | None = None,
    ) -> None:
        self.options = options
        self.history = history
        self.files = Files(options.folder, is_fresh=options.is_fresh)
        self.steps = Steps(self._step_ended, self._begin_anew, is_explicit=options.has_own_steps)
        names = Names()
        self.labels = Labels(names, history.allocations, history.kind)
        self.module_tracker = ModuleTracker(names, history.mark, history.marked, self._entered, self.steps.after_outermost)
        self.count = 0
        self._live = Live(self)
        self._pace = Pace(history.max_events)
        self._has_stacks = True
        """Whether allocations are being recorded with their stacks and modules."""
        self._has_all_stacks = True
        """Whether all allocations since the last step were."""
        self._seen_calls: set[Any] = set()
        """Calls of outermost modules in the last step that was recorded closely, by what they were given."""
        self._calls: set[Any] = set()
        """The same for the step that runs."""
        self.uncounted = UncountedSteps(self._pace)
        self._unreported: list[Leak] = []
        """Leaks that the alarm has found in steps that were counted later."""
        self._growth = Growth()
        self.exception: str | None = None
        self._after_step = after_step
        self._new_alarm = alarm
        self._alarm = None if alarm is None else alarm()
        self._more = more
        self._problem = problem
        self._driver_trace = driver_trace
        self.ledger = Ledger(history.counters, self.nvml, driver_trace)
        ledger = self.ledger if history.kind == "cuda" else None
        self.phases = Phases(self.files, history.counters, ledger, self._look_closely)
        self._compiled = Compiled()
        self._job_place = JobPlace()
        self._signals = Signals(self._dump_for_signal)
        self.on_leak: list[OnLeak] = []
        """What to do when memory grows, for each owner of this recorder."""
        self.step_listeners: list[StepListener] = []
        """Called with the steps whose counters are read: not with each step of a steady loop."""
        self.host_memory = HostMemory(self.files, history.kind) if options.has_host_memory else None
        self._host_segments: list[dict[str, Any]] = []
        """Pinned memory in the last snapshot, where PyTorch records it."""
        self._nvml: Nvml | None = None
        self._asked_nvml_at = 0.0
        self._oom: dict[str, Any] | None = None
        self._is_heap_of_oom = False
        """Whether the references that were written last are those of a failed allocation."""
        self._last_word: str | None = None
        """What the last dump was for, if the program is about to get an exception with it."""
        self._began = time.monotonic()
        self._began_us = time.time_ns() // 1000
        self._in_dumps = 0.0
        self.last_dump_seconds = 0.0
        """How long the last dump took, during which the program paused."""
        self._lock = threading.RLock()
        self._requests: deque[_Request] = deque()
        """Dumps that other threads wait for."""
        self._has_ended = False
        self._has_failed = False
        self._is_marked = False
        self._is_begun = self._is_prepared = False
        self._at_exit: Finalize | None = None
        self._pid = os.getpid()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        try:
            self._install()
        except Exception as error:
            self._complain(error)

    def _is_here(self) -> bool:
        """Whether this is the process that is recorded: asked first, before anything of PyTorch."""
        return os.getpid() == self._pid and not self._has_ended

    def _install(self) -> None:
        global active
        active = self
        self.steps.install()
        self._undo.append(self.steps.remove)
        if self.host_memory is not None:
            self.host_memory.install()
            self._undo.append(self.host_memory.remove)
        self.history.start(self._begun, self._marked_by_program)
        self._write_at_exit()
        _installed.append(self)

    def _write_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.cancel()
        # Unlike `atexit`, this also runs in processes that multiprocessing has started, and only there where we are now.
        self._at_exit = Finalize(None, self._exit, exitpriority=0)

    def forked(self) -> None:
        """In a process that the program has forked: takes everything out again. CUDA cannot be used there if the parent has used
        it. If it has not, the child is a process like the parent, with a recorder of its own."""
        self._live.forked()
        begins_later = self.history.kind == "cuda" and not self._is_begun and not self._has_ended
        self._leave()
        self.history.abandon()
        if begins_later:
            child = Recorder(
                self.options,
                self.history.fresh(),
                after_step=self._after_step,
                alarm=self._new_alarm,
                more=self._more,
                problem=self._problem,
                driver_trace=self._driver_trace,
            )
            child.on_leak = self.on_leak
            child.install()

    def stop(self, ended: str = "finished") -> None:
        """Writes the recording and leaves the program as if nothing had been."""
        try:
            self._write("exit", ended)
        finally:
            self.leave()

    def leave(self) -> None:
        """Leaves the program as if nothing had been, without writing."""
        try:
            self._leave()
            self.history.stop()
            # With nothing to write any more, this only ends the wait of those who have asked.
            self._answer_requests()
        except Exception as error:
            self._complain(error)

    def _leave(self) -> None:
        global active
        self._has_ended = True
        if active is self:
            active = None
        if self in _installed:
            _installed.remove(self)
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None
        while self._undo:
            self._part(self._undo.pop())

    def enter_phase(self, name: str) -> Phase | None:
        """The program begins a phase; `None` if that cannot be recorded."""
        try:
            return self.phases.enter(name) if self._is_here() else None
        except Exception as error:
            self._complain(error)
            return None

    def leave_phase(self, phase: Phase | None) -> None:
        """The program ends a phase that it began."""
        if phase is not None and self._is_here():
            self._part(lambda: self.phases.leave(phase))

    def dump(self, reason: str) -> bool:
        """Writes what there is so far; whether that was done."""
        return self._write(reason, "running")

    def request_dump(self, reason: str, otherwise: Callable[[], bool] | None = None) -> bool:
        """Has the program's own thread write what there is so far, at the next end of a step or call of a module. Returns whether
        it was written.

        From another thread, PyTorch crashes now and then: the program frees tensors in C++ while we look at them. A program that
        comes to no such point is waiting, perhaps forever; then this thread writes, or `otherwise` does.
        """
        request = _Request(reason)
        self._requests.append(request)
        if not self._is_here():
            return False
        if not request.is_taken.wait(_REQUEST_TIMEOUT_SECONDS):
            with contextlib.suppress(ValueError):  # taken just now
                self._requests.remove(request)
                return self.dump(reason) if otherwise is None else otherwise()
        request.is_done.wait()
        return request.is_written

    def _answer_requests(self) -> None:
        while self._requests:
            try:
                request = self._requests.popleft()
            except IndexError:
                return
            request.is_taken.set()
            try:
                request.is_written = self.dump(request.reason)
            finally:
                request.is_done.set()

    def _dump_for_signal(self, reason: str, seconds: float | None) -> None:
        if seconds is None:
            self.request_dump(reason)
        else:
            self._write(reason, "killed", seconds)

    def say_failure(self, error: BaseException) -> None:
        # A program that leaves by `sys.exit()` has not failed.
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            self.exception = words(out_of_memory_behind(error) or error)

    def end_now(self, ended: str) -> None:
        """Ends the program at the end of a step, as if it had come to its end."""
        self._write("stop", ended)
        self._live.close()
        # Not by an exception: the program might catch it, or save a checkpoint on the way out.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    def _begun(self) -> None:
        self._is_begun = True
        self._undo.append(self._compiled.remove)
        if self.options.has_labels:
            self.labels.install()
            self._undo.append(self.labels.remove)
        if self.options.tracks_modules and not self._is_marked:
            self.module_tracker.install()
            self._undo.append(self.module_tracker.remove)
        if self.history.kind == "cuda":
            if not self.options.is_guest:
                _watch_failures()
            self._part(lambda: self.ledger.sample("start", 0))
        self._part(self.phases.begin)
        self._undo.append(self.phases.remove)
        # Not before: its threads would be seen by a program that forks first (Python warns about that).
        if self.host_memory is not None:
            self.host_memory.begin()
        if not self.options.is_guest:
            self._signals.install()
            self._undo.append(self._signals.remove)
        if self.options.is_live:
            self._live.open()
            self._undo.append(self._live.close)

    def _marked_by_program(self) -> None:
        self._is_marked = True
        self.module_tracker.remove()

    def failed_allocation(self, device: int, requested: int, allowed: int, free: int) -> None:
        """PyTorch is about to raise: everything is still there."""
        if not self._is_here():
            return
        try:
            stats = torch.cuda.memory_stats(device)
            total = torch.cuda.get_device_properties(device).total_memory
            self._oom = {
                "device": device,
                "requested": requested,
                "total": total,
                "free": free,
                "limit": allowed if allowed < total else None,
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0),
                "processes": self.nvml().processes(device),
            }
            elapsed = time.monotonic() - self._began
            may_dump = self._in_dumps <= max(_MAX_SECONDS_IN_DUMPS, _MAX_SHARE_IN_DUMPS * elapsed)
            self._last_word = "oom" if may_dump and self._write("oom", "running") else None
        except Exception as error:
            self._complain(error)

    def _exit(self) -> None:
        if not self._is_here():
            return
        # What has ended the program: Python leaves it there when it has printed it. In a session it is some earlier one.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and not hasattr(sys, "ps1"):
            self.say_failure(error)
        # Whoever has started a worker may end it, as vLLM does 5 seconds after a signal.
        seconds = None if parent_process() is None else _MAX_SECONDS_OF_WORKERS
        self._write("exit", "failed" if self.exception else "finished", seconds)
        self._live.close()
        # From here on no thread of ours would get a signal.
        self._part(self._signals.remove)

    def _begin_anew(self) -> None:
        self.count = 0
        self.uncounted.forget()
        self._growth = Growth()
        self._live.begin_anew()
        self._alarm = None if self._new_alarm is None else self._new_alarm()
        self.files.forget_steps()

    def _step_ended(self) -> None:
        if not self._is_here():
            return
        leaks: list[Leak] = []
        is_written = False
        try:
            now_us = time.time_ns() // 1000
            self._last_word = None
            if self._can_count_later(now_us):
                self.count += 1
                self.uncounted.add(self.count, now_us)
                return
            rows = self.history.counters()
            if not rows:
                return
            self._count_repeated(are_alike=self._pace.repeated(rows, len(self.uncounted) + 1))
            self.uncounted.count(rows, now_us)
            self.count += 1
            self._prepare()
            row: dict[str, Any] = {"step": self.count, "time_us": now_us}
            if self.steps.counts_modules:
                row["module_call"] = True
            if not self._has_all_stacks:
                row["stacks"] = False
            calls, self._calls = self._calls, set()
            if self._has_all_stacks:
                self._seen_calls = calls
            self._look(closely=self._pace.is_new(rows) or self.options.has_all_stacks)
            self._has_all_stacks = self._has_stacks
            self._live.step_ended(self.count, row["time_us"], rows)
            if self.history.kind == "cuda":
                row.update(pinned())
                self._ask_driver(rows)
            row["devices"] = rows
            asked = self._add_step(row)
            if asked is not None:
                reason, leaks = parse_request(asked, self.files.folder)
                is_written = self._write(reason, "running")
            self._answer_requests()
            if self.options.has_heap and not self.options.is_guest and self._growth.is_worth_a_look(rows):
                self._part(self._write_growing)
            self._raise_alarm(rows)
            found, self._unreported = self._unreported, []
            if found:
                for leak in found:
                    say(f"{leak.message}; writing a recording of the run so far to {self.files.folder}")
                is_written = self._write("alarm", "running")
                leaks += found
            for listener in self.step_listeners:
                listener(row, self.ledger.last)
            if self._after_step is not None:
                self._after_step(rows)
        except Exception as error:
            self._complain(error)
        if leaks:
            self._answer(leaks, is_written=is_written)

    def _can_count_later(self, now_us: int) -> bool:
        """Whether the counters after a step need not be read yet: nobody waits for them, and the loop is steady."""
        is_waited_for = self._requests or self._after_step is not None
        return not self._has_stacks and not is_waited_for and self.uncounted.can_take(now_us)

    def _count_repeated(self, *, are_alike: bool) -> None:
        """Writes down the steps whose counters were not read."""
        last = self.uncounted.last_rows
        for number, time_us, rows in self.uncounted.take(are_alike=are_alike):
            self._live.step_ended(number, time_us, rows or last)
            self._raise_alarm(last)
            row = {"step": number, "time_us": time_us, "stacks": False, "devices": rows}
            if self.steps.counts_modules:
                row["module_call"] = True
            self.files.add_earlier_step(row)

    def _raise_alarm(self, rows: list[dict[str, int]]) -> None:
        if self._alarm is not None:
            self._unreported += self._alarm(rows, self.files)

    def _count_so_far(self) -> None:
        """In the middle of a step: the steps before it were alike if there have been as many allocations."""
        if self.uncounted:
            made = [row["allocations"] for row in self.history.counters()]
            expected = self._pace.allocations_after(len(self.uncounted))
            self._count_repeated(are_alike=len(made) == len(expected) and all(a >= b for a, b in zip(made, expected)))

    def _prepare(self) -> None:
        """Runs the trials of the heap walk: before the process exits, but not before the program itself uses the device, since
        they run a piece of autograd, which initializes CUDA."""
        if self.history.kind == "cuda":
            self._compiled.follow()
        self.phases.look_for_engines()
        self._part(self._job_place.look)
        if self.options.has_heap and not self._is_prepared:
            self._is_prepared = True
            self._part(heap.prepare)

    def _look(self, *, closely: bool) -> None:
        """Records where allocations come from, or only that they are there."""
        if closely != self._has_stacks:
            self._has_stacks = self.history.record_stacks(wanted=closely)
            self._has_all_stacks &= self._has_stacks
            self.module_tracker.follows_modules = self.module_tracker.follows_backward = self._has_stacks
            self.labels.is_looking = self._has_stacks

    def _look_closely(self) -> None:
        if not self._has_stacks:
            self._count_so_far()
            self._look(closely=True)

    def _entered(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called by no other. With another input, or in another mode, it will not repeat what it did before."""
        self._answer_requests()
        self.phases.entered(module)
        given = [(of.shape, of.dtype) for part in (args, kwargs) for of in tensors_in(part, _MAX_ARGUMENTS)]
        call = (id(module), module.training, torch.is_grad_enabled(), tuple(given))
        if not self._has_stacks:
            if call in self._seen_calls:
                return
            # Not what the steps before have done: an evaluation between two of them, for example.
            self._look_closely()
        elif len(self._calls) < _MAX_CALLS:
            self._calls.add(call)
        self._prepare()
        self.labels.entered(module, args, kwargs)

    def _answer(self, leaks: list[Leak], *, is_written: bool) -> None:
        """Does what the program wants to be done when its memory grows; this alone may raise."""
        try:
            answer(self.on_leak, leaks)
        except MemoryGrows:
            self._last_word = "alarm" if is_written else None
            # Hooks after ours at the end of an optimizer's step are not called then: the one that follows phases, for example.
            if not self._is_marked:
                self.history.mark("")
            raise

    def _add_step(self, row: dict[str, Any]) -> str | None:
        """Whether it can be written or not, the program's memory may grow."""
        try:
            return self.files.add_step(row)
        except OSError as error:
            self._complain(error)
            return None

    def _ask_driver(self, rows: list[dict[str, int]]) -> None:
        now = time.monotonic()
        if now - self._asked_nvml_at < _NVML_INTERVAL_SECONDS:
            return
        self._asked_nvml_at = now
        for row in rows:
            used = self.nvml().used(row["device"])
            if used is not None:
                row["used"] = used
                others = [p["bytes"] for p in self.nvml().processes(row["device"]) if p["pid"] != os.getpid()]
                row["others"] = sum(others)
        self._part(lambda: self.ledger.sample("step", self.count, rows))

    def nvml(self) -> Nvml:
        if self._nvml is None:
            self._nvml = Nvml()
        return self._nvml

    def _write(self, reason: str, ended: str, seconds: float | None = None) -> bool:
        """Returns whether it was written. Where `seconds` limits the time, the most important part comes first."""
        if not self._is_here():
            return False
        began = time.monotonic()
        # The thread that holds it may be the one that no longer runs: the program is about to end.
        if not self._lock.acquire(timeout=-1 if seconds is None else seconds / 2):
            return False
        try:
            with unobserved():
                return self._write_all(reason, ended, seconds)
        except Exception as error:
            self._complain(error)
            return False
        finally:
            self.last_dump_seconds = time.monotonic() - began
            if reason == "oom":
                self._in_dumps += self.last_dump_seconds
            self._lock.release()

    def _write_all(self, reason: str, ended: str, seconds: float | None) -> bool:
        if not self.history.allocations():
            return False
        # What is left after an exception that ended the program explains less than what was there before it.
        if ended == "failed" and self._last_word is not None:
            reason = self._last_word
        else:
            self._write_snapshot(reason, seconds)
        self._count_so_far()
        self.files.flush_steps()
        self.phases.flush()
        self.files.write_json("json", self._summary(reason, ended))
        self._part(self._write_host_memory)
        if seconds is not None and self.options.has_heap:
            self._part(lambda: self._write_last_heap(reason))
        return True

    def _write_snapshot(self, reason: str, seconds: float | None) -> None:
        # First: what follows makes millions of objects.
        if self.options.has_heap and seconds is None:
            self._part(lambda: self._write_last_heap(reason))
        if self.options.has_labels:
            self._part(self.labels.everything)
        if self.history.kind == "cuda":
            self._part(lambda: self.ledger.sample(reason, self.count))
        self._allocations = self.history.allocations()
        events = min(sum(self._allocations.values()) * EVENTS_PER_ALLOCATION, self.history.max_events)
        is_short = seconds is not None and events * _SECONDS_PER_EVENT > seconds
        # Millions of small objects without a cycle among them: the collector would go through them again and again.
        with undisturbed():
            snapshot = self.history.live_snapshot() if is_short else self.history.snapshot()
            if self.history.has_own_frames:
                leave_out_own_frames(snapshot)
            private = private_pools(snapshot)
            self.files.write_pickle("pickle", snapshot)
            self._host_segments = snapshot.get("host_segments", [])
            del snapshot
        if self.history.kind == "cuda":
            self._part(lambda: self.files.write_json("ledger", self.ledger.as_json(pool_owners(private))))
        if self.options.has_labels:
            self._part(self._write_labels)
        self._part(lambda: self.files.write_for_all("meta.json", meta(self.history.kind, self._began_us)))

    def _write_heap(self, ending: str, reason: str) -> None:
        when = {"allocations": self.history.allocations(), "time_us": time.time_ns() // 1000, "dumped": reason}
        self.files.write_json(ending, {**heap.walk(), **when})

    def _write_last_heap(self, reason: str) -> None:
        """A program that catches a failed allocation goes on: what held its memory then is kept beside what does later."""
        if not (self.options.has_heap_without_need or self._growth.has_looked or reason == "oom"):
            return
        if self._is_heap_of_oom and reason != "oom":
            self.files.rename("heap", "oom.heap")
        self._is_heap_of_oom = reason == "oom"
        self._write_heap("heap", reason)

    def _write_growing(self) -> None:
        """While memory grows: when the program is at its end, what its functions held has no name any more."""
        with self._lock, self._growth.looking(), unobserved():
            self._write_heap("growing.heap", "growing")

    def _write_host_memory(self) -> None:
        if self.host_memory is not None:
            self.host_memory.write(self._host_segments)

    def _write_labels(self) -> None:
        self.files.write_json("labels", {**self.labels.as_json(), "modules": list(self.module_tracker.paths)})

    def _part(self, write: Callable[[], None]) -> None:
        """A part without which the others have their use."""
        try:
            write()
        except Exception as error:
            self._complain(error)

    def _summary(self, reason: str, ended: str) -> dict[str, Any]:
        more = self._more() if self._more is not None else {}
        return {
            **owner(),
            "ended": ended,
            "dumped": reason,
            "rank": launched_as(),
            "torch": torch.__version__,
            "device": self.history.kind,
            "exception": self.exception,
            "allocations": self._allocations,
            "steps": {"count": self.count},
            "stacks": self._has_all_stacks,
            "oom": self._oom,
            "settings": self.history.settings(),
            **self._place(),
            **more,
        }

    def _place(self) -> dict[str, Any]:
        try:
            place = self._job_place.as_json()
        except Exception as error:
            self._complain(error)
            return {}
        return {} if place is None else {"job": place}

    def _complain(self, error: Exception) -> None:
        keep(error)
        if not self._has_failed:
            self._has_failed = True
            say(f"part of the recording is missing: {words(error)}")
            if self._problem is not None:
                self._problem(words(error))


_watches_failures = False


def _watch_failures() -> None:
    """Once for the process: PyTorch does not take an observer back."""
    global _watches_failures
    # PyTorch's own allocator calls observers; with the driver's, it refuses them.
    if _watches_failures or torch.cuda.get_allocator_backend() != "native":
        return

    def failed(device: int, requested: int, allowed: int, free: int) -> None:
        if active is not None:
            active.failed_allocation(device, requested, allowed, free)

    torch._C._cuda_attach_out_of_memory_observer(failed)  # type: ignore[attr-defined]
    _watches_failures = True


def _after_fork(*_: object) -> None:
    for recorder in list(_installed):
        if recorder._pid != os.getpid():
            recorder._part(recorder.forked)


def _after_multiprocessing(*_: object) -> None:
    """A process of multiprocessing has forgotten what is to be done at its end."""
    for recorder in _installed:
        recorder._write_at_exit()


def forget_forks() -> None:
    """Takes back what `register_after_fork` has done, for which there is no call."""
    ours = [key for key in list(_afterfork_registry) if key[-1] is _after_multiprocessing]
    for key in ours:
        _afterfork_registry.pop(key, None)


after_fork(_after_fork)
register_after_fork(_after_multiprocessing, _after_multiprocessing)
