"""The iterations of a loop in which its conditions change: `if step % 100 == 0`, `if epoch == 50`.

A condition is read if its numbers are literals, or variables and attributes that hold numbers, and if the last iteration of the
loop is known.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

MAX_CHANGES = 8
"""Most iterations of one loop; the last of them are taken, which are the rarest."""
WARM_UP_ITERATIONS = 3
"""First iterations, in which memory has not settled: a condition that held only there is tried again."""
MIN_RECENT_ITERATIONS = 16
"""Last iterations that have run, unless the loop began later."""
MAX_STEP = 10_000
"""Largest distance of two values of a counter."""

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_CONTAINERS = (list, tuple, dict, set, str, range)
_NOT_ALL = frozenset({"islice", "permutation", "reversed", "sample", "sorted", "zip"})
"""Functions that do not pass on all values of their first argument, in their order."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class Counter:
    """A variable that counts the iterations of a loop."""

    name: str
    values: range
    """Its values in a full run of the loop."""
    now: int
    step: int | None = None
    """What the body adds to it; `None` for the loop's own variable, which the next iteration sets."""


class Scope:
    """The variables of a frame."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = frame.f_locals
        self._globals = frame.f_globals

    def value(self, node: ast.expr) -> Any:
        """The value of an expression; `None` where it would take a call."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._locals.get(node.id, self._globals.get(node.id))
            case ast.Attribute():
                return inspect.getattr_static(self.value(node.value), node.attr, None)
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                of = self.value(node.value)
                return of.get(key) if type(of) is dict else None
            case ast.UnaryOp(op=ast.USub()):
                number = self._number(node.operand)
                return None if number is None else -number
            case ast.BinOp():
                return self._calculated(node)
            case ast.Call(func=ast.Name(id="len"), args=[of], keywords=[]):
                return self.length(of)
            case ast.Call(func=ast.Name(id="int"), args=[of], keywords=[]):
                number = self._number(of)
                return None if number is None or not _is_finite(number) else int(number)
        return None

    def integer(self, node: ast.expr) -> int | None:
        number = self._number(node)
        return int(number) if number is not None and _is_finite(number) and number == int(number) else None

    def length(self, node: ast.expr) -> int | None:
        of = self.value(node)
        if isinstance(of, DataLoader) and not isinstance(of.dataset, IterableDataset):
            try:
                return len(of)
            except Exception:
                return None
        return len(of) if type(of) in _CONTAINERS else None

    def _number(self, node: ast.expr) -> int | float | None:
        value = self.value(node)
        return value if type(value) in (int, float) else None

    def _calculated(self, node: ast.BinOp) -> int | float | None:
        left, right, calculate = self._number(node.left), self._number(node.right), _OPERATORS.get(type(node.op))
        if left is None or right is None or calculate is None:
            return None
        try:
            result: int | float = calculate(left, right)
        except ArithmeticError:
            return None
        return result


def _is_finite(number: int | float) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def upcoming_changes(loop: ast.stmt, frame: FrameType, batches: int | None, remaining: int | None) -> list[tuple[Counter, int]]:
    """Counters of the loop that `frame` is in, and values that they have yet to reach. `batches`: how often the loop iterates,
    and `remaining`: how often from now on, if that is known from elsewhere."""
    scope = Scope(frame)
    nodes = list(_inside(loop))
    comparisons = [node for node in nodes if isinstance(node, ast.Compare)]
    conditions = [*comparisons, *_tests(nodes)]
    found: list[tuple[Counter, int]] = []
    for counter in (*_own_counters(loop, scope, batches), *_other_counters(loop, nodes, scope, remaining)):
        numbers = {number for node in conditions for number in _numbers(node, counter, scope)}
        found += [(counter, number) for number in sorted(numbers)[-MAX_CHANGES:]]
    return found[:MAX_CHANGES]


