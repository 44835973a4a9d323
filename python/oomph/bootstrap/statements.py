"""The loops of a program around a line, from its source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeAlias

Target: TypeAlias = "tuple[int, ...] | None"

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Assert, ast.Delete, ast.Import, ast.ImportFrom, ast.Raise, ast.Return)


@dataclass(frozen=True)
class LoopStatement:
    statement: ast.For | ast.While | ast.AsyncFor
    first: int
    """First line of the body."""
    last: int
    target: Target
    """Lines to jump to, one after the other, to get to the statement that follows, if the loop can be left for it."""
    is_followed: bool
    """Whether any statement of the function follows."""

    @property
    def line(self) -> int:
        return self.statement.lineno

    @property
    def body(self) -> list[ast.stmt]:
        return self.statement.body


class Statements:
    """The statements of the functions of a program, parsed once."""

    def __init__(self) -> None:
        self._found: dict[CodeType, list[ast.stmt] | None] = {}

    def loops(self, frame: FrameType) -> Iterator[LoopStatement]:
        """The loops around the line that a frame is at, innermost first."""
        body = self._body(frame)
        if body is not None:
            starts = _line_starts(frame.f_code)
            yield from reversed(list(_loops_at(body, frame.f_lineno, None, starts, is_followed=False)))

    def is_followed(self, frame: FrameType) -> bool:
        """Whether a statement of the function follows the one that a frame is at."""
        body = self._body(frame)
        return body is None or is_followed_in(body, frame.f_lineno)

    def _body(self, frame: FrameType) -> list[ast.stmt] | None:
        code = frame.f_code
        if code not in self._found:
            self._found[code] = _body_of(code, frame.f_globals)
        return self._found[code]


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


def is_followed_in(body: list[ast.stmt], line: int) -> bool:
    """Whether a statement comes after the one at `line`, in its block or in one around it."""
    for index, statement in enumerate(body):
        if _contains(statement, line):
            is_last = index + 1 == len(body) and not getattr(statement, "finalbody", [])
            return not is_last or any(is_followed_in(block, line) for block in _blocks(statement))
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
                yield LoopStatement(statement, first, last, following, follows)
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
