"""Puts the recorder, and on an emulated GPU values and techniques, into a process that has just imported torch."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from typing import Any

import torch

from ..emulation import checkpoint_guard, values
from ..interpreter.frames import callers
from ..job import groups, launchers
from ..job.agreement import StepAgreement
from ..job.plan import JobPlan
from ..recording import pool_history, recorder
from ..recording.driver_trace import DriverTrace
from ..recording.history import MAX_EVENTS, History
from ..recording.messages import words
from ..recording.on_leak import OnLeak
from ..recording.recorder import Options, Recorder
from ..recording.start import history
from ..techniques import registry as techniques
from .later_iterations import LaterIterations
from .leaving import Leaving, Outcome
from .line_trace import LineTrace
from .loops import Loops
from .settings import Settings
from .statements import Statements
from .stop_rule import StopRule


def install(settings: Settings, library: ctypes.CDLL | None, trace: DriverTrace | None) -> None:
    settings.note("torch", "")
    if library is not None:
        values.install(library, settings.unknown, settings.report_problem)
        if not settings.keep_files:
            checkpoint_guard.install(settings.report_problem)
    if settings.job is not None:
        plan = JobPlan(**settings.job)
        groups.install(plan, settings.note, settings.report_problem)
        launchers.install_spawn(plan, settings.note)
    techniques.install(settings.techniques, settings.report_problem)
    _record(settings, library, trace)


def _record(settings: Settings, library: ctypes.CDLL | None, trace: DriverTrace | None) -> None:
    chosen = _history(settings, library)
    # A data loader's worker has tensors on the CPU as well, but they are not what the program is about.
    if chosen.kind == "cpu" and multiprocessing.current_process().daemon:
        return
    if chosen.kind == "cpu" and settings.device == "auto":
        settings.note("device", _why_no_gpu())
    # Values are computed in the middle of the program's own operators.
    chosen.has_own_frames |= library is not None
    chosen.can_read_stacks_at_frees &= library is None
    if chosen.kind == "cuda":
        torch.cuda._lazy_call(lambda: settings.note("cuda", "PyTorch has initialized CUDA"))
    RecordedProcess(settings, library, chosen, trace).recorder.install()


def _history(settings: Settings, library: ctypes.CDLL | None) -> History:
    max_events = settings.max_events or MAX_EVENTS
    if library is not None and pool_history.is_needed():
        return pool_history.PoolHistory(library, max_events)
    return history("cuda" if library is not None else settings.device, max_events)


def _why_no_gpu() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is a build without CUDA"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides all devices"
    return "no device or no driver found"


class RecordedProcess:
    """A recorder with the options of `oomph run` or `oomph predict`, and the rule that ends the run."""

    def __init__(self, settings: Settings, library: ctypes.CDLL | None, chosen: History, trace: DriverTrace | None) -> None:
        self.library = library
        self.stop_rule = StopRule(settings.steps)
        # A run that ends where its steps repeat themselves is a prediction.
        is_prediction = settings.steps is None
        options = Options(
            settings.output,
            is_fresh=True,
            has_heap=not settings.techniques,
            has_heap_without_need=not is_prediction,
            has_all_stacks=is_prediction or settings.detail == "full",
            is_live=settings.is_live,
            has_host_memory=not is_prediction,
        )
        after_step = None if settings.steps == 0 else self._after_step
        self.recorder = Recorder(
            options, chosen, after_step=after_step, more=self._more, problem=settings.report_problem, driver_trace=trace
        )
        self.recorder.on_leak.append(OnLeak(raises=settings.raise_on_leak))
        self.loops: Loops | None = None
        statements = Statements()
        line_trace = LineTrace(settings.report_problem)
        self.later_iterations = LaterIterations(statements, line_trace, settings.report_problem, self._has_time)
        later = self.later_iterations if settings.runs_later_iterations else None
        self.leaving = Leaving(statements, line_trace, later)
        self.agreement = None if settings.job is None else StepAgreement(JobPlan(**settings.job))
        self.is_settled = True
        """Whether the steps of loops that were left repeated each other."""
        self.is_covered = False
        """Whether the program would have done nothing else after the loop in which it was stopped."""
        if settings.time_limit is not None and is_prediction:
            counters, report = (lambda: _sums(chosen.counters())), settings.report_problem
            self.loops = Loops(counters, self._end, report, settings.time_limit, cuts=settings.cuts_loops, later=later)
            try:
                self.loops.install()
            except Exception as error:  # a torch that names its parts differently
                settings.report_problem(f"loops are not cut short: {words(error)}")
                self.loops = None

    def _after_step(self, rows: list[dict[str, int]]) -> None:
        goes_on = self.loops is not None and self.loops.step_ended()
        reason = self.stop_rule.after(_sums(rows), goes_on=goes_on)
        if reason is None and not goes_on and self.loops is not None and self.loops.is_over():
            reason = "time"
        if self.agreement is not None and not goes_on:
            reason = self.agreement.agreed(reason)
        if reason is None or (reason in ("periodic", "long") and self._goes_on(reason)):
            return
        self._end(reason)

    def _has_time(self) -> bool:
        # The ranks of a job decide alike, whatever time each has left.
        return self.agreement is not None or (self.loops is not None and self.loops.has_time())

    def _goes_on(self, reason: str) -> bool:
        """Whether the program should keep running after a loop that repeats."""
        # Where memory grows, the loop itself decides: how many steps it has left is not known.
        if self.loops is None or self.loops.is_over() or self.stop_rule.is_growing():
            return False
        outcome = self.leaving.leave(callers()) if self.loops.cuts else Outcome.CANNOT
        if outcome is Outcome.RUNS_LATER_ITERATIONS:
            self.loops.forget_active()
            self.stop_rule.reset(is_settled=reason == "periodic")
        if outcome is Outcome.LEAVES:
            self.loops.forget_active()
            self.stop_rule.reset()
            self.is_settled &= reason == "periodic"
        self.is_covered = outcome is Outcome.NOTHING_FOLLOWS
        return not self.is_covered

    def _end(self, reason: str) -> None:
        checkpoint_guard.leave_no_trace()
        # In a process that the program has forked, the recorder is another.
        (recorder.active or self.recorder).end_now(reason)

    def _loops_as_json(self) -> dict[str, Any]:
        """What a prediction has cut short; nothing for a run that is not one."""
        if self.loops is None:
            return {}
        left: dict[str, Any] = {"left": self.leaving.has_left, "settled": self.is_settled, "covered": self.is_covered}
        left["later"] = self.later_iterations.reached
        return {**self.loops.as_json(), **left}

    def _more(self) -> dict[str, Any]:
        return {
            **self._loops_as_json(),
            "techniques": techniques.applied(),
            "observed": techniques.observed(),
            "reads": [vars(read) for read in values.reads()],
            "values": values.AVAILABLE,
            "inductor": _has_compiled(),
            "devices": [] if self.library is None else _outside(self.library),
            "nccl": 0 if self.library is None else _bytes(self.library.oomph_emulator_nccl),
            "symmetric": 0 if self.library is None else _bytes(self.library.oomph_emulator_symmetric),
        }


def _has_compiled() -> bool:
    """Whether Inductor has compiled anything; libraries import it without doing so."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or "torch._inductor.compile_fx" not in sys.modules:
        return False
    # The second counts what came from a cache as well.
    return bool(utils.counters.get("inductor") or utils.counters.get("aot_autograd"))


def _sums(rows: list[dict[str, int]]) -> dict[str, int]:
    """What steps and iterations are compared by: counters of all devices together."""
    fields = ("allocated", "reserved", "allocations", "all_requested")
    return {field: sum(row[field] for row in rows) for field in fields}


def _outside(library: ctypes.CDLL) -> list[dict[str, int]]:
    """Bytes that the context and libraries take on each device: the emulator knows them."""
    library.oomph_emulator_outside.restype = ctypes.c_uint64
    return [{"outside": int(library.oomph_emulator_outside(device))} for device in range(torch.cuda.device_count())]


def _bytes(of: Any) -> int:
    """Bytes of these that a part takes, by the emulator's function for it."""
    of.restype = ctypes.c_uint64
    return int(of())