def _tests(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Expressions of which only matters whether they are true."""
    for node in nodes:
        match node:
            case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
                yield node.test
            case ast.BoolOp():
                yield from node.values
            case ast.UnaryOp(op=ast.Not()):
                yield node.operand


def _own_counters(loop: ast.stmt, scope: Scope, batches: int | None) -> Iterator[Counter]:
    """The variable that a `for` loop itself sets."""
    if not isinstance(loop, ast.For):
        return
    values = _values(loop, scope, batches)
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
    now = scope.integer(target)
    if values is None or now is None or not isinstance(target, ast.Name):
        return
    if now in values and 0 < values.step <= MAX_STEP:
        yield Counter(target.id, values, now)


def _other_counters(loop: ast.stmt, nodes: list[ast.AST], scope: Scope, remaining: int | None) -> Iterator[Counter]:
    """Variables to which each iteration adds the same number."""
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in getattr(loop, "body", []):
        if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add) or not isinstance(node.target, ast.Name):
            continue
        name, now, step = node.target.id, scope.integer(node.target), scope.integer(node.value)
        if now is None or step is None or not 1 <= step <= MAX_STEP or assigned.count(name) != 1:
            continue
        if isinstance(loop, ast.While):
            end = _end(loop.test, name, scope)
        else:
            end = None if remaining is None else now + remaining * step + 1
        if end is not None:
            yield Counter(name, range(now % step, end, step), now, step)


def _values(loop: ast.For, scope: Scope, batches: int | None) -> range | None:
    """The values of the variable of a `for` loop, where they are those of a `range` or an `enumerate`."""
    around = loop.iter
    while isinstance(around, ast.Call):
        name = around.func.attr if isinstance(around.func, ast.Attribute) else getattr(around.func, "id", "")
        if name in _NOT_ALL:
            return None
        if name in ("range", "trange"):
            bounds = [scope.integer(of) for of in around.args]
            known = [of for of in bounds if of is not None]
            return range(*known) if 0 < len(known) == len(bounds) <= 3 and known[2:] != [0] else None
        if name == "enumerate" and around.args and isinstance(loop.target, ast.Tuple):
            starts = [*around.args[1:], *(of.value for of in around.keywords if of.arg == "start")]
            start = scope.integer(starts[0]) if starts else 0
            inner = around.args[0]
            is_known = batches is not None and (not isinstance(inner, ast.Call) or getattr(inner.func, "id", "") not in _NOT_ALL)
            count = batches if is_known else scope.length(inner)
            return None if start is None or count is None else range(start, start + count)
        if not around.args:
            return None
        # A progress bar around it, for example.
        around = around.args[0]
    of = scope.value(around)
    of = of if type(of) is range else inspect.getattr_static(of, "iterable", None)
    return of if type(of) is range else None


def _end(test: ast.expr, name: str, scope: Scope) -> int | None:
    """The value of a variable at which a `while` loop ends."""
    match test:
        case ast.Constant() if test.value:
            return sys.maxsize
        case ast.Compare(left=ast.Name(id=left), ops=[ast.Lt() | ast.LtE() as op], comparators=[right]) if left == name:
            end = scope.integer(right)
            return end + 1 if end is not None and isinstance(op, ast.LtE) else end
    return None


def _inside(loop: ast.stmt) -> Iterator[ast.AST]:
    """Everything in the body of a loop, without functions that it defines."""
    waiting: list[ast.AST] = list(getattr(loop, "body", []))
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [of for of in ast.iter_child_nodes(node) if not isinstance(of, _FUNCTIONS)]


def _numbers(node: ast.AST, counter: Counter, scope: Scope) -> Iterator[int]:
    """The next values of a counter for which a condition changes."""
    match node:
        case ast.BinOp(op=ast.Mod()):
            yield from _multiple(node, 0, counter, scope)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for variable, kind, other in ((left, type(op), right), (right, _MIRRORED.get(type(op), type(op)), left)):
                bound = scope.integer(other)
                if bound is None:
                    continue
                # The first value beyond the bound.
                bound += kind in (ast.Gt, ast.LtE)
                if isinstance(variable, ast.BinOp) and isinstance(variable.op, ast.Mod):
                    yield from _multiple(variable, bound, counter, scope)
                    return
                offset = _offset(variable, counter, scope)
                if offset is not None:
                    is_exact = kind in (ast.Eq, ast.NotEq)
                    yield from _next(counter, bound - offset, 0 if is_exact else 1)
                    return


def _multiple(node: ast.BinOp, remainder: int, counter: Counter, scope: Scope) -> Iterator[int]:
    offset, divisor = _offset(node.left, counter, scope), scope.integer(node.right)
    if offset is None or divisor is None or divisor < 2 or not 0 <= remainder < divisor:
        return
    step = counter.values.step
    warm = counter.values.start + WARM_UP_ITERATIONS * step
    recent = range(max(warm, counter.now - (MIN_RECENT_ITERATIONS - 1) * step), counter.now + 1, step)
    if any((of + offset) % divisor == remainder for of in recent):
        return
    first = counter.now + 1
    first += (remainder - offset - first) % divisor
    yield from _next(counter, first, divisor)


def _next(counter: Counter, first: int, by: int) -> Iterator[int]:
    """The first of `first`, `first + by`, ... that the counter is going to have."""
    for number in range(first, first + by * counter.values.step, by) if by else (first,):
        if number > counter.now and number in counter.values and number >= 0:
            yield number
            return


def _offset(node: ast.expr, counter: Counter, scope: Scope) -> int | None:
    """What an expression adds to a counter; `None` if it is anything else."""
    match node:
        case ast.Name(id=name) if name == counter.name:
            return 0
        case ast.BinOp(left=ast.Name(id=name), op=ast.Add() | ast.Sub() as op, right=other) if name == counter.name:
            by = scope.integer(other)
            return -by if by is not None and isinstance(op, ast.Sub) else by
        case ast.BinOp(left=other, op=ast.Add(), right=ast.Name(id=name)) if name == counter.name:
            return scope.integer(other)
    return None
