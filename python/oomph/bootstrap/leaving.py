"""Leaves a loop of the program that repeats itself, so that what follows the loop runs as well.

A loop without a data loader (`for step in range(100_000)`) cannot be told to end. At the beginning of its next iteration
the program jumps to the statement after the loop, as it does with `jump` in Python's debugger. That is only done where it
is a `break`: not out of a `with` or `try` around the loop.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ..interpreter.frames import is_users

MAX_TIMES = 3
"""How often one loop is left alone. Then the loop around it is left as well, which repeats it."""


Target: TypeAlias = "tuple[int, ...] | None"

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Assert, ast.Delete, ast.Import, ast.ImportFrom, ast.Raise, ast.Return)


class Outcome(Enum):
    LEAVES = "leaves"
    """The program leaves the loop with its next iteration."""
    NOTHING_FOLLOWS = "nothing follows"
    """The loop is the last thing that the program does."""
    CANNOT = "cannot"
    """Something follows, but there is no way to get there."""


@dataclass(frozen=True)
class LoopStatement:
    line: int
    first: int
    """First line of the body."""
    last: int
    target: Target
    """Lines to jump to, one after the other, to get to the statement that follows, if the loop can be left for it."""
    is_followed: bool
    """Whether any statement of the function follows."""


class Leaving:
    def __init__(self, report: Callable[[str], None]) -> None:
        self.has_left = False
        self._report = report
        self._times: dict[tuple[CodeType, int], int] = {}
        self._pending: set[FrameType] = set()
        """Frames in which a jump is to come."""
        self._found: dict[CodeType, list[ast.stmt] | None] = {}

    def leave(self, frames: Iterable[FrameType]) -> Outcome:
        """Leaves the innermost loop around the calls in `frames` that has something behind it."""
        if sys.gettrace() is not None:
            return Outcome.CANNOT  # a debugger's, or ours, which has not come to its end
        is_followed = leaves = False
        for frame in filter(is_users, frames):
            inner: list[int] = []
            for loop in self._loops(frame):
                is_followed |= loop.is_followed
                inner.append(loop.first)
                if loop.target is None:
                    continue
                times = self._times[frame.f_code, loop.line] = self._times.get((frame.f_code, loop.line), 0) + 1
                self._jump(frame, loop, inner)
                leaves = True
                if times <= MAX_TIMES:
                    return Outcome.LEAVES
            is_followed |= self._is_followed(frame)
        if leaves:
            return Outcome.LEAVES
        return Outcome.CANNOT if is_followed else Outcome.NOTHING_FOLLOWS

    def _jump(self, frame: FrameType, loop: LoopStatement, beginnings: list[int]) -> None:
        """Has the program leave a loop where an iteration begins: its own, or one of a loop inside of it."""

        def on_line(traced: FrameType, event: str, argument: Any) -> Any:
            if event == "line" and loop.line <= traced.f_lineno <= loop.last and traced.f_lineno not in beginnings:
                return on_line
            try:
                # Otherwise the program has left the loop by itself.
                if event == "line" and traced.f_lineno in beginnings:
                    for line in loop.target or ():
                        traced.f_lineno = line  # type: ignore[misc]
                    self.has_left = True
            except ValueError as error:
                self._report(f"the loop at line {loop.line} cannot be left: {error}")
            self._pending.discard(traced)
            traced.f_trace = None
            if not self._pending:
                sys.settrace(None)
            return None

        self._pending.add(frame)
        frame.f_trace = on_line
        frame.f_trace_lines = True
        sys.settrace(lambda *_: None)

    def _loops(self, frame: FrameType) -> Iterator[LoopStatement]:
        """The loops around the line that a frame is at, innermost first."""
        body = self._body(frame)
        if body is not None:
            yield from reversed(list(_loops_at(body, frame.f_lineno, None, is_followed=False)))

    def _is_followed(self, frame: FrameType) -> bool:
        """Whether a statement of the function follows the one that a frame is at."""
        body = self._body(frame)
        return body is None or any(statement.lineno > frame.f_lineno for statement in body)

    def _body(self, frame: FrameType) -> list[ast.stmt] | None:
        code = frame.f_code
        if code not in self._found:
            self._found[code] = _body_of(code, frame.f_globals)
        return self._found[code]


def _body_of(code: CodeType, module: dict[str, Any]) -> list[ast.stmt] | None:
    """The statements of a function or a module; `None` where there is no source."""
    linecache.checkcache(code.co_filename)
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, module)))
    except (SyntaxError, ValueError):
        return None
    if code.co_name == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != code.co_name:
            continue
        if code.co_firstlineno in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
            return node.body
    return None


def _loops_at(body: list[ast.stmt], line: int, after: Target, *, is_followed: bool) -> Iterator[LoopStatement]:
    """The loops around a line, outermost first. `after`: how to get to the statement that follows the block; `is_followed`:
    whether there is one, even if no jump leads to it."""
    for index, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            continue
        following = _target(body, index) if index + 1 < len(body) else after
        follows = index + 1 < len(body) or is_followed
        if isinstance(statement, (ast.For, ast.While, ast.AsyncFor)):
            first, last = statement.body[0].lineno, statement.body[-1].end_lineno or 0
            if first > statement.lineno and line <= last:
                yield LoopStatement(statement.lineno, first, last, following, follows)
            yield from _loops_at(statement.body, line, None, is_followed=follows)
        elif isinstance(statement, ast.If):
            for block in (statement.body, statement.orelse):
                yield from _loops_at(block, line, following, is_followed=follows)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _loops_at(statement.body, line, None, is_followed=follows)
        elif isinstance(statement, ast.Try):
            follows |= bool(statement.finalbody)
            for block in (statement.body, statement.orelse, statement.finalbody):
                yield from _loops_at(block, line, None, is_followed=follows)


def _target(body: list[ast.stmt], index: int) -> Target:
    """How to get from the statement at `index`, a loop or something around it, to the next one.

    Code of a `with`, `for` or `while` comes back to its first line, and Python would take the place that fits the loop's
    iterator. So the iterator is dropped on the way, by a jump to a simple statement of the same block.
    """
    following = body[index + 1]
    if isinstance(following, (*_SIMPLE, ast.If)):
        return (following.lineno,)
    taken = [statement.lineno for statement in body]
    on_the_way = [of.lineno for of in body if isinstance(of, _SIMPLE) and taken.count(of.lineno) == 1 and not _is_text(of)]
    return (on_the_way[0], following.lineno) if on_the_way else None


def _is_text(statement: ast.stmt) -> bool:
    """A docstring, which is no code."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
