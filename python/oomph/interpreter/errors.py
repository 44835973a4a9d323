"""Exceptions inside our code: ours stay here, and those of the program go on to the program."""

from __future__ import annotations

import functools
import signal
from types import CodeType
from typing import Any


def keep(error: Exception) -> None:
    """Returns if `error` is our own; raises it again if a signal handler of the program has raised it.

    Python runs the program's handlers wherever the main thread is, also inside our hooks. What one raises there
    (a timeout, say) is meant for the program.
    """
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:
        return
    handlers = _handlers()
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            raise error
        trace = trace.tb_next


def _handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        if not hasattr(handler, "__code__"):
            handler = getattr(type(handler), "__call__", None)  # noqa: B004 (the method itself)
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found
