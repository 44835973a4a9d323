"""Leaves a loop of the program that repeats, so that the statements after the loop run as well.

A loop without a data loader (`for step in range(100_000)`) has no sampler to end it. At the start of its next iteration, the
program jumps to the statement after the loop, as it does with `jump` in Python's debugger. This is done only where it is
equivalent to `break`: not out of a `with` or `try` around the loop.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from enum import Enum
from types import CodeType, FrameType
from typing import Any

from ..interpreter.frames import is_users
from .later_iterations import LaterIterations
from .line_trace import LineTrace
from .statements import LoopStatement, Statements, is_followed_in

MAX_TIMES = 3
"""Times that only the inner loop is left; after that, the enclosing loop is left too."""

CALLERS = (
    *("absl", "click", "cyclopts", "fire", "jsonargparse", "plac", "tap", "typer", "tyro"),
    *("contextlib", "functools", "multiprocessing", "runpy"),
    *("torch.distributed.elastic", "torch.multiprocessing", "torch.utils._contextlib"),
)
"""Modules that call a program's function, and need no GPU memory after that: for command lines, processes and decorators."""


class Outcome(Enum):
    LEAVES = "leaves"
    """The program leaves the loop with its next iteration."""
    NOTHING_FOLLOWS = "nothing follows"
    """The loop is the last thing that the program does."""
    RUNS_LATER_ITERATIONS = "runs later iterations"
    """It does not leave the loop yet."""
    CANNOT = "cannot"
    """Something follows, but there is no way to get there."""


class Leaving:
    def __init__(self, statements: Statements, trace: LineTrace, later: LaterIterations | None = None) -> None:
        self.has_left = False
        self._statements = statements
        self._trace = trace
        self._later = later
        self._jumps = 0
        """Jumps that the program has yet to make."""
        self._times: dict[tuple[CodeType, int], int] = {}
        self._reached: set[tuple[CodeType, int]] = set()
        """Calls in a loop, by their lines, in which an inner loop was found to repeat."""

    def leave(self, frames: Iterable[FrameType]) -> Outcome:
        """Leaves the innermost loop around the calls in `frames` that is followed by another statement."""
        if self._jumps or not self._trace.is_possible():
            return Outcome.CANNOT
        has_loop = is_followed = is_library = has_library = False
        callee: FrameType | None = None
        jumps: dict[FrameType, tuple[LoopStatement, list[int]]] = {}
        for frame in frames:
            if not is_users(frame):
                is_library |= has_loop and not _only_calls(frame)
                callee = frame
                continue
            # A library that calls the program back may do more when the call returns.
            is_followed |= is_library
            has_library |= is_library
            is_library = False
            inner: list[int] = []
            for loop in self._statements.loops(frame):
                is_followed |= loop.is_followed
                if has_loop and not inner and not jumps and callee is not None:
                    is_followed |= self._has_new_rest(frame, callee, loop)
                if self._later is not None and not has_library and self._later.run(frame, loop):
                    self._jump(jumps)
                    return Outcome.RUNS_LATER_ITERATIONS
                inner.append(loop.first)
                if loop.target is None:
                    continue
                times = self._times[frame.f_code, loop.line] = self._times.get((frame.f_code, loop.line), 0) + 1
                jumps[frame] = loop, inner
                if times <= MAX_TIMES:
                    self._jump(jumps)
                    return Outcome.LEAVES
            # What follows a step in its own loop is part of the iteration, which has run.
            is_followed |= has_loop and not inner and self._statements.is_followed(frame)
            has_loop |= bool(inner)
            callee = frame
        if jumps:
            self._jump(jumps)
            return Outcome.LEAVES
        return Outcome.CANNOT if is_followed or not has_loop else Outcome.NOTHING_FOLLOWS

    def _has_new_rest(self, frame: FrameType, callee: FrameType, loop: LoopStatement) -> bool:
        """Whether the loop in `callee` is followed by a part of the iteration around it that has not run yet. Marks the frame of
        the call."""
        if not is_followed_in(loop.body, frame.f_lineno):
            return False
        call = frame.f_code, frame.f_lineno
        # A later call has another frame. Nothing else tells them apart without keeping one alive.
        if call in self._reached and callee.f_trace is not _seen:
            return False
        self._reached.add(call)
        callee.f_trace = _seen
        return True

    def _jump(self, jumps: dict[FrameType, tuple[LoopStatement, list[int]]]) -> None:
        """Has the program leave loops, one in each frame."""
        for frame, (loop, body_starts) in jumps.items():
            self._jumps += 1
            self._trace.follow(frame, functools.partial(self._leave_at_next_iteration, loop, body_starts))

    def _leave_at_next_iteration(self, loop: LoopStatement, body_starts: list[int], traced: FrameType, event: str) -> bool:
        """Leaves a loop where an iteration begins, its own or one of a loop inside of it. Returns whether none has begun."""
        is_inside = loop.line <= traced.f_lineno <= loop.last
        if event == "exception" or (event == "line" and is_inside and traced.f_lineno not in body_starts):
            return True
        self._jumps -= 1
        # Otherwise the program has left the loop by itself.
        if event == "line" and traced.f_lineno in body_starts:
            # Variables that are first assigned after the loop are worth a warning to Python 3.12.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for line in loop.target or ():
                    traced.f_lineno = line  # type: ignore[misc]
            self.has_left = True
        return False


def _only_calls(frame: FrameType) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(tuple(f"{name}." for name in CALLERS))


def _seen(*_: Any) -> None:
    """Marks the frame of a call that has been looked at."""
