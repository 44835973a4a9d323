"""Runs the later iterations in which a loop that repeats does something else: `if step % 100 == 0: evaluate()`.

The variable that counts the iterations gets the number of such an iteration where the next one begins, like an assignment in
pdb. What data loaders and iterators return is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from ..interpreter.errors import keep
from ..interpreter.frames import is_users
from ..recording.messages import words
from .conditions import Counter, upcoming_changes
from .line_trace import LineTrace, clear_copy
from .statements import LoopStatement, Statements


class LaterIterations:
    """`may_begin` is whether there is time for them."""

    def __init__(
        self, statements: Statements, trace: LineTrace, report: Callable[[str], None], may_begin: Callable[[], bool]
    ) -> None:
        self._statements = statements
        self._trace = trace
        self._report = report
        self._may_begin = may_begin
        self._known: set[tuple[CodeType, int]] = set()
        """Loops whose conditions have been read."""
        self._loop: tuple[CodeType, int] | None = None
        self._waiting: list[tuple[Counter, int] | None] = []
        """Numbers for the next iterations of the loop; `None` leaves the counter alone."""
        self.reached: list[dict[str, Any]] = []
        """Iterations that ran: file and line of the loop, number."""

    def run(self, frame: FrameType, loop: LoopStatement, batches: int | None = None, remaining: int | None = None) -> bool:
        """Whether a loop around the line that `frame` is at runs later iterations next. `batches`: its iterations, and
        `remaining`: those that are left, if a data loader knows."""
        key = (frame.f_code, loop.line)
        if self._waiting:
            return key == self._loop
        if key in self._known or not self._trace.is_possible() or not self._may_begin():
            return False
        self._known.add(key)
        try:
            found = upcoming_changes(loop.statement, frame, batches, remaining)
        except Exception as error:
            keep(error)
            self._report(f"the conditions of the loop at line {loop.line} cannot be read: {words(error)}")
            return False
        finally:
            clear_copy(frame)
        for counter, number in found:
            # The body may add to its own counter before the condition, or after it.
            self._waiting += [(counter, number)] if counter.step is None else [(counter, number - counter.step), None]
        if self._waiting:
            self._loop = key
            self._follow(frame, loop)
        return bool(self._waiting)

    def run_in_loader_loop(self, frames: Iterable[FrameType], batches: int | None, remaining: int | None) -> bool:
        """Whether the loop that asks a data loader for a batch runs later iterations next."""
        frame = next(filter(is_users, frames), None)
        loop = None if frame is None else next(self._statements.loops(frame), None)
        if frame is None or loop is None:
            return False
        is_over_loader = frame.f_lineno == loop.line
        return self.run(frame, loop, batches if is_over_loader else None, remaining if is_over_loader else None)

    def _follow(self, frame: FrameType, loop: LoopStatement) -> None:
        """Sets the counters where iterations begin."""
        begin = next(of for of in loop.body if of.lineno == loop.first)
        before = frame.f_lineno

        def after_event(traced: FrameType, event: str) -> bool:
            nonlocal before
            is_inside = loop.line <= traced.f_lineno <= loop.last
            if event != "exception" and (event != "line" or not is_inside):
                self._waiting = []  # the program has left the loop by itself
                return False
            # Code of a statement of several lines comes back to its first line.
            begins = traced.f_lineno == loop.first and not begin.lineno <= before <= (begin.end_lineno or 0)
            before = traced.f_lineno
            if event == "line" and begins:
                self._take(traced, loop)
            return bool(self._waiting)

        self._trace.follow(frame, after_event)

    def _take(self, frame: FrameType, loop: LoopStatement) -> None:
        taken = self._waiting.pop(0)
        if taken is None:
            return
        counter, number = taken
        variables = frame.f_locals
        if counter.name not in variables:
            variables = frame.f_globals
        variables[counter.name] = number
        at = {"file": frame.f_code.co_filename, "line": loop.line, "number": number + (counter.step or 0)}
        self.reached.append(at)
