"""Runs the later iterations in which a loop that repeats does something else: `if step % 100 == 0: evaluate()`.

The variable that counts the iterations gets the number of such an iteration where the next one begins, as an assignment in
Python's debugger would do it. What data loaders and iterators return is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from ..interpreter.frames import is_users
from ..recording.messages import words
from .conditions import Counter, named
from .line_trace import LineTrace, empty_copy
from .statements import LoopStatement, Statements

MAX_WAITS = 3
"""Times that steps may repeat before the loop comes to its next iteration."""


class LaterIterations:
    def __init__(self, statements: Statements, report: Callable[[str], None]) -> None:
        self._statements = statements
        self._report = report
        self._trace = LineTrace(lambda why: report(f"later iterations do not run: {why}"))
        self._known: set[tuple[CodeType, int]] = set()
        """Loops whose conditions have been read."""
        self._waiting: list[tuple[Counter, int] | None] = []
        """What the next iterations are; `None` for one as it is."""
        self._waits = 0
        self.reached: list[dict[str, Any]] = []
        """Where the program was taken to a later iteration: file, line of the loop, number."""

    def run(self, frames: Iterable[FrameType], is_loader_loop: Callable[[str, int], bool]) -> bool:
        """Whether the innermost loop without a data loader runs later iterations before it is left."""
        if self._is_waiting():
            return True
        is_inside = False
        for frame in frames:
            if not is_users(frame):
                if is_inside:
                    return False  # a library decides what comes next
                continue
            for loop in self._statements.loops(frame):
                if not is_loader_loop(frame.f_code.co_filename, loop.line):
                    return self._begin(frame, loop, None)
                is_inside = True
        return False

    def run_in_loader_loop(self, frames: Iterable[FrameType], batches: int | None) -> bool:
        """Whether the loop that asks for a batch runs later iterations before it is cut short."""
        if self._is_waiting():
            return True
        frame = next(filter(is_users, frames), None)
        loop = None if frame is None else next(self._statements.loops(frame), None)
        if frame is None or loop is None:
            return False
        return self._begin(frame, loop, batches if frame.f_lineno == loop.line else None)

    def _is_waiting(self) -> bool:
        self._waits += 1
        if self._waiting and self._waits > MAX_WAITS:
            self._waiting = []
            self._trace.stop()
        return bool(self._waiting)

    def _begin(self, frame: FrameType, loop: LoopStatement, batches: int | None) -> bool:
        if (frame.f_code, loop.line) in self._known or not LineTrace.is_possible():
            return False
        self._known.add((frame.f_code, loop.line))
        try:
            found = named(loop.statement, frame, batches)
        except Exception as error:
            self._report(f"the conditions of the loop at line {loop.line} cannot be read: {words(error)}")
            return False
        finally:
            empty_copy(frame)
        for counter, number in found:
            # The body may add to its own counter before the condition, or after it.
            self._waiting += [(counter, number)] if counter.step is None else [(counter, number - counter.step), None]
        if self._waiting:
            self._waits = 0
            self._follow(frame, loop)
        return bool(self._waiting)

    def _follow(self, frame: FrameType, loop: LoopStatement) -> None:
        """Sets the counters where iterations begin."""
        first = loop.body[0]
        before = frame.f_lineno

        def after_event(traced: FrameType, event: str) -> bool:
            nonlocal before
            is_inside = loop.line <= traced.f_lineno <= loop.last
            if event != "exception" and (event != "line" or not is_inside):
                self._waiting = []  # the program has left the loop by itself
                return False
            # Code of a statement of several lines comes back to its first line.
            begins = traced.f_lineno == loop.first and not first.lineno <= before <= (first.end_lineno or 0)
            before = traced.f_lineno
            if event == "line" and begins:
                self._take(traced, loop)
            return bool(self._waiting)

        self._trace.follow(frame, after_event)

    def _take(self, frame: FrameType, loop: LoopStatement) -> None:
        taken = self._waiting.pop(0)
        self._waits = 0
        if taken is None:
            return
        counter, number = taken
        frame.f_locals[counter.name] = number
        at = {"file": frame.f_code.co_filename, "line": loop.line, "number": number + (counter.step or 0)}
        self.reached.append(at)
