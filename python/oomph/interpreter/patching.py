"""Functions of ours in the place of PyTorch's, which look like PyTorch's: in tracebacks, stacks and `inspect`.

Python shows a frame by the file and position that its code object names. Ours are compiled with the positions of the calls
in PyTorch's source that they replace, so tracebacks do not depend on us.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from .errors import keep

F = TypeVar("F", bound=Callable[..., Any])


def look_like(function: F, original: Callable[..., Any], *calls: str) -> F:
    """`function` under the name of `original`, at the positions where `original` calls the attributes named in `calls`.

    Both make these calls in the same words; everything else in `function` takes the position of the last one. Where PyTorch's
    source cannot be read, or makes no such call, `function` keeps its own positions.
    """
    code = None
    with contextlib.suppress(OSError, TypeError, SyntaxError, ValueError):  # where there is no source
        code = _moved(function, original, calls)
    moved: Any = function
    if code is not None:
        moved = FunctionType(code, function.__globals__, original.__name__, None, function.__closure__)
        moved.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(moved, name, getattr(original, name))
    return moved  # type: ignore[no-any-return]


_DOC = property(lambda self: self._original.__doc__)
_MODULE = property(lambda self: self._original.__module__)


class LikeBuiltin:
    """A function of ours in the place of a built-in function or method. Everything but the call is asked of the original: names,
    signature, what it is pickled as, and the answer of `isinstance`."""

    def __init__(self, function: Callable[..., Any], original: Any) -> None:
        self._function = function
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # Built-in functions are not bound, built-in methods are.
        if instance is None or not hasattr(type(self._original), "__get__"):
            return self
        return LikeBuiltin(functools.partial(self._function, instance), self._original.__get__(instance, owner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        return self._original.__reduce__()

    def __repr__(self) -> str:
        return repr(self._original)

    # What every class has already, so that `__getattr__` is not asked.
    __doc__ = _DOC
    __module__ = _MODULE
    __class__ = property(lambda self: type(self._original))


class Noted(LikeBuiltin):
    """In the place of a method: notes which object it is looked up on, and gives the original. No call goes through us, so
    nothing of ours is in a traceback."""

    def __init__(self, note: Callable[[Any], None], original: Any) -> None:
        super().__init__(original, original)
        self._note = note

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self if self._is_function() else self._original
        try:
            self._note(instance)
        except Exception as error:
            keep(error)
        return self._original.__get__(instance, owner)

    def __reduce__(self) -> Any:
        return self._original.__qualname__ if self._is_function() else super().__reduce__()

    def _is_function(self) -> bool:
        """Whether it is pickled by its name, under which `pickle` has to find the same object."""
        return type(self._original) is FunctionType

    __doc__ = _DOC
    __module__ = _MODULE


def replace(module: ModuleType, name: str, ours: Any) -> None:
    """Puts `ours` in the place of a function, also in the module that defines it: `pickle` looks for it there."""
    original: Any = getattr(module, name)
    home: Any = sys.modules.get(original.__module__)
    defined_as: str = original.__name__
    if getattr(home, defined_as, None) is original:
        setattr(home, defined_as, ours)
    setattr(module, name, ours)


def makes_calls(original: Callable[..., Any], *calls: str) -> bool:
    """Whether `original` is a plain function that calls all of these attributes: PyTorch's own, in a shape that we know."""
    try:
        return set(calls) <= set(dict(_calls(_parsed(original))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False


def _moved(function: Any, original: Any, calls: tuple[str, ...]) -> CodeType | None:
    positions = dict(_calls(_parsed(original)))
    if not set(calls) <= set(positions):
        return None
    tree = _parsed(function)
    _place(tree, positions[calls[-1]])
    tree.lineno = original.__code__.co_firstlineno
    for name, call in _calls(tree):
        if name in calls:
            _place(call, positions[name])
    # Inside another function, so that what ours takes from around it is free in the code as well.
    cells = [ast.arg(name) for name in function.__code__.co_freevars]
    arguments = ast.arguments(posonlyargs=[], args=cells, kwonlyargs=[], kw_defaults=[], defaults=[])
    around: Any = ast.FunctionDef(name="around", args=arguments, body=[tree], decorator_list=[])
    around.type_params = []  # of Python 3.12
    module = ast.fix_missing_locations(ast.Module(body=[around], type_ignores=[]))
    compiled = compile(module, original.__code__.co_filename, "exec", dont_inherit=True)
    found = _code(_code(compiled, "around"), tree.name)
    if found.co_freevars != function.__code__.co_freevars:
        return None
    return found.replace(co_name=original.__name__, **_qualified(original))


def _qualified(original: Any) -> dict[str, Any]:
    """Profilers show the qualified name of the code where there is one (Python 3.11)."""
    return {"co_qualname": original.__qualname__} if hasattr(original.__code__, "co_qualname") else {}


def _parsed(function: Any) -> ast.FunctionDef:
    """The definition, with positions as in its file."""
    lines, first = inspect.getsourcelines(function)
    indent = len(lines[0]) - len(lines[0].lstrip())
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise TypeError("not a function")
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno += first - 1
            node.end_lineno += first - 1  # type: ignore[attr-defined]
            node.col_offset += indent  # type: ignore[attr-defined]
            node.end_col_offset += indent  # type: ignore[attr-defined]
    return tree


def _calls(tree: ast.FunctionDef) -> list[tuple[str, ast.Call]]:
    """The calls of attributes, each with the attribute's name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(call.func.attr, call) for call in calls if isinstance(call.func, ast.Attribute)]


def _place(tree: ast.AST, at: ast.Call) -> None:
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            ast.copy_location(node, at)


def _code(within: CodeType, name: str) -> CodeType:
    return next(const for const in within.co_consts if isinstance(const, CodeType) and const.co_name == name)
