"""Lets go of compiled functions that the program has dropped.

PyTorch's history holds the code object of every frame that it has seen. `torch.compile` takes a compiled function out of its
globals when the code object that calls it dies: with a history, never. The function, its CUDA graphs and what it holds of
the module would stay. So Dynamo's own clean-up runs as soon as nothing can call that code any more: when its guards die.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from ..interpreter.errors import keep
from ..interpreter.frames import is_anywhere


class Compiled:
    def __init__(self) -> None:
        self._undo: Callable[[], None] | None = None

    def follow(self) -> None:
        """Begins as soon as the program has imported Dynamo; to be called often."""
        if self._undo is None and (types := sys.modules.get("torch._dynamo.types")) is not None:
            self._undo = _follow(getattr(types, "GuardedCode", None))

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def _follow(guarded_code: Any) -> Callable[[], None]:
    init = getattr(guarded_code, "__init__", None)
    if init is None:
        return lambda: None

    @functools.wraps(init)
    def __init__(self: Any, code: CodeType, guard_manager: Any, *args: Any, **kwargs: Any) -> None:
        init(self, code, guard_manager, *args, **kwargs)
        try:
            hooks = sys.modules["torch._dynamo.utils"].CleanupManager.instance.get(code)
            if hooks:
                weakref.finalize(guard_manager, _clean_up, weakref.ref(code), hooks).atexit = False
        except Exception as error:
            keep(error)  # another version of PyTorch: compiled functions stay as long as the history

    def undo() -> None:
        if guarded_code.__init__ is __init__:
            guarded_code.__init__ = init

    guarded_code.__init__ = __init__
    return undo


def _clean_up(code: weakref.ref[CodeType], hooks: list[Callable[[], None]]) -> None:
    alive = code()
    # Without the code, Dynamo has cleaned up itself; a frame that still runs needs what its code calls.
    if alive is None or is_anywhere(lambda frame: frame.f_code is alive):
        return
    # Dynamo calls what is left in the list when the code dies.
    while hooks:
        hooks.pop()()
