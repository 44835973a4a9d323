"""Leaves a loop of the program that repeats, so that the statements after the loop run as well.

A loop without a data loader (`for step in range(100_000)`) has no sampler to end it. At the start of its next iteration, the
program jumps to the statement after the loop, as it does with `jump` in Python's debugger. This is done only where it is
equivalent to `break`: not out of a `with` or `try` around the loop.
"""

from __future__ import annotations

import ast
import linecache
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ..interpreter.frames import is_users

MAX_TIMES = 3
"""Times that only the inner loop is left; after that, the enclosing loop is left too."""

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
    body: list[ast.stmt]


class Leaving:
    def __init__(self, report: Callable[[str], None]) -> None:
        self.has_left = False
        self._report = report
        self._times: dict[tuple[CodeType, int], int] = {}
        self._pending: set[FrameType] = set()
        """Frames with a pending jump."""
        self._found: dict[CodeType, list[ast.stmt] | None] = {}
        self._reached: set[tuple[CodeType, int]] = set()
        """Calls in a loop, by their lines, in which an inner loop was found to repeat."""

    def leave(self, frames: Iterable[FrameType]) -> Outcome:
        """Leaves the innermost loop around the calls in `frames` that is followed by another statement."""
        if sys.gettrace() is not None:
            return Outcome.CANNOT  # a debugger's, or our own pending jump
        has_loop = is_followed = leaves = is_library = False
        callee: FrameType | None = None
        for frame in frames:
            if not is_users(frame):
                is_library = has_loop
                callee = frame
                continue
            # A library that calls the program back may do more when the call returns.
            is_followed |= is_library
            is_library = False
            inner: list[int] = []
            for loop in self._loops(frame):
                is_followed |= loop.is_followed
                if has_loop and not inner and not leaves and callee is not None:
                    is_followed |= self._has_new_rest(frame, callee, loop)
                inner.append(loop.first)
                if loop.target is None:
                    continue
                times = self._times[frame.f_code, loop.line] = self._times.get((frame.f_code, loop.line), 0) + 1
                self._jump(frame, loop, inner)
                leaves = True
                if times <= MAX_TIMES:
                    return Outcome.LEAVES
            # What follows a step in its own loop is part of the iteration, which has run.
            is_followed |= has_loop and not inner and self._is_followed(frame)
            has_loop |= bool(inner)
            callee = frame
        if leaves:
            return Outcome.LEAVES
        return Outcome.CANNOT if is_followed or not has_loop else Outcome.NOTHING_FOLLOWS

    def _has_new_rest(self, frame: FrameType, callee: FrameType, loop: LoopStatement) -> bool:
        """Whether the loop in `callee` is followed by a part of the iteration around it that has not run yet. Marks the frame of
        the call."""
        if not _is_followed_in(loop.body, frame.f_lineno):
            return False
        call = frame.f_code, frame.f_lineno
        # A later call has another frame. Nothing else tells them apart without keeping one alive.
        if call in self._reached and callee.f_trace is not _seen:
            return False
        self._reached.add(call)
        callee.f_trace = _seen
        return True

    def _jump(self, frame: FrameType, loop: LoopStatement, body_starts: list[int]) -> None:
        """Has the program leave a loop where an iteration begins: its own, or one of a loop inside of it."""

        def on_line(traced: FrameType, event: str, argument: Any) -> Any:
            is_inside = loop.line <= traced.f_lineno <= loop.last
            if event == "exception" or (event == "line" and is_inside and traced.f_lineno not in body_starts):
                return on_line
            try:
                # Otherwise the program has left the loop by itself.
                if event == "line" and traced.f_lineno in body_starts:
                    # Variables that are first assigned after the loop are worth a warning to Python 3.12.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        for line in loop.target or ():
                            traced.f_lineno = line  # type: ignore[misc]
                    self.has_left = True
            except Exception as error:
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
            starts = _line_starts(frame.f_code)
            yield from reversed(list(_loops_at(body, frame.f_lineno, None, starts, is_followed=False)))

    def _is_followed(self, frame: FrameType) -> bool:
        """Whether a statement of the function follows the one that a frame is at."""
        body = self._body(frame)
        return body is None or _is_followed_in(body, frame.f_lineno)

    def _body(self, frame: FrameType) -> list[ast.stmt] | None:
        code = frame.f_code
        if code not in self._found:
            self._found[code] = _body_of(code, frame.f_globals)
        return self._found[code]


def _seen(*_: Any) -> None:
    """Marks the frame of a call that has been looked at."""


def _body_of(code: CodeType, module: dict[str, Any]) -> list[ast.stmt] | None:
    """The statements of a function or a module; `None` where there is no source."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, module)
    if not lines:
        return None
    try:
        tree = ast.parse("".join(lines))
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


def _line_starts(code: CodeType) -> list[int]:
    """The lines of a function in the order of its code; one that the code comes back to is there again."""
    found: list[int] = []
    for _, _, line in code.co_lines():
        if line is not None and (not found or found[-1] != line):
            found.append(line)
    return found


def _blocks(statement: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of statements inside of a statement."""
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    inner = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    return [block for block in blocks if isinstance(block, list)] + [node.body for node in inner]


def _contains(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or 0)


def _is_followed_in(body: list[ast.stmt], line: int) -> bool:
    """Whether a statement comes after the one at `line`, in its block or in one around it."""
    for index, statement in enumerate(body):
        if _contains(statement, line):
            is_last = index + 1 == len(body) and not getattr(statement, "finalbody", [])
            return not is_last or any(_is_followed_in(block, line) for block in _blocks(statement))
    return False


def _loops_at(body: list[ast.stmt], line: int, after: Target, starts: list[int], *, is_followed: bool) -> Iterator[LoopStatement]:
    """The loops around a line, outermost first. `after`: how to get to the statement that follows the block; `is_followed`:
    whether there is one, even if no jump leads to it."""
    for index, statement in enumerate(body):
        if not _contains(statement, line):
            continue
        following = _target(body, index, starts) if index + 1 < len(body) else after
        follows = index + 1 < len(body) or is_followed or bool(getattr(statement, "finalbody", []))
        if isinstance(statement, (ast.For, ast.While, ast.AsyncFor)):
            last = statement.body[-1].end_lineno or 0
            first = next((of.lineno for of in statement.body if of.lineno in starts), None)
            if first is not None and first > statement.lineno and line <= last:
                yield LoopStatement(statement.lineno, first, last, following, follows, statement.body)
        # A jump out of any other block would skip what ends the block.
        inside = following if isinstance(statement, ast.If) else None
        for block in _blocks(statement):
            yield from _loops_at(block, line, inside, starts, is_followed=follows)


def _target(body: list[ast.stmt], index: int, starts: list[int]) -> Target:
    """How to get from the statement at `index`, a loop or something around it, to the next one.

    Code of a `with`, a `for` or an expression of several lines comes back to its first line, and Python would take the place
    that fits the loop's iterator. So the iterator is dropped on the way, by a jump to a simple statement of the same block.
    """
    following = body[index + 1]
    lines = range(following.lineno, (following.end_lineno or 0) + 1)
    # The code of a statement need not begin in its first line.
    first = next((line for line in starts if line in lines), None)
    if first is None:
        return None
    if isinstance(following, (*_SIMPLE, ast.If)) and starts.count(first) == 1:
        return (first,)
    for of in body:
        is_one_line = isinstance(of, _SIMPLE) and of.lineno == of.end_lineno
        if is_one_line and of is not following and starts.count(of.lineno) == 1:
            return (of.lineno, first)
    return None
