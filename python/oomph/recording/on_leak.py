"""What to do when memory grows step after step: nothing, unless the program asks for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..interpreter import threads
from ..interpreter.errors import keep
from .alarm import Leak, MemoryGrows
from .messages import say, words


@dataclass(frozen=True, eq=False)
class OnLeak:
    calls: str | Callable[[Leak], object] | None = None
    """A shell command, or a function."""
    raises: bool = False
    """Whether the step in which growth is reported ends with an exception."""


def answer(wanted: Iterable[OnLeak], leaks: list[Leak]) -> None:
    """Makes all calls first, then raises."""
    wanted = list(wanted)
    for leak in leaks:
        for each in wanted:
            if each.calls is not None:
                _call(each.calls, leak)
    if any(each.raises for each in wanted):
        raise MemoryGrows(leaks[0])


def _call(calls: str | Callable[[Leak], object], leak: Leak) -> None:
    try:
        if isinstance(calls, str):
            _start(calls, leak)
        else:
            calls(leak)
    except Exception as error:
        keep(error)
        say(f"`on_leak` failed: {words(error)}")


def _start(command: str, leak: Leak) -> None:
    """Runs a command in parallel with the program, which does not wait for it."""
    environment = {**os.environ, **_variables(leak)}
    # A command that uses torch is not a part of the run that `oomph run` records.
    environment.pop("OOMPH_CHILD", None)
    # Its output to standard error, as with `oomph run`; Ctrl-C is for the program.
    process = subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, env=environment)
    threads.start(process.wait)


def _variables(leak: Leak) -> dict[str, str]:
    """Environment variables for a command, the same as `on_leak.rs` sets."""
    return {
        "OOMPH_RECORDING": leak.folder,
        "OOMPH_MESSAGE": leak.message,
        "OOMPH_RANK": str(leak.rank),
        "OOMPH_DEVICE": str(leak.device),
        "OOMPH_STEP": str(leak.step),
        "OOMPH_BYTES_PER_STEP": str(leak.bytes_per_step),
        "OOMPH_ALLOCATED": str(leak.allocated),
        "OOMPH_PID": str(os.getpid()),
    }
